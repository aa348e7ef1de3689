// The row order of llama query and key weights in GGUF files.

package checkpoint

import "fmt"

// UndoLlamaPermutation puts the rows of a query or key projection of a GGUF
// file of architecture llama back into the order of Hugging Face checkpoints.
// src and dst are [heads x headDim, rowLen] and must not overlap; T may be
// float32, or a byte of a row that stays packed, or of a bias (rowLen 1).
//
// Hugging Face rotates row i of a head with row i + headDim/2, GGUF's writer
// makes them neighbours: dst[h headDim + s headDim/2 + i] = src[h headDim + 2i + s]
// for s of 0, 1 and i below headDim/2. Keys have their own number of heads.
func UndoLlamaPermutation[T any](dst, src []T, heads, headDim, rowLen int) error {
	if heads < 1 || headDim < 2 || headDim%2 != 0 || rowLen < 0 {
		return fmt.Errorf("llama permutation: at least 1 head, an even head size and a row length are required, got %d heads of %d, rows of %d", heads, headDim, rowLen)
	}
	n, ok := product([]uint64{uint64(heads), uint64(headDim), uint64(rowLen)})
	if !ok || uint64(len(src)) != n || uint64(len(dst)) != n {
		return fmt.Errorf("llama permutation: %d heads of %d rows of %d elements, got source %d and destination %d", heads, headDim, rowLen, len(src), len(dst))
	}
	if n == 0 {
		return nil
	}
	for row := range heads * headDim {
		from := LlamaRow(row, headDim) * rowLen
		copy(dst[row*rowLen:(row+1)*rowLen], src[from:from+rowLen])
	}
	return nil
}

// LlamaRow is the row of the GGUF tensor that holds row of the Hugging Face
// order; headDim must be even and at least 2.
func LlamaRow(row, headDim int) int {
	h, r := row/headDim, row%headDim
	return h*headDim + r%(headDim/2)*2 + r/(headDim/2)
}
