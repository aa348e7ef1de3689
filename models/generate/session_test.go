package generate_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/ops/native"
)

func small(t testing.TB, seed uint64) *models.Transformer {
	t.Helper()
	m, err := models.New(models.Config{Type: "llama", Vocab: 256, Hidden: 32, FFN: 48, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 8, Context: 4096, NormEps: 1e-5, RopeTheta: 1e4})
	require.NoError(t, err)
	require.NoError(t, m.Init(seed))
	return m
}

// write returns n tokens of a request, on its own in a session.
func write(t testing.TB, s *generate.Session, prompt []int32, o generate.Sampling, n int) []int32 {
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

// TestFollowReadsOnlyWhatIsNew: turns of a talk give the texts of fresh requests,
// and keep the pages of what they have in common; recurrent states cannot go back.
func TestFollowReadsOnlyWhatIsNew(t *testing.T) {
	llama, _, err := models.Load("../testdata/golden/llama3")
	require.NoError(t, err)
	long, _, err := models.Load("../testdata/variants/longrope")
	require.NoError(t, err)
	for name, m := range map[string]*models.Transformer{"llama3": llama, "longrope": long, "hybrid": hybrid(t, 3, false)} {
		t.Run(name, func(t *testing.T) {
			s, err := generate.New(m, generate.Options{Context: 180, PageSize: 4, Chunk: 16})
			require.NoError(t, err)
			fresh, err := generate.New(m, generate.Options{Context: 180, PageSize: 4, Chunk: 16})
			require.NoError(t, err)
			var r *generate.Request
			var said []int32
			for turn, more := range []int{9, 12, 30, 1, 20} {
				prompt := slices.Clone(said)
				if turn == 3 {
					prompt = prompt[:len(prompt)-7] // the end is another than what was written
				}
				for i := range more {
					prompt = append(prompt, int32((turn*29+i*i*7)%60))
				}
				r, err = s.Follow(r, prompt, generate.Sampling{})
				require.NoError(t, err)
				kept := r.Memory().Pages > 0
				require.Equal(t, turn > 0 && (name == "llama3" || name == "longrope" && (turn < 2 || turn > 2) || name == "hybrid" && turn != 3), kept, "turn %d", turn)
				said = prompt
				var got []int32
				for range 8 {
					id, err := r.Next(context.Background())
					require.NoError(t, err)
					got = append(got, id)
				}
				require.Equal(t, write(t, fresh, prompt, generate.Sampling{}, 8), got, "turn %d", turn)
				said = append(said, got...)
			}
			s.Remove(r)
			_, err = s.Follow(r, []int32{1}, generate.Sampling{}) // as Add: it has ended
			require.NoError(t, err)
		})
	}
}

// TestGoldenGreedyTokens generates through pages what transformers generated,
// with the prompt at once, in chunks, and token by token.
func TestGoldenGreedyTokens(t *testing.T) {
	dirs, err := filepath.Glob("../testdata/[gv]*/*/golden.json") // golden and variants
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for _, golden := range dirs {
		dir := filepath.Dir(golden)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			raw, err := os.ReadFile(golden)
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
			for _, o := range []generate.Options{{Context: 128}, {Context: 128, PageSize: 1, Chunk: 1}, {Context: 100, PageSize: 4, Chunk: 7}} {
				s, err := generate.New(m, o)
				require.NoError(t, err)
				for _, p := range g.Prompts {
					for _, margin := range p.Greedy.Margins {
						require.Greater(t, margin, 1e-3, "no step of the golden text is a near-tie")
					}
					require.Equal(t, p.Greedy.Tokens, write(t, s, p.InputIDs, generate.Sampling{}, len(p.Greedy.Tokens)))
				}
			}
		})
	}
}

