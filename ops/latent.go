package ops

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() {
	graph.Register(graph.Def{
		Name:   "split",
		Doc:    "the last dimension in parts",
		Native: floats(split[float32], split[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			o := splitGrad{Sizes: g.Op.(SplitOp).Sizes}
			var in []*graph.Node
			for i := range o.Sizes {
				d := g.Out(i)
				o.Has = append(o.Has, d != nil)
				in = append(in, given(d)...)
			}
			return []*graph.Node{graph.Apply(o, in...)}
		},
	})
	graph.Register(graph.Def{Name: "split_grad", Native: floats(splitGradBody[float32], splitGradBody[float64])})
	graph.Register(graph.Def{
		Name:   "latent_kv",
		Doc:    "keys and values of latent attention from their parts",
		Native: floats(latentKV[float32], latentKV[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			o := latentKVGrad{LatentKVOp: g.Op.(LatentKVOp), resultGrads: resultGrads{g.Out(0) != nil, g.Out(1) != nil}}
			return graph.ApplyAll("latent_kv_grad", o, o.inputs(g)...)[:2]
		},
	})
	graph.Register(graph.Def{Name: "latent_kv_grad", Native: floats(latentKVGradBody[float32], latentKVGradBody[float64])})
}

// SplitOp cuts the last dimension of x [...,sum Sizes] into parts [...,Sizes[i]].
type SplitOp struct{ Sizes []int }

// Split adds a SplitOp and returns the parts.
func Split(x *graph.Node, sizes ...int) []*graph.Node {
	return graph.ApplyAll("split", SplitOp{sizes}, x)
}

// Name is "split".
func (SplitOp) Name() string { return "split" }

// Infer requires the sizes to add up.
func (o SplitOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 1, "x"); err != nil {
		return nil, err
	}
	if err := activation("x", in[0]); err != nil {
		return nil, err
	}
	sum := 0
	var parts []graph.Type
	for _, n := range o.Sizes {
		sum += n
		if in[0].Rank() > 0 {
			parts = append(parts, withLast(in[0], n))
		}
	}
	if len(o.Sizes) < 2 || in[0].Rank() < 1 || sum != last(in[0]) || slices.Min(o.Sizes) < 1 {
		return nil, fmt.Errorf("two or more sizes of 1 or more must add up to the last dimension, got %v for x %s", o.Sizes, in[0].Dims())
	}
	return parts, nil
}

func split[T native.Float](c *graph.Call) error {
	x, at := c.In[0], 0
	for i, n := range c.Op.(SplitOp).Sizes {
		native.CopyColumns(graph.Data[T](c.Out[i]), n, 0, graph.Data[T](x), last(x.Type), at, rows(x.Type), n)
		at += n
	}
	return nil
}

// splitGrad puts the gradients of the parts together; those that the loss does
// not depend on are zeros.
type splitGrad struct {
	Sizes []int
	Has   []bool
}

func (splitGrad) Name() string { return "split_grad" }
func (o splitGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	sum := 0
	for _, n := range o.Sizes {
		sum += n
	}
	return []graph.Type{withLast(in[0], sum)}, nil
}

func splitGradBody[T native.Float](c *graph.Call) error {
	o, dx := c.Op.(splitGrad), c.Out[0]
	at, next := 0, 0
	for i, n := range o.Sizes {
		var from []T
		if o.Has[i] {
			from = graph.Data[T](c.In[next])
			next++
		}
		native.CopyColumns(graph.Data[T](dx), last(dx.Type), at, from, n, 0, rows(dx.Type), n)
		at += n
	}
	return nil
}

// LatentKVOp puts the keys and values of latent attention together: kv
// [...,H(N+V)] holds for each head its own part of the key, N numbers, and its
// value, V numbers; p [...,P] is the part of the key that all heads share.
// Results: k [...,H,N+P] and v [...,H,V]. Source: DeepSeek-V2
// (arXiv:2405.04434).
type LatentKVOp struct{ H, N, V int }

// LatentKV adds a LatentKVOp.
func LatentKV(kv, p *graph.Node, h, n, v int) (k, val *graph.Node) {
	rs := graph.ApplyAll("latent_kv", LatentKVOp{h, n, v}, kv, p)
	return rs[0], rs[1]
}

// Name is "latent_kv".
func (LatentKVOp) Name() string { return "latent_kv" }

// Infer checks the parts against the heads.
func (o LatentKVOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := arity(in, 2, "kv", "p"); err != nil {
		return nil, err
	}
	kv, p := in[0], in[1]
	if err := activation("kv", kv); err != nil {
		return nil, err
	}
	if p.DType != kv.DType || kv.Rank() < 1 || p.Rank() != kv.Rank() || !slices.Equal(kv.Shape[:kv.Rank()-1], p.Shape[:p.Rank()-1]) || last(kv) != o.H*(o.N+o.V) {
		return nil, fmt.Errorf("kv must be [...,%d] for %d heads of %d and %d numbers, and p [...,P], got kv %s, p %s", o.H*(o.N+o.V), o.H, o.N, o.V, kv, p)
	}
	lead := kv.Shape[:kv.Rank()-1]
	return []graph.Type{
		graph.T(kv.DType, append(slices.Clone(lead), o.H, o.N+last(p))...),
		graph.T(kv.DType, append(slices.Clone(lead), o.H, o.V)...),
	}, nil
}

func (o LatentKVOp) latent(p graph.Type) native.Latent {
	return native.Latent{Tokens: rows(p), H: o.H, N: o.N, P: last(p), V: o.V}
}

func latentKV[T native.Float](c *graph.Call) error {
	s := c.Op.(LatentKVOp).latent(c.In[1].Type)
	native.LatentKV(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), graph.Data[T](c.In[0]), graph.Data[T](c.In[1]), s)
	return nil
}

// latentKVGrad gives dkv and dp.
type latentKVGrad struct {
	LatentKVOp
	resultGrads
}

func (latentKVGrad) Name() string { return "latent_kv_grad" }
func (o latentKVGrad) Infer(in []graph.Type) ([]graph.Type, error) {
	return in[o.count():], nil
}

func latentKVGradBody[T native.Float](c *graph.Call) error {
	o := c.Op.(latentKVGrad)
	s := o.latent(c.In[o.count()+1].Type)
	var dk, dv []T
	next := 0
	if o.First {
		dk = graph.Data[T](c.In[0])
		next = 1
	}
	if o.Second {
		dv = graph.Data[T](c.In[next])
	}
	native.LatentKVGrad(graph.Data[T](c.Out[0]), graph.Data[T](c.Out[1]), dk, dv, s)
	return nil
}
