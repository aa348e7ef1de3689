package optest

import (
	"math"
	"unsafe"
)

// Poison fills x with NaN and returns it, so that an element that a body does
// not write cannot pass for a result.
func Poison[T Float](x []T) []T {
	for i := range x {
		x[i] = T(math.NaN())
	}
	return x
}

// Element is what a guarded buffer can hold.
type Element interface {
	~float32 | ~float64 | ~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// guardBytes is the size of the sentinel on each side of a guarded buffer.
const guardBytes = 256

// sentinel repeats over a guard. Read by mistake it is NaN as float32, float64
// and bf16 and negative as int32 and int64.
var sentinel = [4]byte{0xA5, 0x5A, 0xFD, 0xFF}

// Guarded is a buffer between two sentinels.
type Guarded[T Element] struct {
	Data  []T // capacity ends with the length; holds the sentinel's bytes at first
	whole []byte
	pad   int
}

// Guard makes a guarded buffer of n elements. Floats in it are NaN.
func Guard[T Element](n int) *Guarded[T] {
	var zero T
	size := int(unsafe.Sizeof(zero))
	pad := guardBytes / size
	all := make([]T, n+2*pad)
	g := &Guarded[T]{
		Data:  all[pad : pad+n : pad+n],
		whole: unsafe.Slice((*byte)(unsafe.Pointer(&all[0])), len(all)*size),
		pad:   pad * size,
	}
	for i := range g.whole {
		g.whole[i] = sentinel[i%4]
	}
	return g
}

// GuardCopy makes a guarded buffer that holds x.
func GuardCopy[T Element](x []T) *Guarded[T] {
	g := Guard[T](len(x))
	copy(g.Data, x)
	return g
}

// broken returns how many bytes before (negative) or behind the buffer the
// first changed guard byte lies.
func (g *Guarded[T]) broken() (offset int, ok bool) {
	for i := g.pad - 1; i >= 0; i-- {
		if g.whole[i] != sentinel[i%4] {
			return i - g.pad, true
		}
	}
	for i := len(g.whole) - g.pad; i < len(g.whole); i++ {
		if g.whole[i] != sentinel[i%4] {
			return i - (len(g.whole) - g.pad), true
		}
	}
	return 0, false
}

// CheckGuards fails the test if something was written outside a buffer.
func CheckGuards(t TestingT, name string, buffers ...interface{ broken() (int, bool) }) {
	t.Helper()
	for i, b := range buffers {
		if off, bad := b.broken(); bad {
			where := "behind its end"
			if off < 0 {
				where = "before its start"
				off = -off - 1
			}
			t.Errorf("%s: buffer %d was written %d bytes %s", name, i, off, where)
			t.FailNow()
			return
		}
	}
}
