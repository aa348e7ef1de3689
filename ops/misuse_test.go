// What a user can give an op that it does not take.

package ops_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// constructors are the ops of a first and a second operand.
func constructors(t *testing.T) map[string]func(x, y *graph.Node) *graph.Node {
	table, err := ops.NewRotaryTable(ops.RotaryConfig{Dim: 4, Base: 100, Positions: 8})
	require.NoError(t, err)
	attention := func(o func(y *graph.Node) ops.AttentionOptions) func(x, y *graph.Node) *graph.Node {
		return func(x, y *graph.Node) *graph.Node { return ops.Attention(x, x, x, o(y)) }
	}
	return map[string]func(x, y *graph.Node) *graph.Node{
		"add":        ops.Add,
		"affine":     func(x, _ *graph.Node) *graph.Node { return ops.Affine(x, 1, 2) },
		"softcap":    func(x, _ *graph.Node) *graph.Node { return ops.Softcap(x, 2) },
		"reshape":    func(x, _ *graph.Node) *graph.Node { return ops.Reshape(x, -1) },
		"linear":     func(x, y *graph.Node) *graph.Node { return ops.Linear(x, y) },
		"linear b":   func(x, y *graph.Node) *graph.Node { return ops.Linear(x, x, y) },
		"bf16":       func(x, y *graph.Node) *graph.Node { return ops.BF16Linear(x, y) },
		"fp8":        func(x, y *graph.Node) *graph.Node { return ops.FP8Linear(x, y, ops.FP8Recipe{}) },
		"fp8 weight": func(x, y *graph.Node) *graph.Node { return ops.FP8WeightLinear(x, y, ops.FP8WeightLinearOp{}) },
		"rmsnorm":    func(x, y *graph.Node) *graph.Node { return ops.RMSNorm(x, y, 1e-5) },
		"layernorm":  func(x, y *graph.Node) *graph.Node { return ops.LayerNorm(x, y, 1e-5) },
		"swiglu":     ops.SwiGLU,
		"clamped": func(x, y *graph.Node) *graph.Node {
			return ops.ClampedExperts(x, x, y, x, x, x, x, x, x, ops.ClampedExpertsOp{Alpha: 1, Limit: 1})
		},
		"mul":        ops.Mul,
		"mse":        ops.MSE,
		"geglu":      func(x, y *graph.Node) *graph.Node { return ops.GeGLU(x, y, true) },
		"loss":       func(x, y *graph.Node) *graph.Node { l, _ := ops.CrossEntropy(x, y); return l },
		"dropout":    func(x, y *graph.Node) *graph.Node { return ops.Dropout(x, y, 0.5, 1) },
		"embedding":  ops.Embedding,
		"rotary":     func(x, y *graph.Node) *graph.Node { return ops.Rotary(x, y, table, ops.Half) },
		"no table":   func(x, y *graph.Node) *graph.Node { return ops.Rotary(x, y, nil, ops.Half) },
		"mask":       attention(func(y *graph.Node) ops.AttentionOptions { return ops.AttentionOptions{Mask: y} }),
		"kv len":     attention(func(y *graph.Node) ops.AttentionOptions { return ops.AttentionOptions{KVLen: y} }),
		"sinks":      attention(func(y *graph.Node) ops.AttentionOptions { return ops.AttentionOptions{Sinks: y} }),
		"ragged":     attention(func(y *graph.Node) ops.AttentionOptions { return ops.AttentionOptions{QOIndptr: y, KVIndptr: y} }),
		"ragged q":   attention(func(y *graph.Node) ops.AttentionOptions { return ops.AttentionOptions{QOIndptr: y} }),
		"steps":      func(x, _ *graph.Node) *graph.Node { return ops.FP8Steps(x, native.E4M3, ops.FP8Block{}, 0) },
		"quantize":   func(x, y *graph.Node) *graph.Node { return ops.Quantize(x, y, native.E4M3, ops.FP8Block{}, true) },
		"dequantize": func(x, y *graph.Node) *graph.Node { return ops.Dequantize(x, y, ops.FP8Block{}) },
		"matmul":     func(x, y *graph.Node) *graph.Node { return ops.FP8MatMul(x, x, y, y, ops.FP8MatMulOp{TransB: true}) },
		"merge":      func(x, y *graph.Node) *graph.Node { o, _ := ops.MergeStates(x, y, x, y); return o },
		"append":     func(x, y *graph.Node) *graph.Node { return ops.AppendPages(x, x, y) },
		"append rot": func(x, y *graph.Node) *graph.Node { return ops.AppendRotary(x, x, y, y, table, ops.Half) },
		"paged": func(x, y *graph.Node) *graph.Node {
			return ops.PagedAttention(x, x, x, ops.Pages{QOIndptr: y, Indptr: y, Indices: y, LastPageLen: y}, ops.PagedAttentionOp{})
		},
		"nll":         ops.NLL,
		"sampling":    func(x, y *graph.Node) *graph.Node { return ops.Sampling(x, y, y) },
		"route":       func(x, y *graph.Node) *graph.Node { _, w := ops.Route(x, y, ops.Router{Experts: 4, TopK: 2}); return w },
		"balance":     func(x, y *graph.Node) *graph.Node { return ops.BalanceLoss(x, y, ops.Router{Experts: 4, TopK: 4}) },
		"fp8 experts": func(x, y *graph.Node) *graph.Node { return ops.FP8Experts(x, x, y, y, y, y, ops.FP8ExpertsOp{}) },
		"experts":     func(x, y *graph.Node) *graph.Node { return ops.Experts(x, x, y, y, y, y) },
		"kda":         func(x, y *graph.Node) *graph.Node { o, _ := ops.KDA(x, x, x, x, y, ops.KDAOptions{}); return o },
		"kda packed":  func(x, y *graph.Node) *graph.Node { o, _ := ops.KDA(x, x, x, x, x, ops.KDAOptions{Cu: y}); return o },
		"kda slots": func(x, y *graph.Node) *graph.Node {
			return ops.KDASlots(x, x, x, x, y, x, ops.Slots{QOIndptr: y, Slots: y, Starts: y}, ops.KDASlotsOp{})
		},
		"kda gate":   func(x, y *graph.Node) *graph.Node { return ops.KDAGate(x, y, y, 0) },
		"kda beta":   func(x, _ *graph.Node) *graph.Node { return ops.KDABeta(x, true) },
		"l2norm":     func(x, _ *graph.Node) *graph.Node { return ops.L2Norm(x, 1e-6) },
		"gated":      func(x, y *graph.Node) *graph.Node { return ops.GatedRMSNorm(x, x, y, 1e-6) },
		"conv":       func(x, y *graph.Node) *graph.Node { o, _ := ops.ShortConv(x, y, nil, nil); return o },
		"conv state": func(x, y *graph.Node) *graph.Node { o, _ := ops.ShortConv(x, x, y, y); return o },
		"conv slots": func(x, y *graph.Node) *graph.Node {
			return ops.ShortConvSlots(x, y, x, ops.Slots{QOIndptr: y, Slots: y, Starts: y})
		},
		"split":      func(x, _ *graph.Node) *graph.Node { return ops.Split(x, 1, 3)[1] },
		"split odd":  func(x, _ *graph.Node) *graph.Node { return ops.Split(x, -1, 5)[1] },
		"split none": func(x, _ *graph.Node) *graph.Node { return ops.Split(x)[0] },
		"latent":     func(x, y *graph.Node) *graph.Node { k, _ := ops.LatentKV(x, y, 2, 1, 1); return k },
		"latent odd": func(x, y *graph.Node) *graph.Node { k, _ := ops.LatentKV(x, y, -2, -3, 1); return k },
		"latent 0":   func(x, y *graph.Node) *graph.Node { k, _ := ops.LatentKV(x, y, 1, 5, -1); return k },
		"paged none": func(x, y *graph.Node) *graph.Node {
			return ops.PagedAttention(x, y, y, ops.Pages{}, ops.PagedAttentionOp{})
		},
	}
}

