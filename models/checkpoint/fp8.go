// FP8 checkpoints: codes and the steps that belong to them.

package checkpoint

import (
	"errors"
	"fmt"
	"math"
)

// fp8Block is the side of the square blocks of a block-wise quantised weight.
const fp8Block = 128

// FP8Weight is a weight [N,K] stored as 8-bit floats with quantisation steps:
// value[n,k] = code[n,k] * step[n / BlockRows, k / BlockCols].
type FP8Weight struct {
	Codes *Tensor // E4M3 or E5M2, [N,K]
	// Steps is [ceil(N/BlockRows), ceil(K/BlockCols)], row-major: one step
	// when the blocks are N x K, one for each row when they are 1 x K, else
	// blocks are 128 x 128.
	Steps                []float32
	BlockRows, BlockCols int
	StepsName            string // the tensor that holds the steps
}

// StepNames are the names under which the steps of a weight are stored: the
// weight's name with "_scale" (compressed-tensors, per tensor, channel or
// block) or "_scale_inv" (DeepSeek, blocks). Both hold the step a code is
// multiplied with, whatever the name says.
func StepNames(weight string) []string {
	return []string{weight + "_scale", weight + "_scale_inv"}
}

// FP8 pairs the weight called name with its steps. The steps' shape says what
// they cover: [] or [1] or [1,1] the tensor, [N] or [N,1] the rows,
// [ceil(N/128), ceil(K/128)] blocks. A weight that is not FP8 or not [N,K],
// steps that are missing, present under both names, of another shape, or not
// positive and finite are errors.
func (c *Checkpoint) FP8(name string) (*FP8Weight, error) {
	if c == nil {
		return nil, errNoCheckpoint
	}
	codes, ok := c.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("%s: no tensor %q", c.path, name)
	}
	if !codes.dtype.IsFloat8() || len(codes.shape) != 2 {
		return nil, codes.errorf("an FP8 weight is F8_E4M3 or F8_E5M2 with 2 dimensions")
	}
	var steps *Tensor
	names := StepNames(name)
	for _, s := range names {
		t, ok := c.Lookup(s)
		if ok && steps != nil {
			return nil, codes.errorf("steps are given twice, as %q and %q", steps.name, s)
		}
		if ok {
			steps = t
		}
	}
	if steps == nil {
		return nil, codes.errorf("no steps: neither %q nor %q is there", names[0], names[1])
	}
	w := &FP8Weight{Codes: codes, StepsName: steps.name}
	if err := w.blocks(steps); err != nil {
		return nil, err
	}
	w.Steps = make([]float32, steps.n)
	if err := steps.Float32(w.Steps); err != nil {
		return nil, err
	}
	for i, s := range w.Steps {
		if !(s > 0) || math.IsInf(float64(s), 0) {
			return nil, steps.errorf("a step is positive and finite, number %d is %v", i, s)
		}
	}
	return w, nil
}

// blocks finds the block size from the shape of the steps.
func (w *FP8Weight) blocks(steps *Tensor) error {
	if !steps.dtype.IsFloat() || steps.dtype.IsFloat8() {
		return steps.errorf("steps of %q must be F32, F64, F16 or BF16", w.Codes.name)
	}
	n, k := w.Codes.shape[0], w.Codes.shape[1]
	rows, cols := ceilDiv(n, fp8Block), ceilDiv(k, fp8Block)
	s := steps.shape
	switch {
	case steps.n == 1 && len(s) <= 2:
		w.BlockRows, w.BlockCols = max(n, 1), max(k, 1)
	case len(s) == 1 && s[0] == n, len(s) == 2 && s[0] == n && s[1] == 1:
		w.BlockRows, w.BlockCols = 1, max(k, 1)
	case len(s) == 2 && s[0] == rows && s[1] == cols:
		w.BlockRows, w.BlockCols = fp8Block, fp8Block
	default:
		return steps.errorf("steps of %q %v are [1], [%d,1] or [%d,%d] (blocks of %d)", w.Codes.name, w.Codes.shape, n, rows, cols, fp8Block)
	}
	return nil
}

// Step is the step of element [row, col]; the indexes must lie in the weight.
func (w *FP8Weight) Step(row, col int) float32 {
	return w.Steps[row/w.BlockRows*ceilDiv(w.Codes.shape[1], w.BlockCols)+col/w.BlockCols]
}

// Float32 dequantises the whole weight into dst, which must have N x K
// elements: code times step, one float32 product.
func (w *FP8Weight) Float32(dst []float32) error {
	if w == nil {
		return errors.New("checkpoint: the weight is missing: Checkpoint.FP8 reads one")
	}
	if err := w.Codes.Float32(dst); err != nil {
		return err
	}
	k := w.Codes.shape[1]
	for row := range w.Codes.shape[0] {
		line := dst[row*k : (row+1)*k]
		for col := 0; col < k; col += w.BlockCols {
			step := w.Step(row, col)
			for i := col; i < min(col+w.BlockCols, k); i++ {
				line[i] *= step
			}
		}
	}
	return nil
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
