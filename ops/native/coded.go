package native

import (
	"encoding/binary"
	"fmt"
	"math"
)

// This file is the products and the table with weights stored in 16 bits or in
// blocks of 4 or 8 bits. A weight is read once, in its stored form, and widened
// a piece at a time inside the cache, so every result has the bits that the
// widened weight would give.

// Coding says how a stored weight is written.
type Coding uint8

// The 16-bit floats, and blocks of 32 or 256 numbers as GGUF files have them: q is
// their whole number, d and m are binary16 and the same for a block, s and t whole
// numbers and the same for a run of 32 or, in Q6_K, 16.
const (
	CodedBF16 Coding = iota + 1 // the upper half of a float32
	CodedF16                    // IEEE binary16
	CodedQ8_0                   // d, then 32 int8: d q
	CodedQ4_0                   // d, then 16 bytes: d (q - 8); low halves are the first 16
	CodedQ4_1                   // d, m, then 16 bytes: d q + m
	CodedQ4_K                   // d, m, 12 bytes of s and t, 128 of q: d s q - m t
	CodedQ5_K                   // d, m, 12 bytes of s and t, 32 of fifth bits, 128 of q: d s q - m t
	CodedQ6_K                   // 128 bytes of q, 64 of its upper bits, 16 int8 s, d: d s (q - 32)
)

func (c Coding) String() string {
	names := [...]string{CodedBF16: "bf16", CodedF16: "f16", CodedQ8_0: "Q8_0", CodedQ4_0: "Q4_0", CodedQ4_1: "Q4_1", CodedQ4_K: "Q4_K", CodedQ5_K: "Q5_K", CodedQ6_K: "Q6_K"}
	if int(c) < len(names) && names[c] != "" {
		return names[c]
	}
	return fmt.Sprintf("Coding(%d)", uint8(c))
}

// codedBlock is the numbers of a block of the codings with small blocks.
const codedBlock = 32

// Bytes is the size of a row of k numbers, a multiple of Block.
func (c Coding) Bytes(k int) int {
	switch c {
	case CodedQ8_0:
		return k / codedBlock * 34
	case CodedQ4_0:
		return k / codedBlock * 18
	case CodedQ4_1:
		return k / codedBlock * 20
	case CodedQ4_K:
		return k / superBlock * 144
	case CodedQ5_K:
		return k / superBlock * 176
	case CodedQ6_K:
		return k / superBlock * 210
	case codedFP8:
		return k
	}
	return 2 * k
}

// Blocks reports whether rows must be a multiple of 32 numbers, or of more.
func (c Coding) Blocks() bool { return c >= CodedQ8_0 && c <= CodedQ6_K }

// Rows is the order of the rows of a stored weight: 0 as they are, else heads of
// so many rows (an even number) in which neighbours are half a head apart, as
// GGUF has the queries and keys of llama: row s n/2 + i of a head, s of 0 and 1,
// lies at 2i + s.
type Rows int

// at is where a row lies.
func (r Rows) at(row int) int {
	n := int(r)
	if n == 0 {
		return row
	}
	head, i := row/n*n, row%n
	return head + i%(n/2)*2 + i/(n/2)
}

// LinearCoded is Linear with w[N,K] stored in a coding.
func LinearCoded(y, x []float32, w []byte, b []float32, c Coding, order Rows, m, n, k int) {
	LinearsCoded(x, m, k, []CodedLinear{{Y: y, W: w, Bias: b, Coding: c, Rows: order, N: n}})
}

// launch computes the product in pieces of w that are widened once for all rows.
func (a *codedArgs) launch() {
	switch a.cols = tileCols[float32](); {
	case a.panels != nil:
		a.cols = panelCols
	case a.m > gemmFew:
		a.cols = codedCols
	}
	linearCoded.launch(ceilDiv(a.n, a.cols), *a)
}

// LinearCodedGradInput is LinearGradInput with w[N,K] stored in a coding.
func LinearCodedGradInput(dx, dy []float32, w []byte, c Coding, order Rows, m, n, k int) {
	a := codedArgs{y: dx, x: dy, w: w, coding: c, order: order, m: m, n: n, k: k, cols: max(codedCols, c.Block())}
	linearCodedGrad.launch(ceilDiv(k, a.cols), a)
}

// EmbeddingCoded is Embedding with the table w[V,D] stored in a coding.
func EmbeddingCoded(y []float32, w []byte, c Coding, ids []int32, n, v, d int) error {
	if err := checkIDs(ids[:n], v); err != nil {
		return err
	}
	per := rowsPerUnit(d)
	embeddingCoded.launch(ceilDiv(n, per), codedArgs{y: y, w: w, ids: ids, coding: c, n: n, k: d, cols: per})
	return nil
}

// codedCols is how many columns of a result a unit takes when there are many
// rows: whole blocks.
const codedCols = 64

// codedArgs are the arguments of one launch; cols is what a unit takes.
type codedArgs struct {
	y, x, bias    []float32
	add           []float32 // to y of panels, or nil
	w, panels     []byte    // panels may be nil
	fp8           FP8Matrix // of codedFP8
	ids           []int32
	coding        Coding
	order         Rows
	m, n, k, cols int
}

var (
	linearCoded     = newKernel(linearCodedUnit)
	linearCodedGrad = newKernel(linearCodedGradUnit)
	embeddingCoded  = newKernel(embeddingCodedUnit)
)

