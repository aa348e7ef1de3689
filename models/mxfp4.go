// Weights in MXFP4: codes of 4 bits, and for each 32 of them a power of two. All are
// numbers of bfloat16.

package models

import (
	"fmt"
	"math"
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops/native"
)

// fp4 are the values of E2M1, behind them the negative ones.
var fp4 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// fp4Values are the numbers of folders, fp4 times 2^(scale-127).
var fp4Values = sync.OnceValue(func() *native.FP4Values {
	return fp4Table(func(wide []float32, scale byte) {
		for i, x := range fp4 {
			wide[i] = x * float32(math.Ldexp(1, int(scale)-127))
		}
	})
})

// ggufFP4Values are those that checkpoint.MXFP4 decodes to.
var ggufFP4Values = sync.OnceValue(func() *native.FP4Values {
	return fp4Table(func(wide []float32, scale byte) {
		block, numbers := make([]byte, 17), make([]float32, 32)
		block[0] = scale
		for code := range byte(16) {
			block[1+code] = code
		}
		if err := checkpoint.MXFP4.Decode(numbers, block); err != nil {
			panic(err) // it is one block
		}
		copy(wide, numbers)
	})
})

func fp4Table(of func(wide []float32, scale byte)) *native.FP4Values {
	var values native.FP4Values
	wide, narrow := make([]float32, 16), make([]dtype.BF16, 16)
	for scale := range values {
		of(wide, byte(scale))
		dtype.FromFloat32(narrow, wide)
		for code, x := range narrow {
			values[scale][code] = uint16(x)
		}
	}
	return &values
}

// storedBytes is a tensor as its file has it: the file's memory where that is
// possible, else a copy.
func storedBytes(t *checkpoint.Tensor) ([]byte, error) {
	if mem, ok := checkpoint.View[uint8](t); ok {
		return mem, nil
	}
	mem := make([]byte, t.Bytes())
	return mem, t.Raw(mem)
}

// readBlocks fills the parameter from the blocks and scales of a folder: the earlier
// of two codes is in the lower half of their byte.
func (s ossStack) readBlocks(p *graph.Param, blocks, scales *checkpoint.Tensor) error {
	if s.in%32 != 0 {
		return fmt.Errorf("%s is for %d inputs, required a multiple of 32", blocks.Name(), s.in)
	}
	codes, err := storedBytes(blocks)
	if err != nil {
		return err
	}
	exponents, err := storedBytes(scales)
	if err != nil {
		return err
	}
	x := native.FP4Rows{Codes: codes[s.half*s.in/2:], CodeStep: 16, Scales: exponents[s.half*s.in/32:], ScaleStep: 1, Step: s.step}
	w, rows := p.Tensor(), s.experts*s.out/s.step
	if w.DType == dtype.BFloat16 {
		native.WidenFP4(w.Bytes(), x, fp4Values(), rows, s.in)
		return nil
	}
	return rounded(w, func(wide []float32, first, n int) error {
		part, narrow := x, graph.NewTensor(graph.T(dtype.BFloat16, len(wide)))
		// One of the first dimension is an expert's rows.
		each := rows / s.experts
		part.Codes, part.Scales = x.Codes[first*each*s.step*s.in/2:], x.Scales[first*each*s.step*s.in/32:]
		native.WidenFP4(narrow.Bytes(), part, fp4Values(), n*each, s.in)
		dtype.ToFloat32(wide, graph.Data[dtype.BF16](narrow))
		return nil
	})
}

// readFP4 fills a matrix or stack in bfloat16 from blocks of GGUF.
func readFP4(w graph.Tensor, t *checkpoint.Tensor) error {
	mem, err := storedBytes(t)
	if err != nil {
		return err
	}
	k := w.Shape[len(w.Shape)-1]
	x := native.FP4Rows{Codes: mem[min(1, len(mem)):], CodeStep: 17, Scales: mem, ScaleStep: 17, Step: 1, Halves: true}
	native.WidenFP4(w.Bytes(), x, ggufFP4Values(), w.Size()/k, k)
	return nil
}
