//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package train

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneRunAFolder(t *testing.T) {
	o := testOptions(2, 8)
	var first, second *run
	first = newRun(t, o, Random, Dir(t.TempDir()), Each(func(m Metric) {
		if m.Step == 10 {
			want := first.dir + ": must not be written to by another run: it is locked"
			require.EqualError(t, second.Resume(), "train: resume: "+want)
			_, err := second.Run(context.Background())
			require.EqualError(t, err, "train: "+want)
		}
	}))
	second = newRun(t, o, Random, Dir(first.dir))
	_, err := first.Run(context.Background())
	require.NoError(t, err)
	require.NoError(t, second.Resume())
}
