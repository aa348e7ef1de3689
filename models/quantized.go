// Weights that are stored in fewer bits than 16: 8-bit floats with steps, and the
// block codings of GGUF.

package models

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

// quantMethods are the values of quant_method whose weights are 8-bit floats
// with steps. Activations are not quantised here, whatever the config says of
// them: results are those of the stored weights, without the rounding of
// activations.
var quantMethods = []string{"fp8", "fbgemm_fp8", "compressed-tensors"}

func checkQuantization(raw json.RawMessage, kind string) error {
	var q struct {
		Method string `json:"quant_method"`
		Format string `json:"format"`
	}
	if err := json.Unmarshal(raw, &q); err != nil {
		return fmt.Errorf("quantization_config: %w", err)
	}
	if kind == "gpt_oss" && q.Method == "mxfp4" {
		return nil
	}
	if !slices.Contains(quantMethods, q.Method) {
		return fmt.Errorf("quantization_config: quant_method %q is not supported (supported: %s)", q.Method, strings.Join(quantMethods, ", "))
	}
	if q.Format != "" && q.Format != "float-quantized" && q.Format != "naive-quantized" {
		return fmt.Errorf("quantization_config: format %q is not supported (supported: float-quantized, naive-quantized)", q.Format)
	}
	return nil
}

// activationSteps are the ends of the names of steps that quantise activations.
var activationSteps = []string{".input_scale", ".activation_scale", ".input_scale_ub"}

func isActivationStep(name string) bool {
	return slices.ContainsFunc(activationSteps, func(end string) bool { return strings.HasSuffix(name, end) })
}

// addCodes gives the model a weight as its codes and, beside it under the name
// in the file, its steps; ops.Linear reads both.
func (m *Transformer) addCodes(name string, q *checkpoint.FP8Weight, src *source) error {
	n, k := q.Codes.Rows(), q.Codes.RowLen()
	w, err := m.params.Add(name, graph.T(q.Codes.DType(), n, k), false)
	if err != nil {
		return err
	}
	if err := m.place(w, q.Codes, 0, src); err != nil {
		return err
	}
	w.Touch()
	suffix := strings.TrimPrefix(q.StepsName, q.Codes.Name())
	s, err := m.params.Add(name+suffix, graph.T(dtype.Float32, blocks(n, q.BlockRows), blocks(k, q.BlockCols)), false)
	if err != nil {
		return err
	}
	s.Frozen = true
	copy(graph.Data[float32](s.Tensor()), q.Steps)
	s.Touch()
	return nil
}

// codings are the block codings of GGUF that ops read.
var codings = map[checkpoint.Coding]ops.Coding{
	checkpoint.Q8_0: ops.Q8_0, checkpoint.Q4_0: ops.Q4_0, checkpoint.Q4_1: ops.Q4_1,
	checkpoint.Q4_K: ops.Q4_K, checkpoint.Q5_K: ops.Q5_K, checkpoint.Q6_K: ops.Q6_K,
}

// blocks is the coding in which a matrix stays, 0 for none.
func (s storage) blocks(t *checkpoint.Tensor, shape []int) ops.Coding {
	c := codings[t.Coding()]
	if s.wide || s.matrices != dtype.Invalid || len(shape) < 2 || c == 0 || shape[len(shape)-1]%c.Block() != 0 {
		return 0
	}
	return c
}

// blocksOf is that of a parameter, for a stack of a mixture where ops read all three
// as they lie.
func (s *source) blocksOf(p *graph.Param, from map[string][]*checkpoint.Tensor) ops.Coding {
	names := []string{p.Name}
	if mixture, ok := mixtureOf(p.Name); ok {
		if s.clamped {
			return 0 // their op reads none
		}
		names = append(names, mixture+"gate_proj.weight", mixture+"up_proj.weight", mixture+"down_proj.weight")
	}
	for _, name := range names {
		t, _ := s.fusedExperts(name)
		if parts := from[name]; t != nil || len(parts) != 1 || s.kept.blocks(parts[0], parts[0].Shape()) == 0 {
			return 0
		}
	}
	return s.kept.blocks(from[p.Name][0], p.Type.Shape)
}