// TestNoOperandsPanic gives every constructor operands of all kinds of types,
// and none. What is built runs, on numbers that no vocabulary or table has: to
// the end or to an error, but not to a panic.
func TestNoOperandsPanic(t *testing.T) {
	var types []graph.Type
	for _, dt := range []dtype.DType{dtype.Float32, dtype.Float64, dtype.Int32, dtype.Int64, dtype.Bool, dtype.BFloat16, dtype.Float8E4M3} {
		for _, s := range [][]int{{}, {1}, {4}, {3, 4}, {1, 3, 2, 4}, {3, 2, 4}, {2, 16, 2, 4}} {
			types = append(types, graph.T(dt, s...))
		}
	}
	for name, build := range constructors(t) {
		for _, tx := range types {
			for _, ty := range types {
				b := graph.New()
				y := build(b.Input("x", tx.DType, tx.Shape...), b.Input("y", ty.DType, ty.Shape...))
				if b.Err() == nil {
					requireNoPanic(t, b, y, fmt.Sprintf("%s of %s and %s", name, tx, ty))
				}
			}
			for _, y := range []*graph.Node{nil, {}} {
				for _, swap := range []bool{false, true} {
					b := graph.New()
					x, y := b.Input("x", tx.DType, tx.Shape...), y
					if swap {
						x, y = y, x
					}
					z := build(x, y)
					if z.Builder().Err() == nil {
						require.NotNil(t, z.Op(), "%s of %s and nothing", name, tx)
					}
				}
			}
		}
		require.Error(t, build(nil, nil).Builder().Err(), name)
	}
}

func requireNoPanic(t *testing.T, b *graph.Builder, y *graph.Node, what string) {
	plan, err := b.Plan(y)
	if err != nil {
		return
	}
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err, what)
	feeds := graph.Feeds{}
	for _, in := range plan.Inputs() {
		n := in.Type().Size()
		switch in.Type().DType {
		case dtype.Float32:
			feeds[in.Name()] = make([]float32, n)
		case dtype.Float64:
			feeds[in.Name()] = make([]float64, n)
		case dtype.Int32:
			v := make([]int32, n)
			for i := range v {
				v[i] = []int32{-1, 100, math.MaxInt32, math.MinInt32}[i%4]
			}
			feeds[in.Name()] = v
		case dtype.Int64:
			feeds[in.Name()] = make([]int64, n)
		case dtype.Bool:
			feeds[in.Name()] = make([]bool, n)
		default:
			return // no slice of the type can be fed
		}
	}
	if err := run.Do(context.Background(), feeds); err != nil {
		require.NotContains(t, err.Error(), "panic", what)
	}
}

