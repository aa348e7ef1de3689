//go:build amd64 && !purego

package native

import "math"

// This file binds the assembly of the 8-bit floats. n is positive, for AVX2 a
// multiple of 16.

// fp8Amax returns the bits of the largest magnitude among the first elements of
// x, how many of them are NaN, and how many it took.
func fp8Amax(x []float32) (bits uint32, nan, taken int) {
	if gemmKernel >= avx512Kernel {
		m, nan := fp8AmaxAVX512(&x[0], len(x))
		return math.Float32bits(m), nan, len(x)
	}
	if n := len(x) &^ 15; n > 0 {
		bits, nan = fp8AmaxAVX2(&x[0], n)
		return bits, nan, n
	}
	return 0, 0, 0
}

// fp8EncodeSome computes the codes of the first elements of x / step and returns
// how many: none where a quotient is NaN.
func fp8EncodeSome(codes []byte, x []float32, step float32, f *fp8Format) (taken int) {
	if n := len(x) &^ 63; n > 0 && gemmKernel >= bf16Kernel && 0x1p-64 < step && step < 0x1p64 {
		hi, lo := reciprocal(step)
		if fp8EncodeVBMI(&codes[0], &x[0], hi, lo, n, f) {
			taken = n
		}
	}
	if gemmKernel >= avx512Kernel {
		if n := len(x) - taken; n > 0 && fp8EncodeAVX512(&codes[taken], &x[taken], step, n, f) {
			taken += n
		}
		return taken
	}
	if n := len(x) &^ 15; n > 0 && fp8EncodeAVX2(&codes[0], &x[0], step, n, f) {
		return n
	}
	return 0
}

// reciprocal is 1/step as a sum of two numbers, right to 2^-46 of it, the second rounded
// up. Neither is negative: of a zero, both products have its sign.
func reciprocal(step float32) (hi, lo float32) {
	r := 1 / float64(step)
	if hi = float32(r); float64(hi) > r {
		hi = math.Nextafter32(hi, 0)
	}
	if lo = float32(r - float64(hi)); float64(lo) < r-float64(hi) {
		lo = math.Nextafter32(lo, 1)
	}
	return hi, lo
}

// fp8DecodeSome computes the values of the first codes times step and returns
// how many.
func fp8DecodeSome(x []float32, codes []byte, step float32, f FP8) (taken int) {
	if gemmKernel >= avx512Kernel {
		fp8DecodeAVX512(&x[0], &codes[0], len(codes), int(f), step)
		return len(codes)
	}
	n := len(codes) &^ 15
	switch {
	case n == 0:
	case f == E4M3:
		fp8DecodeAVX2(&x[0], &codes[0], n, 20, 0x1p120, 0x7E, step)
	default:
		fp8DecodeAVX2(&x[0], &codes[0], n, 21, 0x1p112, 0x7B, step)
	}
	return n
}

//go:noescape
func fp8AmaxAVX2(x *float32, n int) (bits uint32, nan int)

//go:noescape
func fp8EncodeAVX2(codes *byte, x *float32, step float32, n int, f *fp8Format) bool

//go:noescape
func fp8DecodeAVX2(x *float32, codes *byte, n, shift int, widen float32, last uint32, step float32)

// fp8AmaxAVX512 returns the largest magnitude among the numbers of x and how
// many elements are NaN.
//
//go:noescape
func fp8AmaxAVX512(x *float32, n int) (amax float32, nan int)

// fp8EncodeAVX512 computes the codes of x / step. It reports false, with codes
// that have no meaning, where one of the quotients is NaN.
//
//go:noescape
func fp8EncodeAVX512(codes *byte, x *float32, step float32, n int, f *fp8Format) bool

// fp8EncodeVBMI computes the codes of x times hi + lo, n a positive multiple of 64.
// It reports false, with codes that have no meaning, where one of the quotients is
// infinite or NaN.
//
//go:noescape
func fp8EncodeVBMI(codes *byte, x *float32, hi, lo float32, n int, f *fp8Format) bool

// fp8DecodeAVX512 computes the values of codes times step; format is 0 for E4M3,
// 1 for E5M2.
//
//go:noescape
func fp8DecodeAVX512(x *float32, codes *byte, n, format int, step float32)

//go:noescape
func pairRowCodes(dst *float32, src *byte, n int, f *fp8Words)

//go:noescape
func pairRowsCodes(dst *float32, ldd int, src *byte, lds, rows, cols int, f *fp8Words)

//go:noescape
func pairQuads(dst, src *float32, rows int, f *fp8Words)
