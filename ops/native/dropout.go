package native

import "math/bits"

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
	scale := T(1 / (1 - a.p))
	for i := from; i < to; i += 4 {
		words := philox(uint64(i/4), a.step, a.seed)
		for lane := range min(4, to-i) {
			if float64(words[lane]>>8)*0x1p-24 >= a.p {
				a.y[i+lane] = scale * a.x[i+lane]
			} else {
				a.y[i+lane] = 0
			}
		}
	}
}

// philox is Philox4x32 with ten rounds; low and high are halves of the counter.
func philox(low, high, key uint64) [4]uint32 {
	c0, c1, c2, c3 := uint32(low), uint32(low>>32), uint32(high), uint32(high>>32)
	k0, k1 := uint32(key), uint32(key>>32)
	for range 10 {
		h0, l0 := bits.Mul32(0xD2511F53, c0)
		h1, l1 := bits.Mul32(0xCD9E8D57, c2)
		c0, c1, c2, c3 = h1^c1^k0, l1, h0^c3^k1, l0
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return [4]uint32{c0, c1, c2, c3}
}
