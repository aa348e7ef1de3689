// Sessions under many goroutines, and the smallest ones.

package generate

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
)

func crowdModel(t *testing.T) *models.Transformer {
	m, err := models.New(models.Config{Type: "llama", Vocab: 64, Hidden: 16, FFN: 16, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 8, Context: 256, NormEps: 1e-5, RopeTheta: 1e4})
	require.NoError(t, err)
	require.NoError(t, m.Init(7))
	return m
}

// TestACrowdComesAndGoes: 64 goroutines add requests, read them, cancel and
// remove them, their own and others', in the middle of steps. Every text is
// what the request gets alone, and at the end every page is free.
func TestACrowdComesAndGoes(t *testing.T) {
	m := crowdModel(t)
	const length = 40
	want := map[int][]int32{}
	alone, err := New(m, Options{Context: length})
	require.NoError(t, err)
	prompt := func(i int) ([]int32, Sampling) {
		return slices.Repeat([]int32{int32(i), 3, 5}, 1+i)[:1+i*2%38], Sampling{Temperature: 1, TopK: 20, Seed: uint64(i)}
	}
	for i := range 16 {
		p, o := prompt(i)
		r, err := alone.Add(p, o)
		require.NoError(t, err)
		for {
			id, err := r.Next(context.Background())
			if errors.Is(err, ErrContextFull) {
				break
			}
			require.NoError(t, err)
			want[i] = append(want[i], id)
		}
		alone.Remove(r)
	}
	s, err := New(m, Options{Context: length, Requests: 12, PageSize: 4, Chunk: 16})
	require.NoError(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var shared []*Request // that anybody may remove
	for g := range 64 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 9))
			for range 6 {
				i := rnd.IntN(16)
				p, o := prompt(i)
				r, err := s.Add(p, o)
				if errors.Is(err, ErrBusy) {
					time.Sleep(time.Millisecond)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if rnd.IntN(3) == 0 {
					mu.Lock()
					shared = append(shared, r)
					mu.Unlock()
				}
				var got []int32
				for range rnd.IntN(45) {
					ctx, cancel := context.WithCancel(context.Background())
					switch rnd.IntN(5) {
					case 0:
						cancel()
					case 1:
						time.AfterFunc(time.Duration(rnd.IntN(300))*time.Microsecond, cancel)
					case 2:
						mu.Lock()
						if len(shared) > 0 {
							s.Remove(shared[rnd.IntN(len(shared))])
						}
						mu.Unlock()
					}
					id, err := r.Next(ctx)
					cancel()
					if errors.Is(err, context.Canceled) {
						continue
					}
					if err != nil { // removed by another, or full
						break
					}
					got = append(got, id)
					if r.Tokens() != len(p)+len(got) {
						t.Errorf("%d tokens of %d and %d", r.Tokens(), len(p), len(got))
					}
				}
				s.Remove(r)
				s.Remove(r)
				if !slices.Equal(want[i][:len(got)], got) {
					t.Errorf("request %d got %v, alone %v", i, got, want[i])
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.failed)
	require.Empty(t, s.active)
	slices.Sort(s.free)
	free := make([]int32, s.pages())
	for i := range free {
		free[i] = int32(i)
	}
	require.Equal(t, free, s.free, "every page came back, once")
}

// TestALongPromptLetsOthersRead: while a prompt of many chunks is read, a
// request that writes gets a token of every step.
func TestALongPromptLetsOthersRead(t *testing.T) {
	s, err := New(crowdModel(t), Options{Context: 256, Requests: 2, Chunk: 2})
	require.NoError(t, err)
	fast, err := s.Add([]int32{1}, Sampling{})
	require.NoError(t, err)
	slow, err := s.Add(slices.Repeat([]int32{2, 3}, 120), Sampling{})
	require.NoError(t, err)
	steps := 0
	for range 10 {
		_, drawn, err := slow.step(context.Background())
		require.NoError(t, err)
		require.False(t, drawn)
		steps++
		_, err = fast.Next(context.Background())
		require.NoError(t, err)
	}
	require.Equal(t, steps+1, fast.Tokens())
	require.Equal(t, steps, slow.cached)
}

// TestSmallestSessions: a context of one token, prompts that leave room for
// one, pages longer than the context.
func TestSmallestSessions(t *testing.T) {
	m := crowdModel(t)
	s, err := New(m, Options{Context: 1, PageSize: 1, Chunk: 1})
	require.NoError(t, err)
	_, err = s.Add([]int32{1}, Sampling{})
	require.EqualError(t, err, "generate: the context is full: a prompt of 1 tokens, a context of 1")
	for _, o := range []Options{{Context: 3, PageSize: 256}, {Context: 3, PageSize: 1}, {Context: 3, PageSize: 2, Chunk: 1}, {Context: 3, Requests: 5, Chunk: 1}} {
		s, err := New(m, o)
		require.NoError(t, err)
		for range 20 {
			r, err := s.Add([]int32{5, 6}, Sampling{})
			require.NoError(t, err)
			_, err = r.Next(context.Background())
			require.NoError(t, err)
			_, err = r.Next(context.Background())
			require.ErrorIs(t, err, ErrContextFull)
			s.Remove(r)
			require.Len(t, s.free, s.pages())
		}
	}
}

// TestSnapshotAfterACancelledStep: the step has taken a page that holds nothing
// yet.
func TestSnapshotAfterACancelledStep(t *testing.T) {
	s, err := New(crowdModel(t), Options{Context: 20, Requests: 2, PageSize: 1})
	require.NoError(t, err)
	r, err := s.Add([]int32{1, 2, 3}, Sampling{})
	require.NoError(t, err)
	_, err = r.Next(context.Background())
	require.NoError(t, err)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = r.Next(cancelled)
	require.ErrorIs(t, err, context.Canceled)
	snapshot, err := r.Snapshot()
	require.NoError(t, err)
	again, err := s.Restore(snapshot)
	require.NoError(t, err)
	for range 16 {
		want, err := r.Next(context.Background())
		require.NoError(t, err)
		got, err := again.Next(context.Background())
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestACancelledStepIsTakenAgainInParts: requests that came meanwhile take their
// share of the step, so that pages taken for it hold nothing yet.
func TestACancelledStepIsTakenAgainInParts(t *testing.T) {
	o := Options{Context: 64, Requests: 3, PageSize: 4, Chunk: 9, Logprobs: true}
	prompt := make([]int32, 30)
	for i := range prompt {
		prompt[i] = int32(i * i % 50)
	}
	var requests []*Request
	for _, others := range []int{0, 2} {
		s, err := New(crowdModel(t), o)
		require.NoError(t, err)
		r, err := s.Add(prompt, Sampling{})
		require.NoError(t, err)
		if others > 0 {
			cancelled, cancel := context.WithCancel(context.Background())
			cancel()
			_, err = r.Next(cancelled)
			require.ErrorIs(t, err, context.Canceled)
		}
		for range others {
			_, err = s.Add(prompt[:5], Sampling{})
			require.NoError(t, err)
		}
		requests = append(requests, r)
	}
	for range 12 {
		want, err := requests[0].Next(context.Background())
		require.NoError(t, err)
		got, err := requests[1].Next(context.Background())
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, requests[0].Logprob(), requests[1].Logprob())
	}
}

// TestALogitOfNaNEndsItsRequestAlone: others go on beside it, and on its pages.
func TestALogitOfNaNEndsItsRequestAlone(t *testing.T) {
	m := crowdModel(t)
	w := m.Params().Get("model.embed_tokens.weight")
	graph.Data[float32](w.Tensor())[7*16] = float32(math.NaN())
	w.Touch()
	o := Options{Context: 24, Requests: 2, PageSize: 4, Logprobs: true}
	next := func(r *Request) (id int32, logprob float64) {
		id, err := r.Next(context.Background())
		require.NoError(t, err)
		return id, r.Logprob()
	}
	s, err := New(m, o)
	require.NoError(t, err)
	alone, err := New(m, o)
	require.NoError(t, err)
	prompt := []int32{1, 2, 3, 4, 5, 6}
	good, err := s.Add(prompt, Sampling{})
	require.NoError(t, err)
	bad, err := s.Add([]int32{1, 7, 2, 3, 4, 5, 6}, Sampling{})
	require.NoError(t, err)
	const said = "generate: no token can be drawn: a logit is NaN"
	_, err = bad.Next(context.Background())
	require.EqualError(t, err, said)
	_, err = bad.Snapshot()
	require.EqualError(t, err, said)
	s.Remove(bad)
	onItsPages, err := s.Add(prompt[:3], Sampling{})
	require.NoError(t, err)
	for _, x := range []struct {
		r      *Request
		prompt []int32
	}{{good, prompt}, {onItsPages, prompt[:3]}} {
		r, err := alone.Add(x.prompt, Sampling{})
		require.NoError(t, err)
		for range 10 {
			want, logprob := next(r)
			got, p := next(x.r)
			require.Equal(t, want, got)
			require.Equal(t, logprob, p)
		}
	}
	require.NoError(t, s.Close())
	_, err = good.Snapshot()
	require.EqualError(t, err, "generate: the session is closed")
}
