//go:build gpu

package cuda

// Whole models on the device: against native and against the golden checkpoints, in long runs, in batches, in many
// goroutines, and after failures.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/ops"
)

func onCUDA(o Options) func(*graph.Plan) (graph.Executor, error) {
	return func(p *graph.Plan) (graph.Executor, error) { return Compile(p, o) }
}

// Weights are read when a plan is compiled, where they changed, and by native steps: not once their files are closed.
// These checks come before any use of a device.
func TestNoPlanRunsOnAClosedModel(t *testing.T) {
	const closed = "cuda: the model is closed, and the files of its weights with it"
	b := graph.New()
	plan, err := b.Plan(ops.Add(b.Param("w", 2, 2), b.Param("w", 2, 2)))
	require.NoError(t, err)
	e := &Executor{prog: &program{plan: plan}}
	require.EqualError(t, e.Do(context.Context(nil), nil), "cuda: Do: the context is missing (nil)")
	require.EqualError(t, e.ReadState(nil, 0, nil), "cuda: the state is missing (nil)")
	b.Store().Close()
	require.EqualError(t, e.Do(context.Background(), nil), closed)
	_, err = Compile(plan, Options{})
	require.EqualError(t, err, closed)
	_, err = Compile(nil, Options{})
	require.EqualError(t, err, "cuda: there is no plan: see the error of Plan")
	for _, none := range []*Executor{nil, {}} {
		_, value := none.Value(nil)
		_, profile := none.Profile(context.Background(), nil, 1)
		for _, err := range []error{none.Do(context.Background(), nil), value, profile, none.ReadState(nil, 0, nil), none.WriteState(nil, 0, nil), none.Close()} {
			require.EqualError(t, err, "cuda: the executor is missing: Compile makes one")
		}
		require.Equal(t, "cuda: the executor is missing: Compile makes one\n", none.String())
		require.Zero(t, none.Stats())
		require.False(t, none.Keeps(nil))
	}
}

// logitsOf runs a whole sequence.
func logitsOf(t testing.TB, m *models.Transformer, ids []int32, compile func(*graph.Plan) (graph.Executor, error)) []float32 {
	t.Helper()
	b := graph.New(graph.Share(m.Params()))
	logits := m.Logits(b, b.Input("tokens", dtype.Int32, 1, len(ids)), models.Dropout{})
	plan, err := b.Plan(logits)
	require.NoError(t, err)
	run, err := compile(plan)
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": ids}))
	v, err := run.Value(logits)
	require.NoError(t, err)
	out := slices.Clone(graph.Data[float32](v))
	if e, ok := run.(*Executor); ok {
		require.NoError(t, e.Close())
	}
	return out
}

func natively(p *graph.Plan) (graph.Executor, error) { return p.Native() }

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return ab / math.Sqrt(aa*bb)
}

// text is n tokens of a request on its own.
func text(t testing.TB, s *generate.Session, prompt []int32, o generate.Sampling, n int) []int32 {
	t.Helper()
	r, err := s.Add(prompt, o)
	require.NoError(t, err)
	defer s.Remove(r)
	var ids []int32
	for range n {
		id, err := r.Next(context.Background())
		require.NoError(t, err)
		ids = append(ids, id)
	}
	return ids
}