// checkMemory refuses weights of which copies do not fit: of all, in float32, or of
// those that leave their blocks.
func (s *source) checkMemory(params []*graph.Param, from map[string][]*checkpoint.Tensor) error {
	what, bytes := "weights in float32", 0
	for _, p := range params {
		t, kept := from[p.Name][0], s.kept.of(from[p.Name][0], p.Type.Shape)
		if len(p.Type.Shape) > 2 {
			kept = s.kept.ofMatrix(t)
		}
		if !s.kept.wide {
			if t.Coding() == checkpoint.Plain || s.blocksOf(p, from) != 0 {
				continue
			}
			what = fmt.Sprintf("weights decoded to %s, such as %s from %s,", kept, t.Name(), t.Coding())
		}
		bytes += kept.Size() * p.Type.Size()
	}
	return graph.CheckMemory(what, bytes)
}

// addBlocks gives the model a matrix in a block coding, as uint8 rows.
func (m *Transformer) addBlocks(name string, t *checkpoint.Tensor, c ops.Coding, s *source) error {
	shape := slices.Clone(t.Shape())
	shape[len(shape)-1] = c.Bytes(shape[len(shape)-1])
	p, err := m.params.Add(name, graph.T(dtype.UInt8, shape...), false)
	if err != nil {
		return err
	}
	ops.SetCoding(p, c)
	if err := m.place(p, t, m.turned(name, s), s); err != nil {
		return err
	}
	p.Touch()
	return nil
}

// shapeOf is the shape of a weight, whatever it is stored as.
func shapeOf(p *graph.Param) []int {
	if c := ops.CodingOf(p); c != 0 {
		shape := slices.Clone(p.Type.Shape)
		shape[len(shape)-1] = shape[len(shape)-1] / c.Bytes(c.Block()) * c.Block()
		return shape
	}
	return p.Type.Shape
}

func blocks(n, size int) int { return (n + size - 1) / size }

// stepsOf finds the steps of a weight stored as codes.
func (m *Transformer) stepsOf(weight string) *graph.Param {
	for _, name := range checkpoint.StepNames(weight) {
		if p := m.params.Get(name); p != nil {
			return p
		}
	}
	return nil
}

// isSteps reports the steps of a weight that the model holds as codes.
func (m *Transformer) isSteps(p *graph.Param) bool {
	for _, suffix := range []string{"_scale", "_scale_inv"} {
		if weight, ok := strings.CutSuffix(p.Name, suffix); ok {
			w := m.params.Get(weight)
			return w != nil && w.Type.DType.IsFloat8()
		}
	}
	return false
}

// wide is the value of a parameter in float32, whatever it is stored as.
func (m *Transformer) wide(p *graph.Param) []float32 {
	t := p.Tensor()
	if c := ops.CodingOf(p); c != 0 {
		shape := shapeOf(p)
		k := shape[len(shape)-1]
		x := make([]float32, graph.T(dtype.Float32, shape...).Size())
		c.Widen(x, t.Bytes(), ops.RowsOf(p), len(x)/k, k)
		return x
	}
	if !t.DType.IsFloat8() {
		return widened(t)
	}
	x := make([]float32, t.Size())
	if t.DType == dtype.Float8E4M3 {
		dtype.ToFloat32(x, graph.Data[dtype.E4M3](t))
	} else {
		dtype.ToFloat32(x, graph.Data[dtype.E5M2](t))
	}
	s := m.stepsOf(p.Name)
	if s == nil {
		return x
	}
	matrix, of := t.Shape, s.Type.Shape
	if len(matrix) == 3 { // a stack: each matrix has steps of its own
		matrix, of = matrix[1:], of[1:]
	}
	steps, cols := graph.Data[float32](s.Tensor()), of[1]
	n, k := matrix[0], matrix[1]
	// Steps are one for all, one a row, or one a block of 128 x 128; those of a stack are the latter.
	perRow, perCol := blocks(n, of[0]), blocks(k, cols)
	if of[0] > 1 && perRow > 1 {
		perRow = fp8Block
	}
	if cols > 1 {
		perCol = fp8Block
	}
	for i := range x {
		x[i] *= steps[i/(n*k)*of[0]*cols+i%(n*k)/k/perRow*cols+i%k/perCol]
	}
	return x
}

// fp8Block is the edge of the blocks that have a step each.
const fp8Block = 128
