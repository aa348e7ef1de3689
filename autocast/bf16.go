package autocast

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// BF16 returns the graph with its linears multiplying in bf16 and summing in the
// float type of the graph (see ops.BF16LinearOp), forward and backward. By
// default routers and norms stay as they are, and there is no size threshold.
// Linears that FP8 has taken stay FP8; weights stored as bfloat16 take part and
// are read as they are. Attention multiplies in bf16 too (see ops.AttentionOp),
// unless Include says what alone does, and so does that on pages, for requests of
// more than one query (see ops.PagedAttentionOp).
func BF16(b *graph.Builder, f Filter) (*graph.Builder, *Report, error) {
	dense := attention(func(o *ops.AttentionOp) { o.BF16 = true })
	p := pass{
		name: "bf16", mode: "products of bf16, sums of " + b.Float().String(), done: []string{"bf16_linear", "fp8_linear", "fp8_weight_linear"},
		minSize: 1, keeps: []role{router, norm},
		narrow: func(t dtype.DType) bool { return t == dtype.BFloat16 },
		build: func(n *graph.Node, in []*graph.Node) *graph.Node {
			return ops.BF16LinearAs(n.Label(), in[0], in[1], in[2:]...)
		},
		others: func(n *graph.Node, in []*graph.Node) []*graph.Node {
			if o, ok := n.Op().(ops.PagedAttentionOp); ok && !o.BF16 {
				o.BF16 = true
				return graph.ApplyAll(n.Label(), o, in...)
			}
			return dense(n, in)
		},
	}
	nb, report, err := p.run(b, f, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("autocast: BF16: %w", err)
	}
	return nb, report, nil
}

// BF16x6 returns the graph with its linears multiplying float32 by BF16x6, forward
// and backward (see ops.LinearOp): each number is split into three of bf16, whose
// products the tiles of AMX add. Where the CPU has AMX that is about one and a half
// times as fast as float32, with no more error; elsewhere it is float32. By default
// every linear takes part. Linears of other passes, and weights that are stored in
// less than the float type of the graph, stay. Attention multiplies so too (see
// ops.AttentionOp), unless Include says what alone does. train.New does it by itself;
// see train.Options.Compute.
func BF16x6(b *graph.Builder, f Filter) (*graph.Builder, *Report, error) {
	p := pass{
		name: "bf16x6", mode: "float32 products by six of bf16", done: []string{"bf16_linear", "fp8_linear", "fp8_weight_linear"}, minSize: 1,
		build: func(n *graph.Node, in []*graph.Node) *graph.Node {
			o := n.Op().(ops.LinearOp)
			o.BF16x6 = true
			return graph.ApplyAs(n.Label(), o, in...)
		},
		others: attention(func(o *ops.AttentionOp) { o.BF16x6 = o.BF16x6 || !o.BF16 }),
	}
	nb, report, err := p.run(b, f, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("autocast: BF16x6: %w", err)
	}
	return nb, report, nil
}

// attention rebuilds attention that set changes.
func attention(set func(o *ops.AttentionOp)) func(n *graph.Node, in []*graph.Node) []*graph.Node {
	return func(n *graph.Node, in []*graph.Node) []*graph.Node {
		was, ok := n.Op().(ops.AttentionOp)
		o := was
		if set(&o); !ok || o == was {
			return nil
		}
		return graph.ApplyAll(n.Label(), o, in...)
	}
}