func session(t testing.TB, m *models.Transformer, o generate.Options, c Options) *generate.Session {
	t.Helper()
	o.Compile = onCUDA(c)
	s, err := generate.New(m, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestDeviceExecutorLogits(t *testing.T) {
	device(t)
	ids := make([]int32, 150)
	for i := range ids {
		ids[i] = int32(i * i % 256)
	}
	for name, change := range map[string]func(*models.Config){
		"llama": nil,
		"qwen3": func(c *models.Config) { c.Type, c.QKNorm = "qwen3", true },
		"gemma3": func(c *models.Config) {
			c.Type, c.QKNorm, c.Scale, c.Window, c.LocalTheta, c.Tied, c.Global = "gemma3_text", true, 0.125, 32, 1e4, true, []bool{false, true}
		},
	} {
		if testing.Short() && name != "gemma3" { // which has what the others have
			continue
		}
		m := tiny(t, change)
		want := logitsOf(t, m, ids, natively)
		for _, dt := range computes {
			got := logitsOf(t, m, ids, onCUDA(Options{Compute: dt}))
			cos := cosine(want, got)
			fmt.Printf("MODEL\t%s\t%s\tcosine of logits with native %.7f\n", name, dt, cos)
			// measured 0.9999994 and 0.99995 and above in 16 bits
			require.Greater(t, cos, map[dtype.DType]float64{dtype.Float32: 1 - 1e-9, dtype.Float16: 0.999998, dtype.BFloat16: 0.9999}[dt])
		}
	}
}

// The loss of a sequence, for evaluation, wholly on the device.
func TestDeviceExecutorLoss(t *testing.T) {
	device(t)
	m := tiny(t, nil)
	ids, labels := make([]int32, 100), make([]int32, 100)
	for i := range ids {
		ids[i], labels[i] = int32(i*i%256), int32((i+1)*(i+1)%256)
	}
	labels[3], labels[99] = -100, -100
	loss := func(compile func(*graph.Plan) (graph.Executor, error)) (float64, float64) {
		b := graph.New(graph.Share(m.Params()))
		logits := m.Logits(b, b.Input("tokens", dtype.Int32, 2, 50), models.Dropout{})
		l, n := ops.CrossEntropy(logits, b.Input("labels", dtype.Int32, 2, 50), ops.CrossEntropyOptions{ZLoss: 1e-3})
		plan, err := b.Plan(l, n)
		require.NoError(t, err)
		e, err := compile(plan)
		require.NoError(t, err)
		require.NoError(t, e.Do(context.Background(), graph.Feeds{"tokens": ids, "labels": labels}))
		v, err := e.Value(l)
		require.NoError(t, err)
		count, err := e.Value(n)
		require.NoError(t, err)
		a, b0 := float64(graph.Data[float32](v)[0]), float64(graph.Data[float32](count)[0])
		if x, ok := e.(*Executor); ok {
			require.NoError(t, x.Close())
		}
		return a, b0
	}
	want, count := loss(natively)
	for _, dt := range computes {
		got, n := loss(onCUDA(Options{Compute: dt, Strict: dt != dtype.Float32}))
		fmt.Printf("LOSS\t%s\t%.7f, native %.7f\n", dt, got, want)
		require.Equal(t, count, n)
		require.InEpsilon(t, want, got, map[dtype.DType]float64{dtype.Float32: 1e-5, dtype.Float16: 1e-4, dtype.BFloat16: 1e-3}[dt])
	}
}

// The golden checkpoints: greedy text equal in f32, logits near in every type.
func TestDeviceExecutorGoldenCheckpoints(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the kernels are those of the other tests")
	}
	device(t)
	dirs, err := filepath.Glob("../../models/testdata/golden/*")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(dir, "golden.json"))
			require.NoError(t, err)
			var g struct {
				Prompts []struct {
					InputIDs []int32 `json:"input_ids"`
					Greedy   struct {
						Tokens  []int32
						Margins []float64
					}
				}
			}
			require.NoError(t, json.Unmarshal(raw, &g))
			require.NotEmpty(t, g.Prompts)
			m, _, err := models.Load(dir)
			require.NoError(t, err)
			s := session(t, m, generate.Options{Context: 128}, Options{Compute: dtype.Float32})
			for _, p := range g.Prompts {
				require.Equal(t, p.Greedy.Tokens, text(t, s, p.InputIDs, generate.Sampling{}, len(p.Greedy.Tokens)))
			}
			// A rounding can send a token to another expert, and what follows is another computation: native takes the same choices.
			for _, dt := range computes {
				worst, same, others := 1.0, 1.0, 0
				for _, p := range g.Prompts {
					n := len(p.InputIDs)
					want := routings(t, m, n, false, natively)(p.InputIDs, nil)
					got := routings(t, m, n, false, onCUDA(Options{Compute: dt}))(p.InputIDs, nil)
					others += got.others(want, n)
					worst = min(worst, cosine(want.logits, got.logits))
					same = min(same, cosine(routings(t, m, n, true, natively)(p.InputIDs, got.choices).logits, got.logits))
				}
				fmt.Printf("GOLDEN\t%s\t%s\tcosine of logits %.7f, given the same choices of experts %.7f (%d other choices)\n", filepath.Base(dir), dt, worst, same, others)
				if others == 0 {
					same = min(same, worst)
				}
				// measured 0.99956 and above in bf16, 0.999992 in f16
				require.Greater(t, same, map[dtype.DType]float64{dtype.Float32: 1 - 1e-8, dtype.BFloat16: 0.999, dtype.Float16: 0.9999}[dt])
			}
		})
	}
}

