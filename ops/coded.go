package ops

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

// Coding is how a weight of 4 or 8 bits lies in memory: see native.Coding.
type Coding = native.Coding

// The block codings that Linear and Embedding read as they are. A parameter in
// one of them is uint8 [N, bytes of a row].
const (
	Q8_0 = native.CodedQ8_0
	Q4_0 = native.CodedQ4_0
	Q4_1 = native.CodedQ4_1
	Q4_K = native.CodedQ4_K
	Q5_K = native.CodedQ5_K
	Q6_K = native.CodedQ6_K
)

const codingKey = "coding"

// SetCoding says in which coding the uint8 rows of a parameter are.
func SetCoding(p *graph.Param, c Coding) { p.Attach(codingKey, func() any { return c }) }

// CodingOf is the coding of a parameter, 0 for plain numbers.
func CodingOf(p *graph.Param) Coding {
	if p == nil || p.Type.DType != dtype.UInt8 {
		return 0
	}
	return p.Attach(codingKey, func() any { return Coding(0) }).(Coding)
}

const rowsKey = "rows"

// SetRows says in which order the rows of a parameter in blocks lie: see
// native.Rows.
func SetRows(p *graph.Param, r native.Rows) { p.Attach(rowsKey, func() any { return r }) }

// RowsOf is that order.
func RowsOf(p *graph.Param) native.Rows {
	if p == nil || p.Type.DType != dtype.UInt8 {
		return 0
	}
	return p.Attach(rowsKey, func() any { return native.Rows(0) }).(native.Rows)
}

// rowsOf is that of a node; 0 for one that is missing.
func rowsOf(w *graph.Node) native.Rows {
	if w == nil {
		return 0
	}
	return RowsOf(w.Param())
}

// codingOf is that of a node; 0 for one that is missing.
func codingOf(w *graph.Node) Coding {
	if w == nil {
		return 0
	}
	return CodingOf(w.Param())
}

// isHalf reports a weight stored in 16 bits.
func isHalf(t graph.Type) bool {
	return t.DType == dtype.BFloat16 || t.DType == dtype.Float16
}

// asWide is the type of a stored weight [N,K], or stack of them, as the op sees it:
// float32 for one in 16 bits or in blocks.
func asWide(w graph.Type, c Coding) (graph.Type, error) {
	switch {
	case c != 0 && !c.Blocks():
		return w, fmt.Errorf("%s has no blocks", c)
	case c != 0:
		block := c.Block()
		row := c.Bytes(block)
		if w.DType != dtype.UInt8 || w.Rank() != 2 && w.Rank() != 3 || last(w)%row != 0 {
			return w, fmt.Errorf("rows of %s must be uint8 [...,N, a multiple of %d], got %s", c, row, w)
		}
		w = withLast(w, last(w)/row*block)
		w.DType = dtype.Float32
		return w, nil
	case isHalf(w):
		w.DType = dtype.Float32
	}
	return w, nil
}

// coded is the memory of a weight that is read as it is stored.
func coded(w graph.Tensor, c Coding) ([]byte, Coding, bool) {
	switch {
	case c != 0:
		return w.Bytes(), c, true
	case w.DType == dtype.BFloat16:
		return w.Bytes(), native.CodedBF16, true
	case w.DType == dtype.Float16:
		return w.Bytes(), native.CodedF16, true
	}
	return nil, 0, false
}
