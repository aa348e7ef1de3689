package native

import (
	"math"
	"math/bits"
)

// This file is dropout and the random words it draws.

// Dropout computes y[n] = x / (1 - p) where an element is kept and 0 where it
// is dropped, whatever x is there. Whether element i is kept is a function of
// (i, seed, step) alone: the word is lane i mod 4 of Philox4x32-10 with
//
//	counter = (i/4 low, i/4 high, step low, step high)   key = (seed low, seed high)
//
// and the element is kept when its upper 24 bits, as a number in [0,1), are at
// least p. The gradient is Dropout of dy with the same seed and step. y may be x.
// Source: Salmon, Moraes, Dror, Shaw, SC 2011.
func Dropout[T Float](y, x []T, n int, p float64, seed, step uint64) {
	k := pick[dropoutArgs[T]](dropout32, dropout64)
	k.launch(ceilDiv(n, unitElements), dropoutArgs[T]{y, x, n, p, seed, step})
}

type dropoutArgs[T Float] struct {
	y, x       []T
	n          int
	p          float64
	seed, step uint64
}

var (
	dropout32 = newKernel(dropoutUnit[float32])
	dropout64 = newKernel(dropoutUnit[float64])
)

func dropoutUnit[T Float](a *dropoutArgs[T], unit int) {
	from, to := unitRange(unit, a.n)
	if a.p == 0 {
		copy(a.y[from:to], a.x[from:to])
		return
	}
	scale := T(0)
	if a.p < 1 {
		scale = T(1 / (1 - a.p))
	}
	least := uint32(math.Ceil(a.p * (1 << 24))) // of the upper 24 bits of a kept element
	keep := func(x T, word uint32) T {
		either := [2]T{0, x} // a branch would be mispredicted
		return scale * either[(least-1-word>>8)>>31]
	}
	for i := from; i < to; i += 4 {
		w0, w1, w2, w3 := philox(uint64(i/4), a.step, a.seed)
		if i+4 > to {
			words := [4]uint32{w0, w1, w2, w3}
			for lane, x := range a.x[i:to] {
				a.y[i+lane] = keep(x, words[lane])
			}
			return
		}
		x, y := (*[4]T)(a.x[i:]), (*[4]T)(a.y[i:])
		y[0], y[1], y[2], y[3] = keep(x[0], w0), keep(x[1], w1), keep(x[2], w2), keep(x[3], w3)
	}
}

// philox is Philox4x32 with ten rounds; low and high are halves of the counter.
func philox(low, high, key uint64) (w0, w1, w2, w3 uint32) {
	c0, c1, c2, c3 := uint32(low), uint32(low>>32), uint32(high), uint32(high>>32)
	k0, k1 := uint32(key), uint32(key>>32)
	for range 10 {
		h0, l0 := bits.Mul32(0xD2511F53, c0)
		h1, l1 := bits.Mul32(0xCD9E8D57, c2)
		c0, c1, c2, c3 = h1^c1^k0, l1, h0^c3^k1, l0
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return c0, c1, c2, c3
}
