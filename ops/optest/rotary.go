package optest

import "math"

// Pairing says which two elements of a head are rotated together.
type Pairing int

const (
	Interleaved Pairing = iota // (x[2i], x[2i+1])
	Half                       // (x[i], x[i + Dr/2])
)

// pair returns where the two elements of rotation i of Dr/2 lie.
func (p Pairing) pair(i, dr int) (int, int) {
	if p == Interleaved {
		return 2 * i, 2*i + 1
	}
	return i, i + dr/2
}

// RotaryTable returns factor*cos(p f) and factor*sin(p f), each
// [positions, len(f)], for the inverse frequencies f.
func RotaryTable(frequencies []float64, factor float64, positions int) (cos, sin []float64) {
	for p := range positions {
		for _, f := range frequencies {
			cos = append(cos, factor*math.Cos(float64(p)*f))
			sin = append(sin, factor*math.Sin(float64(p)*f))
		}
	}
	return cos, sin
}

// Rotary turns each pair of the first Dr elements of every head as a complex
// number: z times cos + i sin of its position. x is [T,H,D], pos [T], the table
// [positions, Dr/2]; elements from Dr on pass through.
func Rotary(x []float64, pos []int32, cos, sin []float64, h, d, dr int, pairing Pairing) []float64 {
	y := append([]float64(nil), x...)
	for t, p := range pos {
		for head := range h {
			at := (t*h + head) * d
			for i := range dr / 2 {
				a, b := pairing.pair(i, dr)
				e := int(p)*(dr/2) + i
				z := complex(x[at+a], x[at+b]) * complex(cos[e], sin[e])
				y[at+a], y[at+b] = real(z), imag(z)
			}
		}
	}
	return y
}

// RotaryGrad multiplies dy by the transpose of the whole D x D matrix that
// Rotary is at each position.
func RotaryGrad(dy []float64, pos []int32, cos, sin []float64, h, d, dr int, pairing Pairing) []float64 {
	dx := make([]float64, len(dy))
	for t, p := range pos {
		rotation := make([]float64, d*d)
		for i := dr; i < d; i++ {
			rotation[i*d+i] = 1
		}
		for i := range dr / 2 {
			a, b := pairing.pair(i, dr)
			e := int(p)*(dr/2) + i
			rotation[a*d+a], rotation[a*d+b] = cos[e], -sin[e]
			rotation[b*d+a], rotation[b*d+b] = sin[e], cos[e]
		}
		for head := range h {
			at := (t*h + head) * d
			copy(dx[at:at+d], MatMul(rotation, dy[at:at+d], d, 1, d, true, false))
		}
	}
	return dx
}
