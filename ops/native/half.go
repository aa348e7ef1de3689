package native

import "math"

// This file is the products and the table with weights stored in 16 bits. A
// weight is read once, in its stored form, and widened a piece at a time inside
// the cache, so every result has the bits that the widened weight would give.

// Half says what the 16 bits of a stored number are.
type Half uint8

// The two 16-bit floats.
const (
	HalfBF16 Half = iota // the upper half of a float32
	HalfF16              // IEEE binary16
)

// LinearHalf is Linear with w[N,K] stored in 16 bits.
func LinearHalf(y, x []float32, w []uint16, b []float32, kind Half, m, n, k int) {
	a := halfArgs{y: y, x: x, w: w, bias: b, kind: kind, m: m, n: n, k: k, cols: tileCols[float32]()}
	if m > gemmFew {
		a.cols = halfCols // a piece of w that is widened once serves all rows
	}
	linearHalf.launch(ceilDiv(n, a.cols), a)
}

// LinearHalfGradInput is LinearGradInput with w[N,K] stored in 16 bits.
func LinearHalfGradInput(dx, dy []float32, w []uint16, kind Half, m, n, k int) {
	a := halfArgs{y: dx, x: dy, w: w, kind: kind, m: m, n: n, k: k, cols: halfCols}
	linearHalfGrad.launch(ceilDiv(k, a.cols), a)
}

// EmbeddingHalf is Embedding with the table w[V,D] stored in 16 bits.
func EmbeddingHalf(y []float32, w []uint16, kind Half, ids []int32, n, v, d int) error {
	if err := checkIDs(ids[:n], v); err != nil {
		return err
	}
	per := rowsPerUnit(d)
	embeddingHalf.launch(ceilDiv(n, per), halfArgs{y: y, w: w, ids: ids, kind: kind, n: n, k: d, cols: per})
	return nil
}

// halfCols is how many columns of a result a unit takes when there are many rows.
const halfCols = 64

// halfArgs are the arguments of one launch; cols is what a unit takes.
type halfArgs struct {
	y, x, bias    []float32
	w             []uint16
	ids           []int32
	kind          Half
	m, n, k, cols int
}

var (
	linearHalf     = newKernel(linearHalfUnit)
	linearHalfGrad = newKernel(linearHalfGradUnit)
	embeddingHalf  = newKernel(embeddingHalfUnit)
)

// linearHalfUnit computes columns of y, gemmKC products at a time as Gemm does.
func linearHalfUnit(a *halfArgs, unit int) {
	if a.m == 0 {
		return
	}
	j := unit * a.cols
	cols := min(a.cols, a.n-j)
	wide := takeScratch[float32](cols * gemmKC)
	g := gemmOperands[float32]{transB: true, m: a.m, n: cols, alpha: 1, lda: a.k, b: wide, c: a.y[j:], ldc: a.n}
	if a.bias != nil {
		g.s, g.beta = a.bias[j:], 1
	} else {
		g.s, g.lds = g.c, a.n
	}
	for p := 0; p < a.k || p == 0; p += gemmKC {
		kc := min(gemmKC, a.k-p)
		for r := range cols {
			a.kind.widen(wide[r*kc:][:kc], a.w[(j+r)*a.k+p:])
		}
		g.k, g.ldb, g.a = kc, kc, a.x[p:]
		g.serial()
		g.s, g.lds, g.beta = g.c, a.n, 1
	}
	giveScratch(wide)
}

// linearHalfGradUnit computes columns of dx, gemmKC rows of w at a time.
func linearHalfGradUnit(a *halfArgs, unit int) {
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
			a.kind.widen(wide[r*cols:][:cols], a.w[(p+r)*a.k+j:])
		}
		g.a = a.x[p:]
		g.serial()
		g.beta = 1
	}
	giveScratch(wide)
}

func embeddingHalfUnit(a *halfArgs, unit int) {
	for t := unit * a.cols; t < min((unit+1)*a.cols, a.n); t++ {
		a.kind.widen(a.y[t*a.k:][:a.k], a.w[int(a.ids[t])*a.k:])
	}
}

// widen fills y with the first numbers of x.
func (h Half) widen(y []float32, x []uint16) {
	if h == HalfBF16 {
		fromBF16(y, x[:len(y)])
		return
	}
	full := 0
	if inAssembly[float32]() {
		if full = len(y) &^ 7; full > 0 {
			widenF16(&y[0], &x[0], full)
		}
	}
	for i, u := range x[full:len(y)] {
		y[full+i] = fromF16(u)
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
