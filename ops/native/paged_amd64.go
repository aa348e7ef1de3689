//go:build amd64 && !purego

package native

// This file binds paged_amd64.s.

//go:noescape
func widenBF16(y *float32, x *uint16, n int)

//go:noescape
func scaleFloats(y *float32, s float32, n int)
