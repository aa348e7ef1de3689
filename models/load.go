// Loading weights: every tensor is accounted for.

package models

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// LoadReport says what loading did beyond copying tensors of the same name.
type LoadReport struct {
	Tied    string   // the tensor that serves as table and head, when they are tied
	Untied  string   // the head, where the config ties it to a table that differs: it is kept as it is
	Ignored []string // tensors that hold nothing of the model's own
	Sight   []string // tensors of the part that sees images, which is left out: text alone runs
}

// Option changes how weights are kept in memory.
type Option func(*storage)

// storage says in which type a weight is kept.
type storage struct {
	wide     bool        // all in float32
	extra    []string    // tensors of no part of the model's own
	matrices dtype.DType // matrices are rounded to it; Invalid: as the file has them
}

// Widen keeps every weight in float32, so that it can be trained.
func Widen() Option { return func(s *storage) { s.wide = true } }

// Store16 keeps the matrices in a 16-bit type, Float16 or BFloat16, rounded to
// nearest where the file has them wider or quantised.
func Store16(dt dtype.DType) Option { return func(s *storage) { s.matrices = dt } }

// of is the type in which a parameter of that shape is kept. Ops read matrices,
// and stacks of experts, in 16 bits; vectors are small and float32.
func (s storage) of(t *checkpoint.Tensor, shape []int) dtype.DType {
	if len(shape) != 2 {
		return dtype.Float32
	}
	return s.ofMatrix(t)
}

func (s storage) ofMatrix(t *checkpoint.Tensor) dtype.DType {
	switch {
	case s.wide:
		return dtype.Float32
	case s.matrices != dtype.Invalid:
		return s.matrices
	case t.DType() == dtype.BFloat16 || t.DType() == dtype.Float16:
		return t.DType()
	case t.DType() == dtype.UInt8 && t.Coding() == checkpoint.Plain || t.Coding() == checkpoint.MXFP4: // blocks whose values are bfloat16's
		return dtype.BFloat16
	}
	return dtype.Float32
}

// ofStacks is that of the stacks of a mixture that has these parts: the op reads
// all as they are or none.
func (s storage) ofStacks(parts []*checkpoint.Tensor) dtype.DType {
	kept := s.ofMatrix(parts[0])
	for _, t := range parts {
		if s.ofMatrix(t) != kept {
			return dtype.Float32
		}
	}
	return kept
}

// codes reports whether a matrix in 8-bit floats stays as it is: where
// ops.Linear alone reads it.
func (s storage) codes(name string) bool {
	return !s.wide && s.matrices == dtype.Invalid && name != tableName
}

func storageOf(opts []Option) (storage, error) {
	var s storage
	for i, o := range opts {
		if o == nil {
			return s, fmt.Errorf("models: option %d is missing (nil)", i)
		}
		o(&s)
	}
	switch s.matrices {
	case dtype.Invalid:
		return s, nil
	case dtype.Float16, dtype.BFloat16:
		if s.wide {
			return s, fmt.Errorf("models: Widen and Store16 must not be given together: float32 or %s", s.matrices)
		}
		return s, nil
	}
	return s, fmt.Errorf("models: matrices are stored as float16 or bfloat16, not %s", s.matrices)
}

// Load opens a Hugging Face folder with its weights in float32, ready to be
// trained; Open keeps them as they are stored. A tensor that is missing, has
// another shape than the config says, or belongs to nothing is an error that
// lists it.
func Load(dir string) (*Transformer, LoadReport, error) { return loadFolder(dir, storage{wide: true}) }

func loadFolder(dir string, kept storage) (*Transformer, LoadReport, error) {
	c, err := ReadConfig(dir)
	if err != nil {
		return nil, LoadReport{}, err
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return nil, LoadReport{}, fmt.Errorf("models: %w", err)
	}
	m, report, err := load(c, &source{ck: ck, kept: kept})
	if err != nil {
		return nil, report, fmt.Errorf("models: %s: %w", dir, err)
	}
	return m, report, nil
}

const (
	modelScope = "model."

	tableName = modelScope + "embed_tokens.weight"
	headName  = "lm_head.weight"
)