// TestYarnReachesWhatItStretches: a config with yarn that was left with the original
// length writes beyond it, as one that names the longer length.
func TestYarnReachesWhatItStretches(t *testing.T) {
	var texts [2][]int32
	for i, context := range []int{32, 128} {
		m, err := models.New(models.Config{Type: "llama", Vocab: 64, Hidden: 32, FFN: 48, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 16, Context: context, NormEps: 1e-5, RopeTheta: 1e4,
			RopeScale: native.RotaryScaling{Type: "yarn", Factor: 4, OriginalPositions: 32, ModelPositions: context}})
		require.NoError(t, err)
		require.NoError(t, m.Init(3))
		_, longest, _ := m.Limits()
		require.Equal(t, 128, longest)
		s, err := generate.New(m, generate.Options{})
		require.NoError(t, err)
		texts[i] = write(t, s, []int32{1, 2, 3, 4}, generate.Sampling{Temperature: 1, Seed: 5}, 120)
	}
	require.Equal(t, texts[1], texts[0])
}

// TestA13_ChunksOfAPrompt holds prompts in any chunks to one text.
func TestA13_ChunksOfAPrompt(t *testing.T) {
	m := small(t, 1)
	prompt := []int32{5, 200, 31, 7, 9, 11, 250, 3, 3, 3, 90, 91, 92}
	o := generate.Sampling{Temperature: 1, TopK: 50, Seed: 9}
	var want []int32
	for _, chunk := range []int{13, 5, 1} {
		s, err := generate.New(m, generate.Options{Context: 200, Chunk: chunk, PageSize: 4})
		require.NoError(t, err)
		got := write(t, s, prompt, o, 40)
		if want == nil {
			want = got
		}
		require.Equal(t, want, got, "chunks of %d", chunk)
	}
}

// TestPanelsChangeNoText compares sessions that read weights in 16 bits where they
// lie and in the order of the read.
func TestPanelsChangeNoText(t *testing.T) {
	m, err := models.New(models.Config{Type: "llama", Vocab: 256, Hidden: 64, FFN: 96, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Context: 64, NormEps: 1e-5, RopeTheta: 1e4, Tied: true})
	require.NoError(t, err)
	require.NoError(t, m.Init(3))
	dir := t.TempDir()
	require.NoError(t, m.Save(dir, models.As(dtype.BFloat16)))
	for _, compute := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		var logs [2][]float64
		for i, inPlace := range []bool{true, false} {
			o, err := models.Open(dir)
			require.NoError(t, err)
			s, err := generate.New(o, generate.Options{InPlace: inPlace, Logprobs: true, Compute: compute})
			require.NoError(t, err)
			r, err := s.Add([]int32{1, 2, 3, 4, 5, 6, 7}, generate.Sampling{})
			require.NoError(t, err)
			for range 40 {
				id, err := r.Next(context.Background())
				require.NoError(t, err)
				logs[i] = append(logs[i], float64(id), r.Logprob())
			}
			require.NoError(t, o.Close())
		}
		require.Equal(t, logs[0], logs[1])
	}
}

// TestChunksInBF16 holds the text of products in bf16 to one, and near that of
// float32.
func TestChunksInBF16(t *testing.T) {
	m := small(t, 1)
	prompt := []int32{5, 200, 31, 7, 9, 11, 250, 3, 3, 3, 90, 91, 92}
	text := func(o generate.Options) []int32 {
		o.Context = 200
		return write(t, must(generate.New(m, o)), prompt, generate.Sampling{Temperature: 1, Seed: 9}, 40)
	}
	want := text(generate.Options{Compute: dtype.BFloat16})
	for _, chunk := range []int{5, 1} {
		require.Equal(t, want, text(generate.Options{Compute: dtype.BFloat16, Chunk: chunk}), "chunks of %d", chunk)
	}
	same := 0
	for i, id := range text(generate.Options{}) {
		if want[i] == id {
			same++
		}
	}
	require.Greater(t, same, 30)
	_, err := generate.New(m, generate.Options{Compute: dtype.Int32})
	require.EqualError(t, err, "generate: Compute must be float32 or bfloat16, got int32")
}

