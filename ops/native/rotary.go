// Rotary position embedding: pairs of elements of a head are turned by an angle
// that grows with the token's position.

package native

import (
	"fmt"
)

// RotaryPairing says which two elements of a head are turned together.
type RotaryPairing int

const (
	RotaryHalf        RotaryPairing = iota // (x[i], x[i+Dr/2]), as Hugging Face checkpoints are stored
	RotaryInterleaved                      // (x[2i], x[2i+1])
)

// RotaryArgs are the operands of Rotary: T tokens of H heads of D elements, of
// which the first Dr (even, at most D) are turned and the rest is copied.
type RotaryArgs[T Float] struct {
	Y, X             []T // [T,H,D]; Y may be X
	XStride, YStride int // elements from token to token; 0 means H*D

	Cos, Sin []float32 // [positions, Dr/2]
	Pos      []int32   // [T], or nil: token t has position t % L
	L        int

	Slots []int32 // [T]: token t goes to row Slots[t] of y, a pool of pages; -1: nowhere. nil: to row t

	T, H, D, Dr int
	Pairing     RotaryPairing
	Back        bool // turn the other way: the gradient, dx from dy
}

// Rotary turns the pair (a, b) of rotation i at position p to
//
//	(a cos(p,i) - b sin(p,i), b cos(p,i) + a sin(p,i))
//
// and with Back uses -sin, which gives the gradient of x from that of y. For
// float64 the float32 table is widened. Positions outside the table are refused
// by CheckPositions, which the caller has called. With Slots the rotated keys of
// a step go straight into their pages: CheckSlots is what the slots must hold,
// and no two tokens may have one.
//
// Source: Su et al., RoFormer (arXiv:2104.09864).
func Rotary[T Float](a RotaryArgs[T]) {
	if a.XStride == 0 {
		a.XStride = a.H * a.D
	}
	if a.YStride == 0 {
		a.YStride = a.H * a.D
	}
	pick[RotaryArgs[T]](rotary32, rotary64).launch(ceilDiv(a.T, a.tokens()), a)
}

var (
	rotary32 = newKernel(rotaryTokens[float32])
	rotary64 = newKernel(rotaryTokens[float64])
)

// tokens is how many of them are a unit.
func (a *RotaryArgs[T]) tokens() int { return max(1, 8192/max(a.H*a.D, 1)) }

func rotaryTokens[T Float](a *RotaryArgs[T], unit int) {
	n := a.tokens()
	half := a.Dr / 2
	for t := unit * n; t < min((unit+1)*n, a.T); t++ {
		to := t
		if a.Slots != nil {
			if to = int(a.Slots[t]); to < 0 {
				continue
			}
		}
		p := t
		if a.Pos != nil {
			p = int(a.Pos[t])
		} else if a.L > 0 {
			p = t % a.L
		}
		cos, sin := a.Cos[p*half:(p+1)*half], a.Sin[p*half:(p+1)*half]
		x, y := a.X[t*a.XStride:][:a.H*a.D], a.Y[to*a.YStride:][:a.H*a.D]
		if a.Pairing == RotaryHalf {
			turnHalf(y, x, a.H, a.D, cos, sin, a.Back)
		} else {
			for h := 0; h < len(x); h += a.D {
				turnInterleaved(y[h:][:a.Dr], x[h:][:a.Dr], cos, sin, a.Back)
			}
		}
		for h := 0; a.Dr < a.D && h < len(x); h += a.D {
			copy(y[h+a.Dr:h+a.D], x[h+a.Dr:])
		}
	}
}

// turnHalf turns heads of d elements.
func turnHalf[T Float](y, x []T, heads, d int, cos, sin []float32, back bool) {
	half, full, sign := len(cos), 0, signOf[T](back)
	if inAssembly[T]() {
		full = half &^ 15
	}
	if full > 0 && heads > 0 {
		vecTurn(f32p(y), f32p(x), heads, d*4, half*4, &cos[0], &sin[0], float32(sign), full)
	}
	cos, sin = cos[full:], sin[full:half]
	for h := 0; h < heads && full < half; h++ {
		x0, y0 := x[h*d+full:], y[h*d+full:]
		x1, y1 := x0[half:][:len(cos)], y0[half:][:len(cos)]
		for i, c := range cos {
			c, s, a, b := T(c), sign*T(sin[i]), x0[i], x1[i]
			y0[i] = a*c - b*s
			y1[i] = b*c + a*s
		}
	}
}

// signOf is that of the sines.
func signOf[T Float](back bool) T {
	if back {
		return -1
	}
	return 1
}

func turnInterleaved[T Float](y, x []T, cos, sin []float32, back bool) {
	sin = sin[:len(cos)]
	x, y = x[:2*len(cos)], y[:2*len(cos)]
	sign := signOf[T](back)
	for i, c := range cos {
		c, s, a, b := T(c), sign*T(sin[i]), x[2*i], x[2*i+1]
		y[2*i] = a*c - b*s
		y[2*i+1] = b*c + a*s
	}
}

// CheckPositions returns an error unless every position is in 0..positions-1.
func CheckPositions(pos []int32, positions int) error {
	for t, p := range pos {
		if p < 0 || int(p) >= positions {
			return fmt.Errorf("rotary: token %d has position %d, the table holds positions 0 to %d", t, p, positions-1)
		}
	}
	return nil
}