// source gives the tensors of a checkpoint by their Hugging Face names.
type source struct {
	ck    *checkpoint.Checkpoint
	gguf  *ggufForm                // nil: the names are those of the file, but for naming
	other func(name string) string // as in architecture
	naming
	kept storage

	clamped bool // experts have biases and a clamped unit
}

func (s *source) lookup(name string) (*checkpoint.Tensor, bool) {
	if s.gguf != nil {
		name = s.gguf.tensor(name)
	}
	name = s.inFile(name)
	t, ok := s.ck.Lookup(name)
	if !ok && s.other != nil {
		return s.ck.Lookup(s.other(name))
	}
	return t, ok
}

// load makes a model of a checkpoint, which it closes unless weights lie in its
// files.
func load(c Config, s *source) (m *Transformer, report LoadReport, err error) {
	defer func() {
		if m == nil || m.files == nil {
			err = errors.Join(err, s.ck.Close())
		}
	}()
	// A layer has nine tensors at least: the size of the file bounds the work
	// that a config can ask for.
	if n := len(s.ck.Tensors()); c.Layers > n {
		return nil, report, fmt.Errorf("num_hidden_layers is %d, the checkpoint has %d tensors in all", c.Layers, n)
	}
	made, err := New(c)
	if err != nil {
		return nil, report, err
	}
	s.other = architectures[c.Type].other
	s.clamped = c.Experts != nil && c.Experts.Clamp.Limit > 0
	s.naming = namingOf(func(n naming) bool { _, ok := s.ck.Lookup(n.inFile(tableName)); return ok })
	made.within = s.withinSeeing()
	if report, err = made.assign(s); err != nil {
		return nil, report, err
	}
	for _, p := range made.params.All() {
		// Some lie in the file: training would move the others alone.
		p.Frozen = p.Frozen || !s.kept.wide || strings.HasSuffix(p.Name, choiceBias)
	}
	return made, report, nil
}

