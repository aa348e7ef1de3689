// How the elements of a tensor are stored: one by one, or in blocks.

package checkpoint

import "fmt"

// Coding names the block coding of a quantised tensor, as GGUF files have
// them. A block decodes to its elements in float32; every product in it is
// exact, so each element is rounded at most once.
type Coding uint8

// Plain is storage element by element: every safetensors tensor.
const (
	Plain Coding = iota
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	IQ4_NL
	IQ4_XS
	MXFP4
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
}{
	Plain:  {"plain", block{1, 1}, nil},
	Q4_0:   {"Q4_0", block{32, 18}, decodeQ4_0},
	Q4_1:   {"Q4_1", block{32, 20}, decodeQ4_1},
	Q5_0:   {"Q5_0", block{32, 22}, decodeQ5_0},
	Q5_1:   {"Q5_1", block{32, 24}, decodeQ5_1},
	Q8_0:   {"Q8_0", block{32, 34}, decodeQ8_0},
	Q2_K:   {"Q2_K", block{256, 84}, decodeQ2_K},
	Q3_K:   {"Q3_K", block{256, 110}, decodeQ3_K},
	Q4_K:   {"Q4_K", block{256, 144}, decodeQ4_K},
	Q5_K:   {"Q5_K", block{256, 176}, decodeQ5_K},
	Q6_K:   {"Q6_K", block{256, 210}, decodeQ6_K},
	IQ4_NL: {"IQ4_NL", block{32, 18}, decodeIQ4_NL},
	IQ4_XS: {"IQ4_XS", block{256, 136}, decodeIQ4_XS},
	MXFP4:  {"MXFP4", block{32, 17}, decodeMXFP4},
}

func (c Coding) String() string {
	if c >= codingCount {
		return fmt.Sprintf("coding(%d)", uint8(c))
	}
	return codings[c].name
}

// Block is the size of one block: so many elements in so many bytes. It is
// 0, 0 for Plain, whose element has the size of its type.
func (c Coding) Block() (elements, bytes int) {
	if c == Plain || c >= codingCount {
		return 0, 0
	}
	return codings[c].elements, codings[c].bytes
}

// Decode decodes whole blocks from src into dst.
func (c Coding) Decode(dst []float32, src []byte) error {
	n, size := c.Block()
	if n == 0 {
		return fmt.Errorf("%s: decoding needs a block coding", c)
	}
	if len(src)%size != 0 || len(dst) != len(src)/size*n {
		return fmt.Errorf("%s: blocks of %d bytes give %d elements each; got %d bytes and a destination of %d elements", c, size, n, len(src), len(dst))
	}
	decodeBlocks(c, dst, src)
	return nil
}

func decodeBlocks(c Coding, dst []float32, src []byte) {
	b := &codings[c]
	for ; len(src) >= b.bytes; src = src[b.bytes:] {
		b.decode(dst[:b.elements], src[:b.bytes])
		dst = dst[b.elements:]
	}
}