// What a session writes on the device is what it writes natively, for types whose layers fuse differently.
func TestDeviceExecutorText(t *testing.T) {
	device(t)
	for name, change := range map[string]func(*models.Config){
		"llama": nil,
		"qwen2": func(c *models.Config) { c.Type, c.QKVBias = "qwen2", true },
		"qwen3": func(c *models.Config) { c.Type, c.QKNorm = "qwen3", true },
		"olmo2": func(c *models.Config) { c.Type, c.QKNorm = "olmo2", true },
	} {
		if testing.Short() && name != "qwen3" {
			continue
		}
		m := tiny(t, change)
		prompt := []int32{5, 200, 13, 77, 1, 0, 255, 31, 8}
		plain, err := generate.New(m, generate.Options{})
		require.NoError(t, err)
		n := shorter(40, 4)
		want := text(t, plain, prompt, generate.Sampling{}, n)
		for _, dt := range computes {
			got := text(t, session(t, m, generate.Options{Chunk: 4}, Options{Compute: dt}), prompt, generate.Sampling{}, n)
			same := 0
			for same < len(got) && got[same] == want[same] {
				same++
			}
			fmt.Printf("TEXT\t%s\t%s\tthe first %d of %d tokens are native's\n", name, dt, same, len(got))
			if dt != dtype.BFloat16 {
				require.Equal(t, want, got)
			}
			require.Positive(t, same) // bf16 may take the other of two near-ties: of qwen3 the first 5 are native's, of the others all
		}
	}
}

// Heads that need more shared memory than a GPU gives a block go to the general kernel: all rows, or those of several tokens alone.
func TestDeviceExecutorSmallBlocks(t *testing.T) {
	device(t)
	u, err := unitOf(0)
	require.NoError(t, err)
	whole := u.dev.target
	defer func() { u.dev.target = whole }()
	m := tiny(t, func(c *models.Config) { c.HeadDim, c.Window, c.Type = 256, 20, "gemma3_text" })
	prompt := make([]int32, 60)
	for i := range prompt {
		prompt[i] = int32(i * i % 251)
	}
	plain, err := generate.New(m, generate.Options{})
	require.NoError(t, err)
	n := shorter(20, 3)
	want := text(t, plain, prompt, generate.Sampling{}, n)
	for _, most := range []int{166912, 101376}[:shorter(2, 1)] { // of compute capability 8.0 and 8.9
		u.dev.target.MaxShared, u.dev.target.Portable = most, true
		for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16}[:shorter(2, 1)] {
			got := text(t, session(t, m, generate.Options{Chunk: 33, Requests: 2}, Options{Compute: dt, Strict: true}), prompt, generate.Sampling{}, n)
			require.Equal(t, want, got, "%d bytes of shared memory, %s", most, dt) // no two of these tokens are a near-tie
		}
	}
}

