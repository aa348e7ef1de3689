package generate_test

import (
	"context"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/ops"
)

// hybrid is a small Kimi Linear with experts, or with KDA layers alone.
func hybrid(t testing.TB, seed uint64, deltaAlone bool) *models.Transformer {
	t.Helper()
	c := models.Config{
		Vocab: 256, Hidden: 32, FFN: 48, Layers: 4, Heads: 2, Context: 1 << 15,
		Latent:  &models.Latent{KVRank: 12, Nope: 8, Rope: 4, V: 10},
		Delta:   &models.Delta{Heads: 2, HeadDim: 16, Width: 4, Layers: []bool{true, true, true, deltaAlone}},
		Experts: &models.Experts{Router: ops.Router{Experts: 4, TopK: 2, Sigmoid: true, Renormalize: true}, FFN: 8, Bias: true, Dense: make([]bool, 4)},
	}
	m, err := models.KimiLinear(c)
	require.NoError(t, err)
	require.NoError(t, m.Init(seed))
	// Start far from even, so that texts differ.
	for _, p := range m.Params().All() {
		w := graph.Data[float32](p.Tensor())
		if p.Type.Rank() == 2 {
			for i := range w {
				w[i] *= 8
			}
		}
		p.Touch()
	}
	return m
}

// TestHybridTexts holds a text to one: however its prompt is cut, in a slot that
// another request has left, and beside others that come and go.
func TestHybridTexts(t *testing.T) {
	prompt := func(i int) []int32 {
		p := make([]int32, 3+i*23)
		for j := range p {
			p[j] = int32((i*31 + j*j*17) % 256)
		}
		return p
	}
	for _, deltaAlone := range []bool{false, true} {
		m := hybrid(t, 3, deltaAlone)
		const texts, length = 4, 25
		var want [texts][]int32
		for n, chunk := range []int{256, 7, 1} {
			s := must(generate.New(m, generate.Options{Context: 200, Chunk: chunk, PageSize: 4}))
			for i := range texts { // one after the other in one slot
				got := write(t, s, prompt(i), generate.Sampling{}, length)
				if n == 0 {
					want[i] = got
				}
				require.Equal(t, want[i], got, "text %d in chunks of %d", i, chunk)
			}
		}
		require.NotEqual(t, want[0], want[1])

		s := must(generate.New(m, generate.Options{Context: 200, Requests: 3, Chunk: 16, PageSize: 8}))
		ctx := context.Background()
		var got [texts][]int32
		active := map[int]*generate.Request{}
		for next := 0; next < texts || len(active) > 0; {
			if next < texts && len(active) < 3 {
				r, err := s.Add(prompt(next), generate.Sampling{})
				require.NoError(t, err)
				active[next] = r
				next++
			}
			for i, r := range active {
				id, err := r.Next(ctx)
				require.NoError(t, err)
				if got[i] = append(got[i], id); len(got[i]) == length {
					s.Remove(r)
					delete(active, i)
				}
			}
		}
		require.Equal(t, want, got)
	}
}