// assign gives the model its parameters, read from a checkpoint.
func (m *Transformer) assign(s *source) (LoadReport, error) {
	var report LoadReport
	if err := m.untie(s, &report); err != nil {
		return report, err
	}
	// A model without weights says what there must be; nothing is allocated.
	plain, err := New(m.Config)
	if err != nil {
		return report, err
	}
	if err := plain.Declare(); err != nil {
		return report, err
	}
	params, err := s.wanted(plain)
	if err != nil {
		return report, err
	}
	from := map[string][]*checkpoint.Tensor{}
	var missing, shapes, unexpected []string
	codes := map[string]*checkpoint.FP8Weight{} // weights in 8-bit floats
	used := map[string]bool{}
	for _, p := range params {
		names := m.Config.onDisk(p.Name)
		if s.gguf != nil {
			names = s.ggufParts(p)
		}
		want := p.Type.Shape
		if halves := s.splitKV(p.Name); halves != nil {
			a := m.Config.Latent
			for i, shape := range [][]int{{m.Config.Heads, a.KVRank, a.Nope}, {m.Config.Heads, a.V, a.KVRank}} {
				t := halves[i]
				if used[t.Name()] = true; !slices.Equal(t.Shape(), shape) {
					shapes = append(shapes, fmt.Sprintf("%s is %s, the config says %s", t.Name(), graph.Dims(t.Shape()), graph.Dims(shape)))
				}
			}
			from[p.Name] = halves
			continue
		}
		if t, _ := s.fusedExperts(p.Name); t != nil {
			if used[t.Name()] = true; !slices.Equal(t.Shape(), []int{want[0], 2 * want[1], want[2]}) {
				shapes = append(shapes, fmt.Sprintf("%s is %s, the config says %s", t.Name(), graph.Dims(t.Shape()), graph.Dims([]int{want[0], 2 * want[1], want[2]})))
			}
			from[p.Name] = []*checkpoint.Tensor{t}
			continue
		}
		if stack, ok := m.Config.ossStack(p.Name); ok && s.gguf == nil {
			parts, wants, ok := stack.find(s)
			if !ok {
				missing = append(missing, stack.name)
				continue
			}
			for i, t := range parts {
				if used[t.Name()] = true; !slices.Equal(t.Shape(), wants[i]) || t.DType() == dtype.UInt8 != (len(parts) == 2) {
					shapes = append(shapes, fmt.Sprintf("%s is %s, the config says %s", t.Name(), graph.T(t.DType(), t.Shape()...), graph.Dims(wants[i])))
				}
			}
			from[p.Name] = parts
			continue
		}
		if len(names) > 1 {
			want = want[1:]
		}
		for _, name := range names {
			t, ok := s.lookup(name)
			if m.Config.Tied && name == tableName {
				if !ok {
					t, ok = s.lookup(headName)
				}
				if ok {
					report.Tied = t.Name()
				}
			}
			if !ok {
				missing = append(missing, name)
				continue
			}
			from[p.Name] = append(from[p.Name], t)
			used[t.Name()] = true
			switch {
			case !slices.Equal(t.Shape(), want) && (s.gguf == nil || !slices.Equal(withoutOnes(t.Shape()), withoutOnes(want))):
				shapes = append(shapes, fmt.Sprintf("%s is %s, the config says %s", t.Name(), graph.Dims(t.Shape()), graph.Dims(want)))
			case t.DType().IsFloat8():
				q, err := s.ck.FP8(t.Name())
				if err != nil {
					return report, err
				}
				codes[t.Name()], used[q.StepsName] = q, true
			case t.Coding() == checkpoint.Plain && !t.DType().IsFloat():
				shapes = append(shapes, fmt.Sprintf("%s is stored as %s, must be a float", t.Name(), t.DType()))
			}
		}
	}
	head, hasHead := s.lookup(headName)
	for _, t := range s.ck.Tensors() {
		switch {
		case used[t.Name()]:
		case s.sees(t.Name()):
			report.Sight = append(report.Sight, t.Name())
		case strings.HasSuffix(t.Name(), ".rotary_emb.inv_freq"), m.Config.skips(s.ours(t.Name())), len(codes) > 0 && isActivationStep(t.Name()), s.gguf != nil && isRopeFactors(t.Name()),
			m.Config.Tied && hasHead && t == head:
			report.Ignored = append(report.Ignored, t.Name())
		default:
			unexpected = append(unexpected, t.Name())
		}
	}
	for _, x := range []struct {
		what string
		list []string
	}{{"missing tensors", missing}, {"tensors that do not fit", shapes}, {"unexpected tensors", unexpected}} {
		if x.list != nil {
			return report, fmt.Errorf("%s: %s%s", x.what, strings.Join(slices.Compact(x.list), ", "), s.foreign(unexpected))
		}
	}
	if err := s.checkMemory(params, from); err != nil {
		return report, err
	}
	for _, want := range params {
		parts := from[want.Name]
		if q := codes[parts[0].Name()]; q != nil && len(parts) == 1 && s.kept.codes(want.Name) {
			if err := m.addCodes(want.Name, q, s); err != nil {
				return report, err
			}
			continue
		}
		if c := s.blocksOf(want, from); c != 0 {
			if err := m.addBlocks(want.Name, parts[0], c, s); err != nil {
				return report, err
			}
			continue
		}
		kept := s.kept.of(parts[0], want.Type.Shape)
		if mixture, ok := mixtureOf(want.Name); ok {
			var all []*checkpoint.Tensor
			for _, kind := range []string{"gate_proj", "up_proj", "down_proj"} {
				all = append(all, from[mixture+kind+".weight"]...)
			}
			kept = s.kept.ofStacks(all)
		}
		if strings.HasSuffix(want.Name, ".bias") { // ops read them wide
			kept = dtype.Float32
		}
		p, err := m.params.Add(want.Name, graph.T(kept, want.Type.Shape...), false)
		if err != nil {
			return report, err
		}
		if fused, half := s.fusedExperts(want.Name); fused != nil {
			err = readHalf(p, fused, half)
		} else if stack, ok := m.Config.ossStack(want.Name); ok && s.gguf == nil {
			err = stack.read(p, parts)
		} else if s.splitKV(want.Name) != nil {
			err = m.readKV(p, parts)
		} else if len(parts) > 1 {
			err = readStack(p, parts, codes)
		} else if q := codes[parts[0].Name()]; q != nil {
			wide := make([]float32, p.Type.Size())
			err = q.Float32(wide)
			narrow(p.Tensor(), wide)
		} else {
			err = m.read(p, parts[0], s)
		}
		if err != nil {
			return report, err
		}
		p.Touch()
		if p.Forget == nil { // else it is the file's memory
			for _, t := range parts {
				t.Forget()
			}
		}
	}
	return report, nil
}

