package models_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
)

// TestBlocksOfGptOss: stacks in MXFP4 are those whose numbers are written out, held
// in bfloat16, and saved as such.
func TestBlocksOfGptOss(t *testing.T) {
	values := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	mxfp4 := func(c map[string]any) { c["quantization_config"] = map[string]any{"quant_method": "mxfp4"} }
	change := func(blocks bool) func(e checkpoint.Entry) []checkpoint.Entry {
		return func(e checkpoint.Entry) []checkpoint.Entry {
			if !strings.HasSuffix(e.Name, "gate_up_proj") && !strings.HasSuffix(e.Name, "down_proj") {
				return []checkpoint.Entry{e}
			}
			n, in, out := e.Shape[0], e.Shape[1], e.Shape[2]
			codes, scales, wide := make([]uint8, n*out*in/2), make([]uint8, n*out*in/32), make([]float32, n*in*out)
			for i := range scales {
				scales[i] = uint8(121 + i*i%7)
			}
			for i := range codes {
				codes[i] = uint8(i * i * 37)
				for half, code := range []uint8{codes[i] & 15, codes[i] >> 4} {
					at := 2*i + half // [E,out,in]
					v := values[code&7] * float32(math.Pow(2, float64(scales[at/32])-127))
					if code > 7 {
						v = -v
					}
					wide[at/(in*out)*in*out+at%in*out+at/in%out] = v
				}
			}
			if blocks {
				return []checkpoint.Entry{checkpoint.Values(e.Name+"_blocks", codes, n, out, in/32, 16), checkpoint.Values(e.Name+"_scales", scales, n, out, in/32)}
			}
			return []checkpoint.Entry{checkpoint.Rounded(e.Name, dtype.BFloat16, wide, n, in, out)}
		}
	}
	want, err := models.Open(altered(t, "gpt_oss", each(change(false)), nil))
	require.NoError(t, err)
	dir := altered(t, "gpt_oss", each(change(true)), mxfp4)
	got, err := models.Open(dir)
	require.NoError(t, err)
	require.Equal(t, want.Config, got.Config)
	for i, p := range want.Params().All() {
		require.Equal(t, p.Type, got.Params().All()[i].Type)
		require.Equal(t, p.Tensor().Bytes(), got.Params().All()[i].Tensor().Bytes(), p.Name)
	}
	wide, _, err := models.Load(dir)
	require.NoError(t, err)
	ids := []int32{1, 5, 9, 2, 7, 33}
	require.Equal(t, runLogits(t, want.Transformer, ids), runLogits(t, wide, ids))

	lost := altered(t, "gpt_oss", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if es := change(true)(e); len(es) == 2 {
			return es[:1]
		}
		return []checkpoint.Entry{e}
	}), mxfp4)
	_, err = models.Open(lost)
	require.ErrorContains(t, err, "missing tensors: model.layers.0.mlp.experts.gate_up_proj, model.layers.0.mlp.experts.down_proj, ")
	cut := altered(t, "gpt_oss", each(func(e checkpoint.Entry) []checkpoint.Entry {
		if strings.HasSuffix(e.Name, "0.mlp.experts.down_proj") {
			return []checkpoint.Entry{checkpoint.Values(e.Name, make([]float32, 4*32*16), 4, 32, 16)}
		}
		return []checkpoint.Entry{e}
	}), nil)
	_, err = models.Open(cut)
	require.ErrorContains(t, err, "tensors that do not fit: model.layers.0.mlp.experts.down_proj is float32[4,32,16], the config says [4,32,32]")
}
