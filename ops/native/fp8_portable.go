//go:build !amd64 || purego

package native

// This file stands in for the assembly of the 8-bit floats where there is none:
// it takes nothing,
// and nobody asks for words.

func fp8Amax(x []float32) (bits uint32, nan, taken int) { return 0, 0, 0 }

func fp8EncodeSome(codes []byte, x []float32, step float32, f *fp8Format) (taken int) { return 0 }

func fp8DecodeSome(x []float32, codes []byte, step float32, f FP8) (taken int) { return 0 }

func pairRowCodes(dst *float32, src *byte, n int, f *fp8Words) {}

func pairRowsCodes(dst *float32, ldd int, src *byte, lds, rows, cols int, f *fp8Words) {}

func pairQuads(dst, src *float32, rows int, f *fp8Words) {}
