package generate_test

import (
	"bytes"
	"context"
	"math"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
)

// BenchmarkDecode is one token after another with the demo's model.
func BenchmarkDecode(b *testing.B) {
	m, err := models.New(models.Config{Type: "llama", Vocab: 256, Hidden: 256, FFN: 1024, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 64, Context: 1 << 16, NormEps: 1e-6, RopeTheta: 1e4})
	require.NoError(b, err)
	require.NoError(b, m.Init(1))
	s, err := generate.New(m, generate.Options{})
	require.NoError(b, err)
	r, err := s.Add([]int32{1}, generate.Sampling{})
	require.NoError(b, err)
	for b.Loop() {
		_, err := r.Next(context.Background())
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "token/s")
}

// smolShape is SmolLM2-135M's shape with random weights, saved and opened as bf16.
func smolShape(b *testing.B) *models.Opened {
	m, err := models.New(models.Config{Type: "llama", Vocab: 49152, Hidden: 576, FFN: 1536, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64, Context: 2048, NormEps: 1e-5, RopeTheta: 1e5, Tied: true})
	require.NoError(b, err)
	require.NoError(b, m.Init(1))
	dir := filepath.Join(b.TempDir(), "smollm2")
	require.NoError(b, m.Save(dir, models.As(dtype.BFloat16)))
	o, err := models.Open(dir)
	require.NoError(b, err)
	b.Cleanup(func() { o.Close() })
	return o
}

// smolPrompt is 512 tokens.
func smolPrompt() []int32 {
	ids := make([]int32, 512)
	for i := range ids {
		ids[i] = int32(1 + i*7919%49000)
	}
	return ids
}

// BenchmarkSmolLM2 decodes tokens 513 to 600 of a text and compares the rate
// with that of reading the weights alone, which is measured in turns with it;
// and it reads the prompt.
func BenchmarkSmolLM2(b *testing.B) {
	m := smolShape(b)
	weights := 0
	for _, p := range m.Params().All() {
		weights += p.Type.Bytes()
	}
	open := func(b *testing.B, compute dtype.DType) *generate.Session {
		s, err := generate.New(m, generate.Options{Context: 1024, Chunk: 512, Compute: compute})
		require.NoError(b, err)
		return s
	}
	ctx := context.Background()
	b.Run("decode", func(b *testing.B) {
		s := open(b, dtype.Float32)
		floor := newReading(weights)
		const tokens = 88
		read, decode := math.Inf(1), math.Inf(1) // of the fastest runs, which others disturb least
		for b.Loop() {
			b.StopTimer()
			r, err := s.Add(smolPrompt(), generate.Sampling{})
			require.NoError(b, err)
			_, err = r.Next(ctx)
			require.NoError(b, err)
			for range 4 {
				read = min(read, floor.seconds())
			}
			b.StartTimer()
			start := time.Now()
			for range tokens {
				_, err := r.Next(ctx)
				require.NoError(b, err)
			}
			decode = min(decode, time.Since(start).Seconds()/tokens)
			b.StopTimer()
			s.Remove(r)
			b.StartTimer()
		}
		b.ReportMetric(1/decode, "token/s")
		b.ReportMetric(float64(weights)/read/1e9, "GB/s-read")
		b.ReportMetric(read/decode, "of-floor")
	})
	for _, compute := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		b.Run("prefill/"+compute.String(), func(b *testing.B) {
			s := open(b, compute)
			prefill := math.Inf(1)
			for b.Loop() {
				r, err := s.Add(smolPrompt(), generate.Sampling{})
				require.NoError(b, err)
				start := time.Now()
				_, err = r.Next(ctx)
				require.NoError(b, err)
				prefill = min(prefill, time.Since(start).Seconds())
				s.Remove(r)
			}
			b.ReportMetric(512/prefill, "token/s")
		})
	}
}

// reading is the test of the memory: every core reads two streams of n bytes in
// all.
type reading struct{ streams [][]byte }

func newReading(n int) reading {
	var r reading
	cores := runtime.GOMAXPROCS(0)
	for range 2 * cores {
		r.streams = append(r.streams, bytes.Repeat([]byte{1}, n/2/cores))
	}
	return r
}

// seconds is the time of one reading.
func (r reading) seconds() float64 {
	start := time.Now()
	var wg sync.WaitGroup
	for i := 0; i < len(r.streams); i += 2 {
		wg.Go(func() {
			if !bytes.Equal(r.streams[i], r.streams[i+1]) {
				panic("the streams differ")
			}
		})
	}
	wg.Wait()
	return time.Since(start).Seconds()
}