// untie takes back tie_word_embeddings where the file has a table and another
// head: transformers ties them only if they are equal.
func (m *Transformer) untie(s *source, report *LoadReport) error {
	table, hasTable := s.lookup(tableName)
	head, hasHead := s.lookup(headName)
	if !m.Config.Tied || !hasTable || !hasHead {
		return nil
	}
	same, err := equalBytes(head, table)
	if err == nil && !same {
		m.Config.Tied, report.Untied = false, head.Name()
	}
	return err
}

// equalBytes compares two tensors as they are stored.
func equalBytes(a, b *checkpoint.Tensor) (bool, error) {
	if a.Type() != b.Type() || !slices.Equal(a.Shape(), b.Shape()) {
		return false, nil
	}
	const piece = 1 << 16
	if a.Rows() == 0 {
		return true, nil
	}
	row := a.Bytes() / int64(a.Rows())
	per := max(int(piece/max(row, 1)), 1)
	x, y := make([]byte, int64(per)*row), make([]byte, int64(per)*row)
	for first := 0; first < a.Rows(); first += per {
		rows := min(per, a.Rows()-first)
		x, y := x[:int64(rows)*row], y[:int64(rows)*row]
		if err := a.RawRows(x, first, rows); err != nil {
			return false, err
		}
		if err := b.RawRows(y, first, rows); err != nil {
			return false, err
		}
		if !bytes.Equal(x, y) {
			return false, nil
		}
	}
	return true, nil
}

// read gives a parameter its value, in the order and scale of Hugging Face.
func (m *Transformer) read(p *graph.Param, t *checkpoint.Tensor, s *source) error {
	turned := m.turned(p.Name, s)
	if _, stack := mixtureOf(p.Name); p.Type.DType == t.DType() && !s.kept.wide && (stack || len(t.Shape()) == 2) {
		return m.place(p, t, turned, s)
	}
	w := p.Tensor()
	if w.DType == dtype.Float32 {
		wide := graph.Data[float32](w)
		if turned > 0 && len(t.Shape()) == 2 {
			return m.turnedRows(wide, t, 0, t.Rows())
		}
		if err := inOrder(t.Float32, wide, turned, m.Config.HeadDim, t.RowLen()); err != nil {
			return err
		}
		if s.gguf != nil {
			return m.undoGGUF(p, wide)
		}
		return nil
	}
	if t.Coding() == checkpoint.MXFP4 && w.DType == dtype.BFloat16 && turned == 0 {
		return readFP4(w, t)
	}
	return rounded(w, func(wide []float32, first, rows int) error {
		if turned == 0 {
			return t.Float32Rows(wide, first, rows)
		}
		return m.turnedRows(wide, t, first, rows)
	})
}

// turnedRows reads rows of a projection in order from a file that has them in
// that of checkpoint.LlamaRow.
func (m *Transformer) turnedRows(wide []float32, t *checkpoint.Tensor, first, rows int) error {
	for r := range rows {
		row := checkpoint.LlamaRow(first+r, m.Config.HeadDim)
		if err := t.Float32Rows(wide[r*t.RowLen():(r+1)*t.RowLen()], row, 1); err != nil {
			return err
		}
	}
	return nil
}

// mixtureOf is what the names of the stacks of a mixture begin with.
func mixtureOf(name string) (prefix string, ok bool) {
	const experts = ".mlp.experts."
	layer, _, ok := strings.Cut(name, experts)
	return layer + experts, ok
}