// widen fills y with the numbers of a row of w from column j on; both j and the
// length are whole blocks.
func (a *codedArgs) widen(y []float32, row, j int) {
	if a.coding == codedFP8 {
		a.fp8.widen(y, row, j)
		return
	}
	a.coding.widen(y, a.w[a.order.at(row)*a.coding.Bytes(a.k)+a.coding.Bytes(j):])
}

// linearCodedUnit computes columns of y.
func linearCodedUnit(a *codedArgs, unit int) {
	if a.m > 0 {
		j := unit * a.cols
		a.widened(a.x, j, min(a.cols, a.n-j))
	}
}

// widened computes columns j..j+cols of y, gemmKC products at a time as Gemm does.
func (a *codedArgs) widened(x []float32, j, cols int) {
	wide := takeScratch[float32](cols * gemmKC)
	g := gemmOperands[float32]{m: a.m, n: cols, alpha: 1, lda: a.k, b: wide, c: a.y[j:], ldc: a.n}
	if a.bias != nil {
		g.s, g.beta = a.bias[j:], 1
	} else {
		g.s, g.lds = g.c, a.n
	}
	g.transB = a.panels == nil || cols < panelCols
	for p := 0; p < a.k || p == 0; p += gemmKC {
		kc := min(gemmKC, a.k-p)
		if g.ldb = kc; g.transB {
			for r := range cols {
				a.widen(wide[r*kc:][:kc], j+r, p)
			}
		} else {
			g.ldb = panelCols
			panelRows(a.coding, &wide[0], &a.panels[(j*a.k+p*panelCols)*2], kc/2)
		}
		g.k, g.a = kc, x[p:]
		g.serial()
		g.s, g.lds, g.beta = g.c, a.n, 1
	}
	giveScratch(wide)
}

// linearCodedGradUnit computes columns of dx, gemmKC rows of w at a time.
func linearCodedGradUnit(a *codedArgs, unit int) {
	if a.m == 0 {
		return
	}
	j := unit * a.cols
	cols := min(a.cols, a.k-j)
	wide := takeScratch[float32](cols * gemmKC)
	g := gemmOperands[float32]{m: a.m, n: cols, alpha: 1, lda: a.n, b: wide, ldb: cols, s: a.y[j:], lds: a.k, c: a.y[j:], ldc: a.k}
	for p := 0; p < a.n || p == 0; p += gemmKC {
		g.k = min(gemmKC, a.n-p)
		for r := range g.k {
			a.widen(wide[r*cols:][:cols], p+r, j)
		}
		g.a = a.x[p:]
		g.serial()
		g.beta = 1
	}
	giveScratch(wide)
}

func embeddingCodedUnit(a *codedArgs, unit int) {
	for t := unit * a.cols; t < min((unit+1)*a.cols, a.n); t++ {
		a.widen(a.y[t*a.k:][:a.k], int(a.ids[t]), 0)
	}
}

// Widen fills y [N,K] with a stored weight.
func (c Coding) Widen(y []float32, x []byte, order Rows, n, k int) {
	a := codedArgs{w: x, coding: c, order: order, k: k}
	for row := range n {
		a.widen(y[row*k:(row+1)*k], row, 0)
	}
}

// widen fills y with the first numbers of x.
func (c Coding) widen(y []float32, x []byte) {
	if len(y) == 0 {
		return
	}
	full := 0 // what the assembly has done
	if inAssembly[float32]() && c.Block() <= codedBlock {
		step, of := codedSteps(c)
		if full = len(y) / step * step; full > 0 {
			of(&y[0], &x[0], full)
		}
	}
	y, x = y[full:], x[c.Bytes(full):]
	switch c {
	case CodedBF16:
		for i := range y {
			y[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(x[2*i:])) << 16)
		}
	case CodedF16:
		for i := range y {
			y[i] = fromF16(binary.LittleEndian.Uint16(x[2*i:]))
		}
	case CodedQ4_K, CodedQ5_K, CodedQ6_K:
		for ; len(y) >= superBlock; y, x = y[superBlock:], x[c.Bytes(superBlock):] {
			c.superWiden(y[:superBlock], x)
		}
	default:
		for ; len(y) >= codedBlock; y, x = y[codedBlock:], x[c.Bytes(codedBlock):] {
			c.block(y[:codedBlock], x)
		}
	}
}

// block widens one block; every product is exact, so each number is rounded
// once at most.
func (c Coding) block(y []float32, x []byte) {
	d := fromF16(binary.LittleEndian.Uint16(x))
	switch c {
	case CodedQ8_0:
		for i := range y {
			y[i] = d * float32(int8(x[2+i]))
		}
	case CodedQ4_0:
		for i, q := range x[2:18] {
			y[i], y[i+16] = d*float32(int(q&15)-8), d*float32(int(q>>4)-8)
		}
	case CodedQ4_1:
		m := fromF16(binary.LittleEndian.Uint16(x[2:]))
		for i, q := range x[4:20] {
			y[i], y[i+16] = float32(d*float32(q&15))+m, float32(d*float32(q>>4))+m
		}
	}
}

// fromF16 widens one IEEE binary16.
func fromF16(u uint16) float32 {
	sign, exp, frac := uint32(u>>15)<<31, uint32(u>>10)&0x1f, uint32(u)&0x3ff
	switch exp {
	case 0: // zero or subnormal: frac 2^-24
		f := float32(frac) * 0x1p-24
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 0x1f: // infinity or NaN, quiet as the instruction makes it
		if frac != 0 {
			frac |= 0x200
		}
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}
