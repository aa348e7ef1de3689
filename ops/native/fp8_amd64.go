//go:build amd64 && !purego

package native

// This file binds the assembly of the 8-bit floats. n is positive.

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

// fp8DecodeAVX512 computes the values of codes times step; format is 0 for E4M3,
// 1 for E5M2.
//
//go:noescape
func fp8DecodeAVX512(x *float32, codes *byte, n, format int, step float32)