// TestNarrowCache holds the text over keys and values in 16 bits to one, near that
// of float32, in half the memory.
func TestNarrowCache(t *testing.T) {
	m := small(t, 1)
	prompt := []int32{5, 200, 31, 7, 9, 11, 250, 3, 3, 3, 90, 91, 92}
	draws := generate.Sampling{Temperature: 1, Seed: 9}
	text := func(o generate.Options) []int32 {
		o.Context = 200
		return write(t, must(generate.New(m, o)), prompt, draws, 40)
	}
	want := text(generate.Options{})
	require.Equal(t, want, text(generate.Options{Cache: dtype.Float32}))
	for _, dt := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		got := text(generate.Options{Cache: dt})
		same := 0
		for i, id := range got {
			if want[i] == id {
				same++
			}
		}
		require.Greater(t, same, 30)
		require.Equal(t, got, text(generate.Options{Cache: dt, Chunk: 5}), "chunks")
	}
	session := func(dt dtype.DType) *generate.Session {
		return must(generate.New(m, generate.Options{Context: 200, Cache: dt}))
	}
	request := func(s *generate.Session) *generate.Request {
		r, err := s.Add(prompt, draws)
		require.NoError(t, err)
		_, err = r.Next(context.Background())
		require.NoError(t, err)
		return r
	}
	wide, narrow := request(session(dtype.Float32)), request(session(dtype.Float16))
	require.Equal(t, wide.Memory().Pages, 2*narrow.Memory().Pages)
	n, err := narrow.Snapshot()
	require.NoError(t, err)
	_, err = session(dtype.BFloat16).Restore(n)
	require.EqualError(t, err, "generate: the snapshot keeps keys and values in another type than the session")
	_, err = generate.New(m, generate.Options{Cache: dtype.Int32})
	require.EqualError(t, err, "generate: Cache must be float32, float16 or bfloat16, got int32")
}

// TestBatchDoesNotChangeAText runs requests together, coming and going, and
// alone.
func TestBatchDoesNotChangeAText(t *testing.T) {
	m := small(t, 2)
	options := func(i int) ([]int32, generate.Sampling) {
		prompt := make([]int32, 1+i*7)
		for j := range prompt {
			prompt[j] = int32((i*31 + j*17) % 256)
		}
		return prompt, generate.Sampling{Temperature: 0.8, TopP: 0.9, Seed: uint64(i), RepetitionPenalty: 1.1}
	}
	const texts, length = 6, 30
	alone, err := generate.New(m, generate.Options{Context: 100})
	require.NoError(t, err)
	var want [texts][]int32
	for i := range texts {
		prompt, o := options(i)
		want[i] = write(t, alone, prompt, o, length)
	}
	s, err := generate.New(m, generate.Options{Context: 100, Requests: texts, Chunk: 16, PageSize: 8})
	require.NoError(t, err)
	var wg sync.WaitGroup
	var got [texts][]int32
	for i := range texts {
		wg.Add(1)
		go func() {
			defer wg.Done()
			prompt, o := options(i)
			got[i] = write(t, s, prompt, o, length)
		}()
	}
	wg.Wait()
	require.Equal(t, want, got)
}

// TestA15_FullContext ends with an error of its own kind and overwrites
// nothing: another text in the session stays what it is alone.
func TestA15_FullContext(t *testing.T) {
	m := small(t, 3)
	s, err := generate.New(m, generate.Options{Context: 20, PageSize: 8, Requests: 2})
	require.NoError(t, err)
	other, err := s.Add([]int32{1, 2, 3}, generate.Sampling{})
	require.NoError(t, err)
	r, err := s.Add([]int32{1, 2, 3, 4}, generate.Sampling{})
	require.NoError(t, err)
	for range 16 {
		_, err := r.Next(context.Background())
		require.NoError(t, err)
	}
	require.Equal(t, 20, r.Tokens())
	for range 2 {
		_, err = r.Next(context.Background())
		require.ErrorIs(t, err, generate.ErrContextFull)
		require.EqualError(t, err, "generate: the context is full: 20 tokens")
	}
	var got []int32
	for range 17 {
		id, err := other.Next(context.Background())
		require.NoError(t, err)
		got = append(got, id)
	}
	alone, err := generate.New(m, generate.Options{Context: 20})
	require.NoError(t, err)
	require.Equal(t, write(t, alone, []int32{1, 2, 3}, generate.Sampling{}, 17), got)
	_, err = s.Add(make([]int32, 20), generate.Sampling{})
	require.EqualError(t, err, "generate: the context is full: a prompt of 20 tokens, a context of 20")
}

