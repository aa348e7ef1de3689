package cuda

// How streaming kernels cut their work, without a device.

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCutOfStreamedRowsCoversThemOnce(t *testing.T) {
	gpu := Target{SMs: 132}
	for n := 1; n < 140000; n += 1 + n/37 {
		for _, swiglu := range []bool{false, true} {
			for _, alone := range []bool{false, true} {
				c := cutStream(gpu, n, swiglu, alone)
				halves := 1
				if swiglu {
					halves = 2
				}
				tile := c.rows * c.pair / halves
				require.LessOrEqual(t, n, c.owners*c.tiles*tile, "n %d: %+v", n, c)
				require.Greater(t, n, (c.owners-1)*c.tiles*tile, "n %d: the last owner has rows, %+v", n, c)
				require.LessOrEqual(t, c.owners*c.blocks, gpu.SMs, "n %d: one wave, %+v", n, c)
				require.True(t, c.rows%8 == 0 && c.rows <= 64 && c.box <= 256 && c.box*halves == c.rows*c.pair, "n %d: %+v", n, c)
				require.True(t, c.blocks == 2 || alone && c.rows >= 48, "n %d: %+v", n, c)
			}
		}
	}
	require.Equal(t, streamCut{rows: 56, pair: 2, tiles: 1, blocks: 1, owners: 128, box: 112}, cutStream(gpu, 14336, false, true))
}
