// Low-rank adapters on the linear layers of a model.

package models

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// LoRA says which linear layers get adapters, and of what size. An adapted
// layer computes
//
//	y = x w^T + Alpha/Rank (x a^T) b^T
//
// with a [Rank,K] and b [N,Rank] trained and everything else frozen. Source: Hu
// et al. (arXiv:2106.09685).
type LoRA struct {
	Rank  int
	Alpha float64
	// Targets are patterns of layers' names, such as "q_proj" or
	// "layers.0.*.up_proj": whole names, or their ends after a dot; * stands
	// for any characters. None, or PEFT's "all-linear": every linear layer but
	// the head.
	Targets []string
}

// Check refuses what no adapter can be.
func (l LoRA) Check() error {
	switch {
	case l.Rank < 1 || l.Rank > 1<<16:
		return fmt.Errorf("the rank must be 1 to 65536, got %d", l.Rank)
	case !(l.Alpha > 0) || math.IsInf(l.Alpha, 0):
		return fmt.Errorf("alpha must be above 0, got %g", l.Alpha)
	}
	for _, t := range l.Targets {
		if t == "" {
			return errors.New("a target must not be empty")
		}
	}
	return nil
}

// matches reports whether a layer is a target.
func (l LoRA) matches(module string) bool {
	inner := module+".weight" != headName && module+".weight" != tableName
	if len(l.Targets) == 0 {
		return inner
	}
	return slices.ContainsFunc(l.Targets, func(target string) bool {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(target), `\*`, `.*`)
		return target == "all-linear" && inner || regexp.MustCompile(`^(.*\.)?`+pattern+`$`).MatchString(module)
	})
}

// adapter is the pair of matrices at one layer.
type adapter struct {
	a, b         *graph.Param
	alpha, scale float64

	magnitudes []float32    // [N]; nil: none
	sum        *graph.Param // the weight with the adapter in it, where there are magnitudes
}

// Adapted is a model with adapters. It trains, generates and is saved as the
// model itself does; saving writes the adapters alone, as a PEFT folder.
type Adapted struct {
	*Transformer
	LoRA LoRA
	Base string // where the model came from, told in the saved adapter

	adapters map[string]adapter // by the name of the layer
	order    []string
}

// adapterNames are the parameters' names of a layer.
func adapterNames(module string) (a, b string) {
	return module + endA, module + endB
}

const endA, endB = ".lora_A.weight", ".lora_B.weight"

// ofAdapter reports whether a parameter is an adapter's and not the model's own.
func ofAdapter(name string) bool {
	return strings.HasSuffix(name, endA) || strings.HasSuffix(name, endB) || strings.HasSuffix(name, endSum)
}

// adapted reports whether the layer of a weight has an adapter.
func adapted(w *graph.Node) bool {
	if w.Param() == nil {
		return false
	}
	a, _ := adapterNames(strings.TrimSuffix(w.Param().Name, ".weight"))
	return w.Builder().Store().Get(a) != nil
}

// Adapt freezes the model and puts new adapters on its layers: a uniform within
// 1/sqrt(K), b zero, so that the model is what it was. A model takes adapters once.
// What m itself is given to, a session for one, goes without them: m is the base.
func (m *Transformer) Adapt(l LoRA, seed uint64) (*Adapted, error) {
	if err := l.Check(); err != nil {
		return nil, fmt.Errorf("models: LoRA: %w", err)
	}
	if err := m.usable(); err != nil {
		return nil, err
	}
	if m.hasAdapters() {
		return nil, fmt.Errorf("models: LoRA: %w", errAdapted)
	}
	modules, err := m.linears()
	if err != nil {
		return nil, err
	}
	ad := &Adapted{Transformer: m, LoRA: l, adapters: map[string]adapter{}}
	for _, t := range l.Targets {
		if one := (LoRA{Targets: []string{t}}); !slices.ContainsFunc(modules, one.matches) {
			return nil, fmt.Errorf("models: LoRA: target %q is no linear layer of the model (they are called %s)", t, strings.Join(kinds(modules), ", "))
		}
	}
	modules = slices.DeleteFunc(modules, func(module string) bool { return !l.matches(module) })
	bytes := 0
	for _, module := range modules {
		if w := m.params.Get(module + ".weight"); w != nil {
			bytes += 4 * l.Rank * (shapeOf(w)[0] + shapeOf(w)[1])
		}
	}
	if err := graph.CheckMemory(fmt.Sprintf("adapters of rank %d", l.Rank), bytes); err != nil {
		return nil, fmt.Errorf("models: LoRA: %w", err)
	}
	for _, module := range modules {
		x, err := ad.add(module, l.Rank, l.Alpha, l.Alpha/float64(l.Rank))
		if err != nil {
			return nil, err
		}
		r := rand.New(rand.NewPCG(streamSeed(seed, x.a.Name), 0))
		a := graph.Data[float32](x.a.Tensor())
		bound := 1 / math.Sqrt(float64(x.a.Type.Shape[1]))
		for i := range a {
			a[i] = float32(bound * (2*r.Float64() - 1))
		}
		clear(graph.Data[float32](x.b.Tensor()))
		x.a.Touch()
		x.b.Touch()
	}
	m.freeze(ad.adapters)
	return ad, nil
}