func TestBadRequests(t *testing.T) {
	m := small(t, 3)
	s, err := generate.New(m, generate.Options{Context: 20})
	require.NoError(t, err)
	_, err = s.Add(nil, generate.Sampling{})
	require.EqualError(t, err, "generate: the prompt has no tokens")
	_, err = s.Add([]int32{4, 256}, generate.Sampling{})
	require.EqualError(t, err, "generate: token 1 of the prompt is 256, the vocabulary has 256")
	for want, o := range map[string]generate.Sampling{
		"generate: temperature must be 0 or above, got -1":              {Temperature: -1},
		"generate: temperature must be 0 or above, got NaN":             {Temperature: math.NaN()},
		"generate: temperature must be 0 or above, got +Inf":            {Temperature: math.Inf(1)},
		"generate: top-k must be 0 (all) or above, got -3":              {TopK: -3},
		"generate: top-p must be 0 to 1, got 1.5":                       {TopP: 1.5},
		"generate: min-p must be 0 to 1, got -0.1":                      {MinP: -0.1},
		"generate: repetition penalty must be 0 (off) or above, got -2": {RepetitionPenalty: -2},
	} {
		_, err := s.Add([]int32{1}, o)
		require.EqualError(t, err, want)
		var p *generate.ParamError
		require.True(t, errors.As(err, &p))
	}
	for want, o := range map[string]generate.Options{
		"generate: PageSize must be a power of two, got 3": {PageSize: 3},
		"generate: Context must be 1 to 4096, got 5000":    {Context: 5000},
		"generate: Requests must be 1 to 65536, got -1":    {Requests: -1},
	} {
		_, err := generate.New(m, o)
		require.EqualError(t, err, want)
	}
	r, err := s.Add([]int32{1}, generate.Sampling{})
	require.NoError(t, err)
	_, err = s.Add([]int32{1}, generate.Sampling{})
	require.ErrorIs(t, err, generate.ErrBusy)
	require.ErrorContains(t, err, "most requests, 1 by Options.Requests")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = r.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	want := write(t, must(generate.New(m, generate.Options{Context: 20})), []int32{1}, generate.Sampling{}, 1)
	id, err := r.Next(context.Background())
	require.NoError(t, err, "a cancelled step can be taken again")
	require.Equal(t, want[0], id)
	s.Remove(r)
	_, err = r.Next(context.Background())
	require.EqualError(t, err, "generate: the request was removed")
	none, err := models.New(m.Config)
	require.NoError(t, err)
	_, err = generate.New(none, generate.Options{})
	require.ErrorContains(t, err, "parameter model.embed_tokens.weight has no value")
}

// TestTheSmallestTopPIsNotOff: it leaves the likeliest token, below float32 too.
func TestTheSmallestTopPIsNotOff(t *testing.T) {
	s := must(generate.New(small(t, 3), generate.Options{Context: 64}))
	want := write(t, s, []int32{1, 2, 3}, generate.Sampling{}, 30)
	for _, p := range []float64{1e-4, 1e-60, math.SmallestNonzeroFloat64} {
		require.Equal(t, want, write(t, s, []int32{1, 2, 3}, generate.Sampling{Temperature: 5, TopP: p, Seed: 1}, 30))
	}
	require.NotEqual(t, want, write(t, s, []int32{1, 2, 3}, generate.Sampling{Temperature: 5, Seed: 1}, 30))
}

func must(s *generate.Session, err error) *generate.Session {
	if err != nil {
		panic(err)
	}
	return s
}