// readStack fills a stack from its parts.
func readStack(p *graph.Param, parts []*checkpoint.Tensor, codes map[string]*checkpoint.FP8Weight) error {
	w := p.Tensor()
	n, size := w.Size()/len(parts), len(w.Bytes())/len(parts)
	var wide []float32
	for i, t := range parts {
		var err error
		switch q := codes[t.Name()]; {
		case q == nil && t.DType() == w.DType:
			err = t.Raw(w.Bytes()[i*size:][:size])
		default:
			if wide == nil {
				wide = make([]float32, n)
			}
			read := t.Float32
			if q != nil {
				read = q.Float32
			}
			err = read(wide)
			narrowPart(w, i*n, wide)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// narrowPart rounds numbers into a part of w.
func narrowPart(w graph.Tensor, at int, wide []float32) {
	switch w.DType {
	case dtype.BFloat16:
		dtype.FromFloat32(graph.Data[dtype.BF16](w)[at:][:len(wide)], wide)
	case dtype.Float16:
		dtype.FromFloat32(graph.Data[dtype.F16](w)[at:][:len(wide)], wide)
	default:
		copy(graph.Data[float32](w)[at:], wide)
	}
}

// skips reports a tensor of a layer behind the last one, where the config says
// that there are such.
func (c *Config) skips(name string) bool {
	rest, ok := strings.CutPrefix(name, "model.layers.")
	if !ok {
		return false
	}
	digits, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(digits)
	return err == nil && n >= c.Layers && n < c.Layers+c.Skipped
}

// place gives a matrix that is stored as it is kept its value: the file's memory
// where that is possible, else a copy. Nothing writes to it: only a model that is
// opened with Widen, whose weights are copies, is trained.
func (m *Transformer) place(p *graph.Param, t *checkpoint.Tensor, turned int, s *source) error {
	if mem, ok := view(t); ok && (turned == 0 || p.Type.DType == dtype.UInt8) {
		m.files = s.ck
		p.Forget = t.Forget
		if turned > 0 {
			ops.SetRows(p, native.Rows(m.Config.HeadDim)) // the op reads them in order
		}
		return p.Adopt(mem)
	}
	return inOrder(t.Raw, p.Tensor().Bytes(), turned, m.Config.HeadDim, int(t.Bytes())/max(t.Rows(), 1))
}

// view is the memory of a tensor in its mapped file, if its numbers lie where
// the machine can read them.
func view(t *checkpoint.Tensor) (mem []byte, ok bool) {
	switch t.DType() {
	case dtype.Float32:
		_, ok = checkpoint.View[float32](t)
	case dtype.BFloat16:
		_, ok = checkpoint.View[dtype.BF16](t)
	case dtype.Float16:
		_, ok = checkpoint.View[dtype.F16](t)
	default:
		ok = true
	}
	if !ok {
		return nil, false
	}
	return checkpoint.View[uint8](t)
}

// turned is the number of heads whose rows the file has in another order.
func (m *Transformer) turned(name string, s *source) int {
	if s.gguf == nil || !s.gguf.turned {
		return 0
	}
	return m.turnedHeads(name)
}

// inOrder reads a tensor into w and undoes the order that GGUF gives the rows of
// turned heads; 0 heads: they are in order.
func inOrder[T any](read func([]T) error, w []T, turned, headDim, rowLen int) error {
	if turned == 0 {
		return read(w)
	}
	file := make([]T, len(w))
	if err := read(file); err != nil {
		return err
	}
	return checkpoint.UndoLlamaPermutation(w, file, turned, headDim, rowLen)
}

// rounded fills a matrix or stack in 16 bits from rows in float32, some at a time.
func rounded(w graph.Tensor, read func(wide []float32, first, rows int) error) error {
	const piece = 1 << 18
	n, k := w.Shape[0], w.Size()/w.Shape[0]
	per := max(piece/k, 1)
	wide := make([]float32, min(per, n)*k)
	for first := 0; first < n; first += per {
		rows := min(per, n-first)
		part := wide[:rows*k]
		if err := read(part, first, rows); err != nil {
			return err
		}
		narrowPart(w, first*k, part)
	}
	return nil
}

// turnedHeads is the number of heads of a projection to queries or keys, and 0
// for other tensors.
func (m *Transformer) turnedHeads(name string) int {
	switch {
	case strings.Contains(name, ".q_proj."):
		return m.Config.Heads
	case strings.Contains(name, ".k_proj."):
		return m.Config.KVHeads
	}
	return 0
}