// hasAdapters reports whether the model has adapters, which second ones would be
// written over.
func (m *Transformer) hasAdapters() bool {
	return slices.ContainsFunc(m.params.All(), func(p *graph.Param) bool { return ofAdapter(p.Name) })
}

var errAdapted = errors.New("the model has adapters already: open it once more for others")

// linears lists the layers with a weight matrix: the head among them when it has
// one of its own, routers not.
func (m *Transformer) linears() ([]string, error) {
	plain, err := New(m.Config)
	if err != nil {
		return nil, err
	}
	if err := plain.Declare(); err != nil {
		return nil, err
	}
	var list []string
	for _, p := range plain.params.All() {
		if module, ok := strings.CutSuffix(p.Name, ".weight"); ok && len(p.Type.Shape) == 2 && p.Name != tableName && !strings.HasSuffix(module, ".mlp.gate") && !strings.HasSuffix(module, ".mlp.router") {
			list = append(list, module)
		}
	}
	return list, nil
}

// kinds are the last parts of names, each once.
func kinds(modules []string) []string {
	var list []string
	for _, m := range modules {
		if k := m[strings.LastIndexByte(m, '.')+1:]; !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	return list
}

// add declares the matrices of a layer.
func (ad *Adapted) add(module string, rank int, alpha, scale float64) (adapter, error) {
	w := ad.params.Get(module + ".weight")
	if w == nil {
		return adapter{}, fmt.Errorf("models: LoRA: %s has no weight: load or initialise the model first", module)
	}
	an, bn := adapterNames(module)
	a, err := ad.params.Add(an, graph.T(dtype.Float32, rank, shapeOf(w)[1]), false)
	if err != nil {
		return adapter{}, fmt.Errorf("models: LoRA: %w", err)
	}
	b, err := ad.params.Add(bn, graph.T(dtype.Float32, w.Type.Shape[0], rank), false)
	if err != nil {
		return adapter{}, fmt.Errorf("models: LoRA: %w", err)
	}
	x := adapter{a: a, b: b, alpha: alpha, scale: scale}
	ad.adapters[module] = x
	ad.order = append(ad.order, module)
	return x, nil
}

// freeze leaves the adapters alone to be trained.
func (m *Transformer) freeze(except map[string]adapter) {
	trained := map[*graph.Param]bool{}
	for _, x := range except {
		trained[x.a], trained[x.b] = x.sum == nil, x.sum == nil
	}
	for _, p := range m.params.All() {
		p.Frozen = !trained[p]
	}
}

func (ad *Adapted) usable() error {
	if ad == nil {
		return errors.New("models: the adapters are missing (nil): Adapt and OpenAdapter make some")
	}
	return ad.Transformer.usable()
}

// Parameters is how many numbers the matrices of the adapters have: those that are
// trained, unless there are magnitudes.
func (ad *Adapted) Parameters() int {
	n := 0
	for _, x := range ad.adapters {
		n += x.a.Type.Size() + x.b.Type.Size()
	}
	return n
}

// substitute is the pass: a linear with an adapter gets the second term added.
func (ad *Adapted) substitute(n *graph.Node, in []*graph.Node) []*graph.Node {
	switch n.Op().(type) {
	case ops.LinearOp, ops.FP8WeightLinearOp:
	default:
		return nil
	}
	if n.In()[1].Param() == nil {
		return nil
	}
	module := strings.TrimSuffix(n.In()[1].Param().Name, ".weight")
	x, ok := ad.adapters[module]
	if !ok {
		return nil
	}
	if x.sum != nil {
		return []*graph.Node{x.summed(n, in)}
	}
	an, bn := adapterNames(strings.TrimSuffix(n.In()[1].Label(), ".weight"))
	s := in[1].Builder() // the scope of the weight
	y := graph.ApplyAs(n.Label(), n.Op(), in...)
	low := ops.Linear(in[0], s.Param(an, x.a.Type.Shape...))
	delta := ops.Affine(ops.Linear(low, s.Param(bn, x.b.Type.Shape...)), x.scale, 0)
	return []*graph.Node{ops.Add(y, delta)}
}

// rewrite lets build make the graph of the model alone and puts it into b with
// the adapters.
func (ad *Adapted) rewrite(b *graph.Builder, build func(b *graph.Builder) []*graph.Node) []*graph.Node {
	plain := b.Sibling()
	outs := build(plain)
	for i, o := range outs {
		plain.Output(fmt.Sprintf("adapted.%d", i), o)
	}
	err := plain.Err()
	if err == nil {
		err = graph.RewriteInto(b, plain, ad.substitute)
	}
	for i := range outs {
		if err != nil {
			outs[i] = b.Fail(err)
			continue
		}
		outs[i] = b.Out(fmt.Sprintf("adapted.%d", i))
	}
	return outs
}

// Loss is Transformer.Loss with the adapters. b must be empty.
func (ad *Adapted) Loss(b *graph.Builder, batch, context int, dropout float64, seed uint64) (loss, tokens *graph.Node) {
	outs := ad.rewrite(b, func(b *graph.Builder) []*graph.Node {
		err := ad.usable()
		if err == nil {
			if _, err = ad.others(); err != nil { // before the training, not after it
				err = fmt.Errorf("models: %w", err)
			}
		}
		if err != nil {
			n := b.Fail(err)
			return []*graph.Node{n, n}
		}
		loss, tokens := ad.Transformer.Loss(b, batch, context, dropout, seed)
		return []*graph.Node{loss, tokens}
	})
	return outs[0], outs[1]
}

// Logits is Transformer.Logits with the adapters, on the input "tokens" of int32
// [batch, context]. b must be empty.
func (ad *Adapted) Logits(b *graph.Builder, batch, context int) *graph.Node {
	return ad.rewrite(b, func(b *graph.Builder) []*graph.Node {
		return []*graph.Node{ad.Transformer.Logits(b, b.Input("tokens", dtype.Int32, batch, context), Dropout{})}
	})[0]
}

// Apply puts a graph of one's own on the model, such as a head on Features, into b
// with the adapters: build makes it as it would without them, on the builder that
// it is given. b must be empty. Weights that build declares are trained beside the
// adapters, and are the caller's to save. build is called where the model is closed
// too, as its caller takes that many nodes.
func (ad *Adapted) Apply(b *graph.Builder, build func(b *graph.Builder) []*graph.Node) []*graph.Node {
	switch {
	case ad == nil || ad.Missing():
		return []*graph.Node{b.Fail(ad.usable())}
	case build == nil:
		return []*graph.Node{b.Fail(errors.New("models: Apply: build is missing (nil)"))}
	}
	return ad.rewrite(b, func(b *graph.Builder) []*graph.Node {
		if err := ad.usable(); err != nil {
			b.Fail(err)
		}
		return build(b)
	})
}

// Packed is Transformer.Packed with the adapters. b must be empty.
func (ad *Adapted) Packed(b *graph.Builder, s Packed) *graph.Node {
	return ad.rewrite(b, func(b *graph.Builder) []*graph.Node {
		return []*graph.Node{ad.Transformer.Packed(b, s)}
	})[0]
}

// Merge returns a model of its own with the adapters added to the weights,
// rounded where those are stored in 16 bits and in float32 where they are in fewer.
// ad stays as it is.
func (ad *Adapted) Merge() (*Transformer, error) {
	if err := ad.usable(); err != nil {
		return nil, err
	}
	if err := ad.hold(); err != nil {
		return nil, err
	}
	defer ad.params.Release()
	m, err := New(ad.Config)
	if err != nil {
		return nil, err
	}
	for _, p := range ad.params.All() {
		if ofAdapter(p.Name) {
			continue
		}
		if ad.isSteps(p) {
			continue
		}
		typ := graph.T(p.Type.DType, shapeOf(p)...)
		if typ.DType.IsFloat8() || typ.DType == dtype.UInt8 {
			typ.DType = dtype.Float32 // codes do not take a sum
		}
		q, err := m.params.Add(p.Name, typ, false)
		if err != nil {
			return nil, err
		}
		narrow(q.Tensor(), ad.wide(p))
		q.Touch()
	}
	m.Config.Quantization = nil
	for module, x := range ad.adapters {
		w := m.params.Get(module + ".weight").Tensor()
		wide := widened(w)
		x.addTo(wide, w.Shape[0], w.Shape[1])
		narrow(w, wide)
	}
	return m, nil
}

// narrow stores float32 values in the type of t.
func narrow(t graph.Tensor, wide []float32) {
	switch t.DType {
	case dtype.Float32:
		copy(graph.Data[float32](t), wide) // no copy of its own memory
	case dtype.BFloat16:
		dtype.FromFloat32(graph.Data[dtype.BF16](t), wide)
	case dtype.Float16:
		dtype.FromFloat32(graph.Data[dtype.F16](t), wide)
	}
}
