package native

import (
	"math"
	"unsafe"
)

// This file is the linear layer with products in bf16: operands are rounded to
// bf16, products of two such numbers are exact in float32, sums are those of
// Linear.

// BF16Round computes y = x rounded to the nearest bf16, ties to even; x passes
// through float32. A NaN stays one.
func BF16Round[T Float](y, x []T) {
	pick[bf16Args[T]](bf16Round32, bf16Round64).launch(ceilDiv(len(x), bf16Unit), bf16Args[T]{y, x, false})
}

const bf16Unit = 1 << 14

type bf16Args[T Float] struct {
	y, x  []T
	flush bool
}

var (
	bf16Round32 = newKernel(bf16RoundUnit[float32])
	bf16Round64 = newKernel(bf16RoundUnit[float64])
)

func bf16RoundUnit[T Float](a *bf16Args[T], i int) {
	lo, hi := i*bf16Unit, min((i+1)*bf16Unit, len(a.x))
	bf16Slice(a.y[lo:hi], a.x[lo:hi], a.flush)
}

// bf16Slice rounds x to bf16; flush makes subnormal numbers zero.
func bf16Slice[T Float](y, x []T, flush bool) {
	y = y[:len(x)]
	for j, v := range x {
		f := float32(v)
		u := math.Float32bits(f)
		switch {
		case flush && u<<1 < 1<<24:
			u &= 1 << 31
		case f == f:
			u += 0x7FFF + u>>16&1
		default:
			u |= 1 << 22
		}
		y[j] = T(math.Float32frombits(u &^ 0xFFFF))
	}
}

// BF16Linear computes y[M,N] = x[M,K] w[N,K]^T + b[N] on rounded x and w; b may
// be nil.
func BF16Linear[T Float](y, x, w, b []T, m, n, k int) {
	beta, s, lds := biased(y, b, n)
	bf16Products(false, true, m, n, k, 1, x, k, w, k, beta, s, lds, y, n)
}

// BF16LinearOf is one of several linears of one x: y[M,N] = x w[N,K]^T + b[N].
type BF16LinearOf struct {
	Y, W, B []float32
	N       int
}

// BF16Linears is BF16Linear of x[M,K] for each of ls; what is made of x for the
// products is made once.
func BF16Linears(x []float32, m, k int, ls []BF16LinearOf) {
	if m <= 0 || !multipliesPairs[float32]() {
		for _, l := range ls {
			BF16Linear(l.Y, x, l.W, l.B, m, l.N, k)
		}
		return
	}
	linearsOf(pairSource{wide: x, ld: k}, m, k, ls)
}

// linearsOf multiplies words of x by each weight, which is made words of as x is.
func linearsOf(x pairSource, m, k int, ls []BF16LinearOf) {
	words := wordsOf(false, m, k, x)
	for _, l := range ls {
		words.linear(pairSource{wide: l.W, ld: k, split: x.split}, 1, l.B, l.Y, l.N)
	}
	words.free()
}

// linear is BF16Linear of op(A) = x, times alpha before the bias.
func (w *pairArgs) linear(b pairSource, alpha float32, bias, y []float32, n int) {
	switch {
	case n <= 0:
	case bias != nil:
		w.multiply(true, n, alpha, b, 1, bias, 0, y, n)
	default:
		w.multiply(true, n, alpha, b, 0, nil, 0, y, n)
	}
}

// BF16LinearGradInput computes dx[M,K] = dy[M,N] w[N,K] on rounded dy and w.
func BF16LinearGradInput[T Float](dx, dy, w []T, m, n, k int) {
	bf16Products(false, false, m, k, n, 1, dy, n, w, k, 0, dx, k, dx, k)
}

// BF16LinearGradWeight computes dw[N,K] = dy[M,N]^T x[M,K] on rounded dy and x.
func BF16LinearGradWeight[T Float](dw, dy, x []T, m, n, k int) {
	bf16Products(true, false, n, k, m, 1, dy, n, x, k, 0, dw, k, dw, k)
}

