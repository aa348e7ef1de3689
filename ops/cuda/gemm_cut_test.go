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
			for _, many := range []streamForm{inTurns, inHalves, alone} {
				c := cutStream(gpu, n, swiglu, many)
				halves := 1
				if swiglu {
					halves = 2
				}
				tile := c.rows * c.pair / halves
				require.LessOrEqual(t, n, c.owners*c.tiles*tile, "n %d: %+v", n, c)
				require.Greater(t, n, (c.owners-1)*c.tiles*tile, "n %d: the last owner has rows, %+v", n, c)
				require.LessOrEqual(t, c.owners*c.blocks, gpu.SMs, "n %d: one wave, %+v", n, c)
				require.True(t, c.rows%8 == 0 && c.rows <= 64 && c.box <= 256 && c.box*halves == c.rows*c.pair, "n %d: %+v", n, c)
				require.True(t, c.form == inTurns || c.form == many, "n %d: %+v", n, c)
				require.True(t, c.form != alone || c.rows >= 48, "n %d: %+v", n, c)
				require.True(t, c.form == inTurns || c.pair%2 == 0 && c.box == c.rows*c.pair/halves, "n %d: %+v", n, c)
			}
		}
	}
	require.Equal(t, streamCut{form: alone, rows: 56, pair: 2, tiles: 1, blocks: 1, owners: 128, box: 112}, cutStream(gpu, 14336, false, alone))
	require.Equal(t, streamCut{form: inHalves, rows: 56, pair: 4, tiles: 1, blocks: 2, owners: 64, box: 224}, cutStream(gpu, 14336, false, inHalves))
	require.Equal(t, streamCut{rows: 64, pair: 1, tiles: 1, blocks: 2, owners: 64, box: 64}, cutStream(gpu, 4096, false, inHalves))
}

func TestTilesOfManyRowsWasteLittle(t *testing.T) {
	all := []int{240, 224}
	for _, c := range []struct {
		m, n     int
		narrower []int
		swiglu   bool
		want     string
		width    int
	}{
		{256, 14336, all, false, "224_pair", 224}, {256, 14336, nil, false, "256_pair", 256}, {1024, 14336, all, false, "224_pair", 224}, {256, 14336, nil, true, "256_pair", 256},
		{2048, 14336, all, false, "256_pair", 256}, {8192, 8192, all, false, "256_pair", 256}, {256, 4096, all, false, "128", 128},
		{8192, 2816, all, false, "240_pair", 240}, {8192, 2816, []int{224}, false, "256_pair", 256},
	} {
		name, width, _, _ := wgmmaTiles(132, c.m, c.n, c.narrower, c.swiglu)
		require.Equal(t, c.want, name, "%+v", c)
		require.Equal(t, c.width, width, "%+v", c)
	}
}
