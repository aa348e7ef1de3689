package ops

import (
	"fmt"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
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
	graph.Register(graph.Def{
		Name:   "join",
		Doc:    "parts side by side in the last dimension",
		Native: floats(join[float32], join[float64]),
		Grad: func(g *graph.GradCall) []*graph.Node {
			var sizes []int
			for _, n := range g.In {
				sizes = append(sizes, n.Dim(-1))
			}
			return Split(g.Out(0), sizes...)[:len(g.In)]
		},
	})
	absorbed := func(op graph.Op, in, _ []graph.Type) int64 { return 2 * int64(rows(in[0])) * int64(in[1].Size()) / 2 }
	graph.Register(graph.Def{Name: "latent_query", Doc: "queries of latent attention on the latents themselves, for decode", Native: floats(latentQuery[float32], latentQuery[float64]), FLOPs: absorbed})
	graph.Register(graph.Def{Name: "latent_value", Doc: "values of latent attention from a mean of latents, for decode", Native: floats(latentValue[float32], latentValue[float64]), FLOPs: absorbed})
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

// JoinOp puts its inputs [...,n_i], two or more, side by side: [...,sum n_i].
type JoinOp struct{}

// Join adds a JoinOp.
func Join(parts ...*graph.Node) *graph.Node { return graph.Apply(JoinOp{}, parts...) }

// Name is "join".
func (JoinOp) Name() string { return "join" }

// Infer requires parts that differ in the last dimension alone.
func (JoinOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if len(in) < 2 {
		return nil, fmt.Errorf("takes two or more parts, got %d", len(in))
	}
	if err := activation("the first part", in[0]); err != nil {
		return nil, err
	}
	sum := 0
	for i, t := range in {
		if t.Rank() < 1 || t.DType != in[0].DType || t.Rank() != in[0].Rank() || !slices.Equal(t.Shape[:t.Rank()-1], in[0].Shape[:t.Rank()-1]) {
			return nil, fmt.Errorf("parts may differ in the last dimension alone, got %s and, as part %d, %s", in[0], i, t)
		}
		sum += last(t)
	}
	return []graph.Type{withLast(in[0], sum)}, nil
}

func join[T native.Float](c *graph.Call) error {
	y, at := c.Out[0], 0
	for _, x := range c.In {
		n := last(x.Type)
		native.CopyColumns(graph.Data[T](y), last(y.Type), at, graph.Data[T](x), n, 0, rows(x.Type), n)
		at += n
	}
	return nil
}

// LatentQueryOp turns the queries q [...,H,N+P] of latent attention into ones
// that meet the latents c and the shared parts p of keys as they are, so that
// neither keys nor values are ever formed: with Wk_h [N,R] of w [H(N+V),R],
// which is kv_b_proj and may be stored in 16 bits,
//
//	q_h . [Wk_h c | p] = [Wk_h' q_h[:N] | q_h[N:]] . [c | p]
//
// gives [...,H,R+P]. Keep the scale (N+P)^-1/2. It has no gradient: training
// expands the keys. Source: DeepSeek-V2 (arXiv:2405.04434).
type LatentQueryOp struct{ N, V int }

// LatentQuery adds a LatentQueryOp.
func LatentQuery(q, w *graph.Node, n, v int) *graph.Node {
	return graph.Apply(LatentQueryOp{n, v}, q, w)
}

// Name is "latent_query".
func (LatentQueryOp) Name() string { return "latent_query" }

// Infer checks the heads of q against the rows of w.
func (o LatentQueryOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := latentHeads(in, "q", o.N, o.V); err != nil {
		return nil, err
	}
	if q := in[0]; last(q) < o.N {
		return nil, fmt.Errorf("q must be [...,H,N+P] with N %d, got %s", o.N, q.Dims())
	}
	return []graph.Type{withLast(in[0], last(in[1])+last(in[0])-o.N)}, nil
}

// latentHeads checks x [...,H,_] against w [H(N+V),R].
func latentHeads(in []graph.Type, name string, n, v int) error {
	if err := arity(in, 2, name, "w"); err != nil {
		return err
	}
	x, w := in[0], in[1]
	if err := activation(name, x); err != nil {
		return err
	}
	if !isHalf(w) || x.DType != dtype.Float32 {
		if err := alike(x, []string{"w"}, w); err != nil {
			return err
		}
	}
	if n < 1 || v < 1 || x.Rank() < 2 || w.Rank() != 2 || w.Shape[0] != x.Shape[x.Rank()-2]*(n+v) {
		return fmt.Errorf("w must be [H(%d+%d),R] for %s [...,H,_], got %s %s, w %s", n, v, name, name, x.Dims(), w.Dims())
	}
	return nil
}

func latentQuery[T native.Float](c *graph.Call) error {
	o, q, w := c.Op.(LatentQueryOp), c.In[0], c.In[1]
	h := q.Shape[q.Rank()-2]
	s := native.Latent{Tokens: rows(q.Type) / h, H: h, N: o.N, P: last(q.Type) - o.N, V: o.V}
	if mem, coding, ok := coded(w, 0); ok {
		native.LatentQueryStored(graph.Data[float32](c.Out[0]), graph.Data[float32](q), mem, coding, last(w.Type), s)
		return nil
	}
	native.LatentQuery(graph.Data[T](c.Out[0]), graph.Data[T](q), graph.Data[T](w), last(w.Type), s)
	return nil
}

// LatentValueOp ends what LatentQueryOp began: from the mean of latents that each
// head attended to, o [...,H,R], it gives Wv_h o, [...,H,V], with Wv_h [V,R] of
// w [H(N+V),R].
type LatentValueOp struct{ N, V int }

// LatentValue adds a LatentValueOp.
func LatentValue(o, w *graph.Node, n, v int) *graph.Node {
	return graph.Apply(LatentValueOp{n, v}, o, w)
}

// Name is "latent_value".
func (LatentValueOp) Name() string { return "latent_value" }

// Infer checks the heads of o against the rows of w.
func (o LatentValueOp) Infer(in []graph.Type) ([]graph.Type, error) {
	if err := latentHeads(in, "o", o.N, o.V); err != nil {
		return nil, err
	}
	if last(in[0]) != last(in[1]) {
		return nil, fmt.Errorf("o must be [...,H,R] for w [H(N+V),R], got o %s, w %s", in[0].Dims(), in[1].Dims())
	}
	return []graph.Type{withLast(in[0], o.V)}, nil
}

func latentValue[T native.Float](c *graph.Call) error {
	a, o, w := c.Op.(LatentValueOp), c.In[0], c.In[1]
	h := o.Shape[o.Rank()-2]
	s := native.Latent{Tokens: rows(o.Type) / h, H: h, N: a.N, V: a.V}
	if mem, coding, ok := coded(w, 0); ok {
		native.LatentValueStored(graph.Data[float32](c.Out[0]), graph.Data[float32](o), mem, coding, last(w.Type), s)
		return nil
	}
	native.LatentValue(graph.Data[T](c.Out[0]), graph.Data[T](o), graph.Data[T](w), last(w.Type), s)
	return nil
}