// TestN09_MemoryStaysFlat decodes 2,000 tokens: no allocation a token, and the
// heap at 2,000 is that at 200.
func TestN09_MemoryStaysFlat(t *testing.T) {
	s, err := generate.New(small(t, 4), generate.Options{})
	require.NoError(t, err)
	r, err := s.Add([]int32{1, 2, 3}, generate.Sampling{Temperature: 1, TopK: 40, TopP: 0.9, Seed: 1})
	require.NoError(t, err)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var at200 uint64
	for n := 1; n <= 2000; n++ {
		_, err := r.Next(context.Background())
		require.NoError(t, err)
		if n == 200 {
			at200 = heap()
		}
	}
	require.Less(t, float64(heap()), 1.05*float64(at200))
}

func TestTextStopsAndStreams(t *testing.T) {
	m := small(t, 5)
	tok := tokenizer.Byte()
	prompt := []int32{72, 101}
	read := func(o generate.TextOptions, c int) (string, generate.Token) {
		s, err := generate.New(m, generate.Options{Context: c})
		require.NoError(t, err)
		var sb strings.Builder
		var last generate.Token
		for token, err := range s.Text(context.Background(), tok, prompt, o) {
			require.NoError(t, err)
			require.True(t, utf8.ValidString(token.Text), "whole characters only: %q", token.Text)
			sb.WriteString(token.Text)
			last = token
		}
		return sb.String(), last
	}
	o := generate.TextOptions{Sampling: generate.Sampling{Temperature: 1, Seed: 4}, Max: 60}
	whole, last := read(o, 100)
	require.Equal(t, "length", last.End)
	stop := []rune(whole)
	o.Stop = []string{"never in it, I hope", string(stop[10:13])}
	cut, last := read(o, 100)
	require.Equal(t, "stop", last.End)
	require.Equal(t, whole[:strings.Index(whole, o.Stop[1])], cut)
	o.Stop, o.Max = nil, 0
	_, last = read(o, 30)
	require.Equal(t, "context", last.End)
	first := write(t, must(generate.New(m, generate.Options{Context: 30})), prompt, o.Sampling, 3)
	o.StopTokens = first[2:]
	text, last := read(o, 30)
	require.Equal(t, "stop", last.End)
	require.Equal(t, strings.ToValidUTF8(tok.Decode(first[:2], true), "\uFFFD"), text)
}

// TestLogprobsAreTheModels: of every token the log-softmax of its logits, and
// asking changes no text.
func TestLogprobsAreTheModels(t *testing.T) {
	m, prompt, o := small(t, 4), []int32{1, 2, 3, 4, 5}, generate.Sampling{Temperature: 1.5, TopK: 20, RepetitionPenalty: 1.3, Seed: 3}
	plain, err := generate.New(m, generate.Options{Context: 64})
	require.NoError(t, err)
	want := write(t, plain, prompt, o, 12)
	s, err := generate.New(m, generate.Options{Context: 64, Chunk: 2, Logprobs: true})
	require.NoError(t, err)
	r, err := s.Add(prompt, o)
	require.NoError(t, err)
	require.Zero(t, r.Logprob())
	all := append([]int32(nil), prompt...)
	for i := range want {
		b := graph.New(graph.Share(m.Params()))
		logits := m.Logits(b, b.Input("tokens", dtype.Int32, 1, len(all)), models.Dropout{})
		plan, err := b.Plan(logits)
		require.NoError(t, err)
		run, err := plan.Native()
		require.NoError(t, err)
		require.NoError(t, run.Do(context.Background(), graph.Feeds{"tokens": all}))
		v, err := run.Value(logits)
		require.NoError(t, err)
		z := graph.Data[float32](v)
		z = z[len(z)-256:]
		sum := 0.0
		for _, x := range z {
			sum += math.Exp(float64(x))
		}
		id, err := r.Next(context.Background())
		require.NoError(t, err)
		require.Equal(t, want[i], id)
		require.InDelta(t, float64(z[id])-math.Log(sum), r.Logprob(), 1e-5)
		all = append(all, id)
		if i == 5 { // a snapshot keeps them
			n, err := r.Snapshot()
			require.NoError(t, err)
			last := r.Logprob()
			s.Remove(r)
			r, err = s.Restore(n)
			require.NoError(t, err)
			require.Equal(t, last, r.Logprob())
		}
	}
}