// TestHybridCancel: a step that was never begun can be taken, with the same
// text: no state has moved.
func TestHybridCancel(t *testing.T) {
	m := hybrid(t, 4, false)
	s := must(generate.New(m, generate.Options{Context: 100}))
	want := write(t, s, []int32{1, 2, 3}, generate.Sampling{}, 12)
	r, err := s.Add([]int32{1, 2, 3}, generate.Sampling{})
	require.NoError(t, err)
	for _, id := range want {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := r.Next(ctx)
		require.ErrorIs(t, err, context.Canceled)
		got, err := r.Next(context.Background())
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
}

// TestN09_HybridMemoryStaysFlat decodes 10,000 tokens with KDA layers alone: the
// heap is that at 100 tokens, and a token allocates nothing.
func TestN09_HybridMemoryStaysFlat(t *testing.T) {
	s := must(generate.New(hybrid(t, 5, true), generate.Options{}))
	r, err := s.Add([]int32{1, 2, 3}, generate.Sampling{})
	require.NoError(t, err)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	ctx := context.Background()
	var at100 uint64
	for n := 1; n <= 10000; n++ {
		_, err := r.Next(ctx)
		require.NoError(t, err)
		if n == 100 {
			at100 = heap()
		}
	}
	end := heap()
	t.Logf("heap %d bytes at 100 tokens, %d at 10,000", at100, end)
	require.Less(t, float64(end), 1.01*float64(at100))
	require.Zero(t, testing.AllocsPerRun(50, func() {
		if _, err := r.Next(ctx); err != nil {
			panic(err)
		}
	}))
}

// TestSnapshot: a text goes on the same from a copy, in the session it came
// from, beside it, and in another one.
func TestSnapshot(t *testing.T) {
	for _, m := range []*models.Transformer{small(t, 6), hybrid(t, 6, false), hybrid(t, 6, true)} {
		o := generate.Sampling{Temperature: 0.9, TopK: 50, Seed: 3, RepetitionPenalty: 1.2}
		s := must(generate.New(m, generate.Options{Context: 100, Requests: 2, PageSize: 4}))
		r, err := s.Add([]int32{1, 2, 3, 4, 5}, o)
		require.NoError(t, err)
		next := func(r *generate.Request, n int) (ids []int32) {
			for range n {
				id, err := r.Next(context.Background())
				require.NoError(t, err)
				ids = append(ids, id)
			}
			return ids
		}
		next(r, 13)
		snapshot, err := r.Snapshot()
		require.NoError(t, err)
		copied, err := s.Restore(snapshot)
		require.NoError(t, err)
		_, err = s.Restore(snapshot)
		require.ErrorIs(t, err, generate.ErrBusy)
		want := next(r, 20)
		require.Equal(t, want, next(copied, 20))
		s.Remove(r)
		s.Remove(copied)
		again, err := s.Restore(snapshot)
		require.NoError(t, err)
		require.Equal(t, want, next(again, 20))
		other := must(generate.New(m, generate.Options{Context: 60, PageSize: 4}))
		moved, err := other.Restore(snapshot)
		require.NoError(t, err)
		require.Equal(t, want, next(moved, 20))

		_, err = must(generate.New(m, generate.Options{Context: 60, PageSize: 8})).Restore(snapshot)
		require.EqualError(t, err, "generate: the snapshot has pages of 4 tokens, the session of 8")
		_, err = must(generate.New(m, generate.Options{Context: 17, PageSize: 4})).Restore(snapshot)
		require.EqualError(t, err, "generate: the context is full: a snapshot of 18 tokens, a context of 17")
		s.Remove(again)
		_, err = again.Snapshot()
		require.EqualError(t, err, "generate: the request was removed")
	}
	s := must(generate.New(small(t, 6), generate.Options{Context: 100, PageSize: 4}))
	r, err := s.Add([]int32{1}, generate.Sampling{})
	require.NoError(t, err)
	_, err = r.Next(context.Background())
	require.NoError(t, err)
	snapshot, err := r.Snapshot()
	require.NoError(t, err)
	_, err = must(generate.New(hybrid(t, 6, false), generate.Options{Context: 100, PageSize: 4})).Restore(snapshot)
	require.ErrorContains(t, err, "generate: the snapshot is of another model: ")
}

// TestMemory: states stay, pages grow.
func TestMemory(t *testing.T) {
	s := must(generate.New(hybrid(t, 7, false), generate.Options{Context: 100, Requests: 2, PageSize: 4}))
	r, err := s.Add([]int32{1, 2, 3}, generate.Sampling{})
	require.NoError(t, err)
	at := func(n int) generate.Memory {
		for r.Tokens() < n {
			_, err := r.Next(context.Background())
			require.NoError(t, err)
		}
		return r.Memory()
	}
	const states = 3 * (3*32*3 + 2*16*16) * 4 // convolutions of q, k and v, and the matrices of two heads
	const token = (12 + 4 + 12) * 4           // a latent with the shared part of keys, and the latent as values
	require.Equal(t, generate.Memory{States: states, Pages: 4 * token}, at(4))
	require.Equal(t, generate.Memory{States: states, Pages: 52 * token}, at(53))
}

// TestHybridWithAdapters: an adapter of the matrix that expands latents is not
// passed by when queries meet the latents themselves.
func TestHybridWithAdapters(t *testing.T) {
	prompt := []int32{9, 8, 7, 6, 5}
	m := hybrid(t, 8, false)
	plain := write(t, must(generate.New(m, generate.Options{Context: 60})), prompt, generate.Sampling{}, 30)
	ad, err := m.Adapt(models.LoRA{Rank: 4, Alpha: 8, Targets: []string{"kv_b_proj", "q_proj"}}, 1)
	require.NoError(t, err)
	for _, p := range ad.Params().All() {
		if !p.Frozen {
			w := graph.Data[float32](p.Tensor())
			for i := range w {
				w[i] += float32(i%5-2) / 4
			}
			p.Touch()
		}
	}
	merged, err := ad.Merge()
	require.NoError(t, err)
	want := write(t, must(generate.New(merged, generate.Options{Context: 60})), prompt, generate.Sampling{}, 30)
	require.NotEqual(t, plain, want)
	require.Equal(t, want, write(t, must(generate.New(ad, generate.Options{Context: 60})), prompt, generate.Sampling{}, 30))
}

// TestADecayOfNaNEndsItsRequestAlone: what a token makes of the log-decay of KDA
// layers is told to its request. Others in the same steps, and the next one in its
// slot, have the bits that they have beside a good token.
func TestADecayOfNaNEndsItsRequestAlone(t *testing.T) {
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(i * i % 50)
	}
	const bad, good = 200, 201
	type drawn struct {
		id      int32
		logprob float64
	}
	for _, deltaAlone := range []bool{false, true} {
		m := hybrid(t, 3, deltaAlone)
		table := m.Params().Get("model.embed_tokens.weight")
		graph.Data[float32](table.Tensor())[bad*32+3] = float32(math.NaN())
		table.Touch()
		// The token is all there is of a prompt, or stands in the first chunk of many.
		for _, before := range []int{1, 37} {
			beside := func(token int32) (all []drawn) {
				s := must(generate.New(m, generate.Options{Context: 100, Requests: 3, Chunk: 16, PageSize: 4, Logprobs: true}))
				add := func(p []int32) *generate.Request {
					r, err := s.Add(p, generate.Sampling{})
					require.NoError(t, err)
					return r
				}
				others := []*generate.Request{add(prompt[:37]), add(prompt[9:10])}
				next := func() {
					for _, r := range others {
						id, err := r.Next(context.Background())
						require.NoError(t, err)
						all = append(all, drawn{id, r.Logprob()})
					}
				}
				one := add(append([]int32{token}, prompt[1:before]...))
				_, err := one.Next(context.Background())
				if token == bad {
					for range 2 {
						require.EqualError(t, err, "generate: no token can be drawn: a logit is NaN")
						_, err = one.Next(context.Background())
					}
				} else {
					require.NoError(t, err)
				}
				for range 12 {
					next()
				}
				s.Remove(one)
				others = append(others, add(prompt))
				for range 12 {
					next()
				}
				return all
			}
			require.Equal(t, beside(good), beside(bad))
		}
	}
}