func TestAttributesAreFinite(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for want, build := range map[string]func(b *graph.Builder, x, q *graph.Node){
		"attention: scale must be finite (0: 1/sqrt(D)), got NaN": func(_ *graph.Builder, _, q *graph.Node) { ops.Attention(q, q, q, ops.AttentionOptions{Scale: nan}) },
		"attention: softcap must be 0 (none) or more, got +Inf":   func(_ *graph.Builder, _, q *graph.Node) { ops.Attention(q, q, q, ops.AttentionOptions{Softcap: inf}) },
		"rmsnorm: eps must be 0 or more, got +Inf":                func(b *graph.Builder, x, _ *graph.Node) { ops.RMSNorm(x, b.Input("w", dtype.Float32, 4), inf) },
		"layernorm: eps must be 0 or more, got +Inf":              func(b *graph.Builder, x, _ *graph.Node) { ops.LayerNorm(x, b.Input("w", dtype.Float32, 4), inf) },
		"cross_entropy: z-loss weight must be 0 or more, got +Inf": func(b *graph.Builder, x, _ *graph.Node) {
			ops.CrossEntropy(x, b.Input("l", dtype.Int32, 3), ops.CrossEntropyOptions{ZLoss: inf})
		},
		"add: inputs must be float32 or float64, got int32[2]":   func(b *graph.Builder, _, _ *graph.Node) { i := b.Input("i", dtype.Int32, 2); ops.Add(i, i) },
		"rotary: the pairing must be Half or Interleaved, got 7": func(_ *graph.Builder, _, q *graph.Node) { ops.Rotary(q, nil, &ops.RotaryTable{}, 7) },
		"rotary: the table must hold [8,2] cosines and sines, got 0 and 0": func(_ *graph.Builder, _, q *graph.Node) {
			ops.Rotary(q, nil, &ops.RotaryTable{Positions: 8, Width: 4}, ops.Half)
		},
	} {
		b := graph.New()
		build(b, b.Input("x", dtype.Float32, 3, 4), b.Input("q", dtype.Float32, 1, 3, 2, 4))
		require.EqualError(t, b.Err(), want)
	}
	_, err := ops.NewRotaryTable(ops.RotaryConfig{Dim: 4, Base: 1e4, Positions: 1 << 40})
	require.EqualError(t, err, "rotary: a table has up to 16777216 positions and a width up to 65536, got 1099511627776 and 4")
}

// TestARunAfterAnErrorOfTheRun: an id or a label outside the vocabulary stops
// one run and leaves the executor as it was.
func TestARunAfterAnErrorOfTheRun(t *testing.T) {
	b := graph.New()
	loss, _ := ops.CrossEntropy(ops.Embedding(b.Input("ids", dtype.Int32, 3), b.Param("e", 5, 5)), b.Input("labels", dtype.Int32, 3))
	for i, p := range b.Store().All() {
		graph.Data[float32](p.Tensor())[i] = 1
		p.Touch()
	}
	grads, err := b.Grad(loss, b.Params()...)
	require.NoError(t, err)
	plan, err := b.Plan(loss, grads[0])
	require.NoError(t, err)
	run, err := plan.Native(graph.Poison())
	require.NoError(t, err)
	do := func(ids, labels []int32) ([]float32, error) {
		err := run.Do(context.Background(), graph.Feeds{"ids": ids, "labels": labels})
		v, _ := run.Value(grads[0])
		return append([]float32(nil), graph.Data[float32](v)...), err
	}
	want, err := do([]int32{0, 1, 4}, []int32{4, ops.IgnoreIndex, 0})
	require.NoError(t, err)
	for _, bad := range []int32{-1, 5, math.MaxInt32, math.MinInt32} {
		_, err = do([]int32{0, bad, 1}, []int32{0, 0, 0})
		require.ErrorContains(t, err, fmt.Sprint(bad))
		_, err = do([]int32{0, 1, 1}, []int32{0, 0, bad})
		require.ErrorContains(t, err, fmt.Sprint(bad))
		got, err := do([]int32{0, 1, 4}, []int32{4, ops.IgnoreIndex, 0})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestTheNumberOfTokensHasNoGradient(t *testing.T) {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 3, 4)
	_, tokens := ops.CrossEntropy(x, b.Input("labels", dtype.Int32, 3))
	_, err := b.Grad(tokens, x)
	require.EqualError(t, err, "cross_entropy: of its results only the loss has a gradient")
}

func TestShareOfNothingIsAnError(t *testing.T) {
	_, err := ops.Share(graph.New().Const("c", 1), nil)
	require.EqualError(t, err, "ops: Share: output 1 is missing (nil)")
}
