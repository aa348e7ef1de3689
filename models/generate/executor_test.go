package generate_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/generate"
)

// spy is an executor that counts what a session asks of it.
type spy struct {
	graph.Executor
	runs   *int
	closed *int
	fail   bool
}

func (s *spy) Do(ctx context.Context, f graph.Feeds) error {
	if *s.runs++; s.fail {
		return errors.New("the device is gone")
	}
	return s.Executor.Do(ctx, f)
}

func (s *spy) Close() error { *s.closed++; return nil }

// A session on another executor writes the same text, and closes what it made.
func TestSessionRunsOnTheGivenExecutor(t *testing.T) {
	m := small(t, 3)
	prompt := []int32{1, 2, 3, 4, 5, 6, 7}
	plain, err := generate.New(m, generate.Options{Context: 64, Chunk: 4})
	require.NoError(t, err)
	want := write(t, plain, prompt, generate.Sampling{}, 20)

	made, runs, closed := 0, 0, 0
	s, err := generate.New(m, generate.Options{Context: 64, Chunk: 4, Compile: func(p *graph.Plan) (graph.Executor, error) {
		made++
		run, err := p.Native()
		return &spy{run, &runs, &closed, false}, err
	}})
	require.NoError(t, err)
	require.Equal(t, want, write(t, s, prompt, generate.Sampling{}, 20))
	require.Equal(t, 21, runs, "two chunks of the prompt and 19 tokens")
	require.Equal(t, 2, made, "steps of one token and of four")
	require.NoError(t, s.Close())
	require.Equal(t, made, closed)
	_, err = s.Add(prompt, generate.Sampling{})
	require.EqualError(t, err, "generate: the session is closed")

	s, err = generate.New(m, generate.Options{Context: 64, Compile: func(p *graph.Plan) (graph.Executor, error) {
		run, err := p.Native()
		return &spy{run, &runs, &closed, true}, err
	}})
	require.NoError(t, err)
	r, err := s.Add(prompt, generate.Sampling{})
	require.NoError(t, err)
	for range 2 { // it does not go on after a failure
		_, err = r.Next(context.Background())
		require.EqualError(t, err, "generate: a step failed, the session is over: the device is gone")
	}
	_, err = generate.New(m, generate.Options{Compile: func(*graph.Plan) (graph.Executor, error) { return nil, errors.New("no device") }})
	require.EqualError(t, err, "generate: no device")
}