// Two thousand steps of decode: device memory stays as it is, and closing gives all of it back.
func TestDeviceExecutorN09_LongRun(t *testing.T) {
	device(t)
	u, err := unitOf(0)
	require.NoError(t, err)
	before := u.dev.Stats()
	steps := shorter(2000, 4)
	m := tiny(t, func(c *models.Config) { c.Context = 2304 })
	s := session(t, m, generate.Options{}, Options{Strict: true})
	r, err := s.Add([]int32{1, 2, 3}, generate.Sampling{Temperature: 1, Seed: 5})
	require.NoError(t, err)
	next := func() {
		_, err := r.Next(context.Background())
		require.NoError(t, err)
	}
	next()
	next()
	start := u.dev.Stats()
	allocs := testing.AllocsPerRun(steps, next)
	now := u.dev.Stats()
	require.Equal(t, start.Bytes, now.Bytes)
	require.Equal(t, start.Buffers, now.Buffers)
	require.Equal(t, start.Pinned, now.Pinned)
	fmt.Printf("LONG\t%d steps\t%d device bytes throughout\t%.1f host allocations a step\n", steps, now.Bytes, allocs)
	require.Zero(t, allocs)
	require.NoError(t, s.Close())
	after := u.dev.Stats()
	require.Equal(t, before.Bytes, after.Bytes, after.String())
	require.Equal(t, before.Pinned, after.Pinned)
}

// A request writes the same text alone and among others, which come and go: in f32 whatever they bring, in 16 bits where the
// steps stay within 64 tokens, for which the products have another kernel than for more.
func TestDeviceExecutorBatch(t *testing.T) {
	device(t)
	m := tiny(t, nil)
	prompt, hot := []int32{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12}, generate.Sampling{Temperature: 1, Seed: 77}
	n, others := shorter(100, 5), shorter(5, 2)
	for _, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16, dtype.Float32}[:shorter(3, 1)] {
		alone := text(t, session(t, m, generate.Options{}, Options{Compute: dt, Strict: dt != dtype.Float32}), prompt, hot, n)
		for _, longest := range []int{5, 150}[:shorter(2, 1)] {
			const requests = 8
			if dt != dtype.Float32 && requests*longest > 64 {
				continue // products of 16 bits have another kernel for more than 64 rows, which adds in another order
			}
			s := session(t, m, generate.Options{Requests: requests}, Options{Compute: dt, Strict: dt != dtype.Float32})
			stop, wait := make(chan struct{}), sync.WaitGroup{}
			for i := range others {
				wait.Go(func() {
					for k := 0; ; k++ {
						theirs := make([]int32, longest-(i+k)%5)
						for j := range theirs {
							theirs[j] = int32((i + j*k) % 256)
						}
						r, err := s.Add(theirs, generate.Sampling{Temperature: 0.5, Seed: uint64(i)})
						if err != nil {
							return
						}
						for range 7 + i {
							select {
							case <-stop:
								return
							default:
							}
							if _, err := r.Next(context.Background()); err != nil {
								return
							}
						}
						s.Remove(r)
					}
				})
			}
			among := text(t, s, prompt, hot, n)
			close(stop)
			wait.Wait()
			fmt.Printf("BATCH\t%s\t%d sampled tokens alone and among %d others with prompts up to %d\tequal %v\n", dt, n, others, longest, slices.Equal(alone, among))
			require.Equal(t, alone, among)
		}
	}
}

// decodeFeeds are those of a step in which each of n requests brings one token after length-1 others.
func decodeFeeds(n, bucket, length, pages int) graph.Feeds {
	f := map[string][]int32{models.PackedTokens: make([]int32, bucket), models.PackedPositions: make([]int32, bucket), models.PackedSlots: make([]int32, bucket),
		models.PackedQOIndptr: make([]int32, bucket+1), models.PackedPageIndptr: make([]int32, bucket+1), models.PackedPageIndices: make([]int32, pages),
		models.PackedLastPageLen: make([]int32, bucket), models.PackedLastRows: make([]int32, bucket)}
	each := (length + 15) / 16
	for r := range bucket {
		f[models.PackedSlots][r] = -1
		f[models.PackedQOIndptr][r+1], f[models.PackedPageIndptr][r+1] = f[models.PackedQOIndptr][r], f[models.PackedPageIndptr][r]
		if r >= n {
			continue
		}
		for i := range each {
			f[models.PackedPageIndices][r*each+i] = int32(r*each + i)
		}
		f[models.PackedTokens][r], f[models.PackedPositions][r] = int32(r+7), int32(length-1)
		f[models.PackedSlots][r] = int32(r*each*16 + length - 1)
		f[models.PackedQOIndptr][r+1]++
		f[models.PackedPageIndptr][r+1] += int32(each)
		f[models.PackedLastPageLen][r], f[models.PackedLastRows][r] = int32((length+15)%16+1), int32(r)
	}
	feeds := graph.Feeds{}
	for name, v := range f {
		feeds[name] = v
	}
	return feeds
}

