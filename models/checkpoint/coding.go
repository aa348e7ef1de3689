// How the elements of a tensor are stored: one by one, or in blocks.

package checkpoint

import "fmt"

// Coding names the block coding of a quantised tensor.
type Coding uint8

// Plain is storage element by element: every safetensors tensor.
const (
	Plain Coding = iota
	codingCount
)

// block is the unit of a coding: so many elements in so many bytes.
type block struct{ elements, bytes int }

// codings describes each block coding; decode turns one block into its
// elements.
var codings = [codingCount]struct {
	name string
	block
	decode func(dst []float32, b []byte)
}{}

func (c Coding) String() string {
	if c >= codingCount {
		return fmt.Sprintf("coding(%d)", uint8(c))
	}
	return codings[c].name
}
