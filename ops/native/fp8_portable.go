//go:build !amd64 || purego

package native

// This file stands in for the assembly of the 8-bit floats where there is none;
// fp8Assembly keeps callers away from it.

func fp8AmaxAVX512(x *float32, n int) (amax float32, nan int) { return 0, 0 }

func fp8EncodeAVX512(codes *byte, x *float32, step float32, n int, f *fp8Format) bool { return false }

func fp8DecodeAVX512(x *float32, codes *byte, n, format int, step float32) {}