// decodeStep compiles a step of decode of a model of 16 small layers; do runs it and gives its logits.
func decodeStep(t *testing.T) (e *Executor, feeds graph.Feeds, do func() []float32) {
	m := tiny(t, func(c *models.Config) {
		c.Hidden, c.FFN, c.Layers, c.Heads, c.KVHeads, c.HeadDim = 512, 1024, 16, 8, 2, 64
	})
	plan, logits := packedPlan(t, m, 8, 8, 64)
	e, err := Compile(plan, Options{Strict: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	feeds = decodeFeeds(8, 8, 100, 64)
	return e, feeds, func() []float32 {
		require.NoError(t, e.Do(context.Background(), feeds))
		v, err := e.Value(logits)
		require.NoError(t, err)
		return graph.Data[float32](v)
	}
}

// Two replays of a captured step have the same bits.
func TestDeviceExecutorReplaysAlike(t *testing.T) {
	device(t)
	_, _, do := decodeStep(t)
	do() // captures
	first := slices.Clone(do())
	require.Equal(t, first, do())
}

// What a replayed step costs the host: the time of Do less the device's own.
func TestDeviceSpeedHost(t *testing.T) {
	speed(t)
	device(t)
	e, feeds, _ := decodeStep(t)
	do := func() { require.NoError(t, e.Do(context.Background(), feeds)) }
	for range 50 {
		do()
	}
	var wall []time.Duration
	for range 300 {
		start := time.Now()
		do()
		wall = append(wall, time.Since(start))
	}
	slices.Sort(wall)
	s := e.unit.dev.Main()
	a, err := e.unit.dev.NewEvent()
	require.NoError(t, err)
	z, err := e.unit.dev.NewEvent()
	require.NoError(t, err)
	require.Len(t, e.segments, 1)
	var device []float64
	for range 100 {
		require.NoError(t, a.Record(s))
		require.NoError(t, s.Send(Pointer{Addr: e.base[e.prog.fed.index]}, e.in, e.prog.fed.bytes))
		require.NoError(t, e.segments[0].graphs[0].Replay(s))
		require.NoError(t, s.Fetch(e.out, e.prog.outputs[0].at, e.prog.outputs[0].bytes()))
		require.NoError(t, z.Record(s))
		ms, err := z.Since(a)
		require.NoError(t, err)
		device = append(device, ms*1e3)
	}
	slices.Sort(device)
	median := float64(wall[len(wall)/2].Nanoseconds()) / 1e3
	fmt.Printf("HOST\tstep of 16 layers, %d launches: Do %.1f us, device %.1f us, beyond the device %.1f us\n", len(e.segments[0].queued), median, device[50], median-device[50])
	require.Less(t, median-device[50], 10.) // measured -5 to 6
	stage := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			if err := e.prog.stage(feeds, e.in.Data); err != nil {
				b.Fatal(err)
			}
		}
	})
	fmt.Printf("HOST\tchecking and staging the feeds %d ns, %d allocations\n", stage.NsPerOp(), stage.AllocsPerOp())
	require.Zero(t, stage.AllocsPerOp())
}