// BF16LinearsStored is BF16Linear of x[M,K] for weights stored in bf16. Few rows
// are streamed as LinearsCoded does where that gives the bits of many, subnormal
// numbers aside: not beside AMX.
func BF16LinearsStored(x []float32, m, k int, ps []CodedLinear) {
	if m <= 0 {
		return
	}
	a := codedArgs{coding: CodedBF16, m: m, k: k}
	if !multipliesPairs[float32]() || m <= gemmFew && a.streams() && gemmKernel != amxKernel {
		rx := takeScratch[float32](m * k)
		bf16Operand(rx, x[:m*k])
		LinearsCoded(rx, m, k, ps)
		giveScratch(rx)
		return
	}
	words := wordsOf(false, m, k, pairSource{wide: x, ld: k})
	for _, p := range ps {
		b := pairSource{stored: storedWords(p.W), ld: k}
		if p.N%panelCols == 0 && len(p.Panels) > 0 {
			b.panels = unsafe.Slice((*float32)(unsafe.Pointer(&p.Panels[0])), len(p.Panels)/4)
		}
		words.linear(b, 1, p.Bias, p.Y, p.N)
	}
	words.free()
}

// BF16LinearStoredGradInput is BF16LinearGradInput with w[N,K] stored in bf16.
func BF16LinearStoredGradInput(dx, dy []float32, w []uint16, m, n, k int) {
	if !multipliesPairs[float32]() {
		rg := takeScratch[float32](m * n)
		bf16Operand(rg, dy[:m*n])
		LinearCodedGradInput(dx, rg, storedBytes(w), CodedBF16, 0, m, n, k)
		giveScratch(rg)
		return
	}
	gemmBF16(false, false, m, k, n, 1, pairSource{wide: dy, ld: n}, pairSource{stored: w, ld: k}, 0, nil, 0, dx, k)
}

// BF16MatMul computes c[M,N] = op(a) op(b) of matrices stored in bf16, op(a) [M,K]
// and op(b) [K,N]: op(x) is x, or its transpose when the flag is set. Subnormal
// operands count as zero.
func BF16MatMul(c []float32, a, b []uint16, m, n, k int, transA, transB bool) {
	lda, ldb := k, n
	if transA {
		lda = m
	}
	if transB {
		ldb = k
	}
	if multipliesPairs[float32]() {
		gemmBF16(transA, transB, m, n, k, 1, pairSource{stored: a, ld: lda}, pairSource{stored: b, ld: ldb}, 0, nil, 0, c, n)
		return
	}
	ra, rb := takeScratch[float32](m*k), takeScratch[float32](k*n)
	CodedBF16.widen(ra, storedBytes(a))
	CodedBF16.widen(rb, storedBytes(b))
	bf16Products(transA, transB, m, n, k, 1, ra, lda, rb, ldb, 0, c, n, c, n)
	giveScratch(ra)
	giveScratch(rb)
}

// storedBytes is the memory of w.
func storedBytes(w []uint16) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 2*len(w))
}

// storedWords are the numbers of a weight in bf16.
func storedWords(w []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(w))), len(w)/2)
}

// bf16Products is gemmAdd on rounded A and B, which fill their rows. Subnormal
// operands count as zero.
func bf16Products[T Float](transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, s []T, lds int, c []T, ldc int) {
	if multipliesPairs[T]() {
		f := func(x []T) []float32 { return any(x).([]float32) }
		gemmBF16(transA, transB, m, n, k, float32(alpha), pairSource{wide: f(a), ld: lda}, pairSource{wide: f(b), ld: ldb}, float32(beta), f(s), lds, f(c), ldc)
		return
	}
	ra, rb := takeScratch[T](m*k), takeScratch[T](k*n)
	bf16Operand(ra, a[:m*k])
	bf16Operand(rb, b[:k*n])
	gemmAdd(transA, transB, m, n, k, alpha, ra, lda, rb, ldb, beta, s, lds, c, ldc)
	giveScratch(ra)
	giveScratch(rb)
}

// bf16Operand is BF16Round with subnormal numbers as zero.
func bf16Operand[T Float](y, x []T) {
	pick[bf16Args[T]](bf16Round32, bf16Round64).launch(ceilDiv(len(x), bf16Unit), bf16Args[T]{y, x, true})
}
