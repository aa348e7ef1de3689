//go:build amd64 && !purego

package native

// This file binds half_amd64.s.

//go:noescape
func widenF16(y *float32, x *uint16, n int)