// Executors that share weights run from 64 goroutines and each gets its own results.
func TestDeviceExecutorN13_SixtyFourGoroutines(t *testing.T) {
	device(t)
	m := tiny(t, nil)
	want := logitsOf(t, m, []int32{1, 2, 3, 4}, onCUDA(Options{}))
	var wait sync.WaitGroup
	errs := make([]error, shorter(64, 6))
	for i := range errs {
		wait.Go(func() {
			b := graph.New(graph.Share(m.Params()))
			logits := m.Logits(b, b.Input("tokens", dtype.Int32, 1, 4), models.Dropout{})
			plan, err := b.Plan(logits)
			if err != nil {
				errs[i] = err
				return
			}
			e, err := Compile(plan, Options{})
			if err != nil {
				errs[i] = err
				return
			}
			for range 5 {
				err := e.Do(context.Background(), graph.Feeds{"tokens": []int32{1, 2, 3, 4}})
				v, verr := e.Value(logits)
				if errs[i] = errors.Join(errs[i], err, verr); err == nil && verr == nil && !slices.Equal(want, graph.Data[float32](v)) {
					errs[i] = errors.New("another result")
				}
			}
			errs[i] = errors.Join(errs[i], e.Close())
		})
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
}

// A plan that does not fit says what was asked for and what holds the memory, and gives back what it had taken.
func TestDeviceExecutorOutOfMemory(t *testing.T) {
	device(t)
	u, err := unitOf(0)
	require.NoError(t, err)
	before := u.dev.Stats()
	m, err := models.New(models.Config{Type: "llama", Vocab: 256, Hidden: 4096, FFN: 1 << 26, Layers: 1, Heads: 32, KVHeads: 8, HeadDim: 128, Context: 64, NormEps: 1e-5, RopeTheta: 1e4})
	require.NoError(t, err)
	require.NoError(t, m.Declare())
	for _, p := range m.Params().All() {
		p.Touch()
	}
	plan, _ := packedPlan(t, m, 1, 1, 4)
	_, err = Compile(plan, Options{Strict: true, Random: true})
	require.ErrorContains(t, err, "driver error 2")
	require.ErrorContains(t, err, "bytes are free; held: ")
	require.ErrorContains(t, err, "weight")
	var e *Error
	require.ErrorAs(t, err, &e)
	after := u.dev.Stats()
	require.Equal(t, before.Bytes, after.Bytes, after.String())
	require.Equal(t, before.Pinned, after.Pinned)
}

// A weight that changes is uploaded again; a failed launch ends the executor with the reason.
func TestDeviceExecutorRefreshAndFailure(t *testing.T) {
	device(t)
	m := tiny(t, nil)
	b := graph.New(graph.Share(m.Params()))
	logits := m.Logits(b, b.Input("tokens", dtype.Int32, 1, 4), models.Dropout{})
	plan, err := b.Plan(logits)
	require.NoError(t, err)
	e, err := Compile(plan, Options{})
	require.NoError(t, err)
	feeds := graph.Feeds{"tokens": []int32{1, 2, 3, 4}}
	require.NoError(t, e.Do(context.Background(), feeds))
	p := m.Params().Get("lm_head.weight")
	for i := range graph.Data[float32](p.Tensor()) {
		graph.Data[float32](p.Tensor())[i] = 0
	}
	p.Touch()
	require.NoError(t, e.Do(context.Background(), feeds))
	v, err := e.Value(logits)
	require.NoError(t, err)
	require.Equal(t, make([]float32, 4*256), graph.Data[float32](v))

	done, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, e.Do(done, feeds), context.Canceled)
	require.Error(t, e.Do(context.Background(), graph.Feeds{}))
	require.NoError(t, e.Do(context.Background(), feeds), "bad feeds and a cancelled run leave it usable")

	require.NoError(t, e.segments[0].graphs[0].Close())
	e.segments[0].graphs[0] = nil
	e.segments[0].queued[3].launch.Shared = 1 << 20
	err = e.Do(context.Background(), feeds)
	require.ErrorContains(t, err, "shared memory")
	require.ErrorContains(t, err, e.segments[0].queued[3].launch.Kernel)
	require.ErrorContains(t, e.Do(context.Background(), feeds), "the executor is not usable after a failed run")
	_, err = e.Value(logits)
	require.ErrorContains(t, err, "not usable")
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.ErrorContains(t, e.Do(context.Background(), feeds), "closed")
}
