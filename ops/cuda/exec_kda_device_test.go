//go:build gpu

package cuda

// Models with layers of KDA on the device: what a session writes, alone, in company, and with prompts in pieces.

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/generate"
)

func TestDeviceExecutorKDAText(t *testing.T) {
	device(t)
	prompt := make([]int32, 150)
	for i := range prompt {
		prompt[i] = int32(i * i % 251)
	}
	n := shorter(24, 8)
	leave, join := n/5, n/3+1
	for _, d := range []int{32, 64, 128}[:shorter(3, 1)] {
		m := recurrent(t, d)
		plain, err := generate.New(m, generate.Options{})
		require.NoError(t, err)
		want := text(t, plain, prompt, generate.Sampling{}, n)
		for _, dt := range computes {
			s := session(t, m, generate.Options{Requests: 3}, Options{Compute: dt})
			alone := text(t, s, prompt, generate.Sampling{}, n)
			if dt == dtype.Float32 {
				require.Equal(t, want, alone)
				pieces := session(t, m, generate.Options{Chunk: 37}, Options{Compute: dt})
				require.Equal(t, want, text(t, pieces, prompt, generate.Sampling{}, n))
			}
			// In company, a request that begins and goes in between.
			r, err := s.Add(prompt, generate.Sampling{})
			require.NoError(t, err)
			other, err := s.Add(prompt[70:], generate.Sampling{})
			require.NoError(t, err)
			var got []int32
			for i := range n {
				switch i {
				case leave:
					s.Remove(other)
				case join:
					other, err = s.Add(prompt[20:75], generate.Sampling{})
					require.NoError(t, err)
				}
				if i < leave || i >= join {
					_, err = other.Next(context.Background())
					require.NoError(t, err)
				}
				id, err := r.Next(context.Background())
				require.NoError(t, err)
				got = append(got, id)
			}
			require.Equal(t, alone, got, "%s", dt)
			s.Remove(r)
			s.Remove(other)
		}
		fmt.Printf("KDA text\tD %d\tequal to native in f32, alone and in pieces; the same in company in every type\n", d)
	}
}
