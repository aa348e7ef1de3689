package optest

import "math"

// Rand is a small deterministic generator (splitmix64) seeded by a name, so
// that the data of a case depends on nothing but what the case is called.
type Rand struct{ state uint64 }

// NewRand returns the generator of a name (64-bit FNV-1a).
func NewRand(name string) *Rand {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h ^= uint64(name[i])
		h *= 1099511628211
	}
	return &Rand{h}
}

// Uint64 returns 64 random bits.
func (r *Rand) Uint64() uint64 {
	r.state += 0x9E3779B97F4A7C15
	z := r.state
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// Uniform returns a number in [0, 1).
func (r *Rand) Uniform() float64 { return float64(r.Uint64()>>11) * 0x1p-53 }

// Normal returns a standard normal number (Box and Muller).
func (r *Rand) Normal() float64 {
	u, v := 1-r.Uniform(), r.Uniform()
	return math.Sqrt(-2*math.Log(u)) * math.Cos(2*math.Pi*v)
}

// Intn returns a number in [0, n).
func (r *Rand) Intn(n int) int { return int(r.Uint64() % uint64(n)) }

// Normals returns n normal numbers of mean 0 and the given deviation. They are
// exact in float32, so that a float32 body and its oracle see equal inputs.
func Normals(name string, n int, deviation float64) []float64 {
	r := NewRand(name)
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(float32(deviation * r.Normal()))
	}
	return x
}

// Uniforms returns n numbers in [low, high), exact in float32.
func Uniforms(name string, n int, low, high float64) []float64 {
	r := NewRand(name)
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(float32(low + (high-low)*r.Uniform()))
		if x[i] >= high {
			x[i] = low
		}
	}
	return x
}

// Ints returns n numbers in [0, below).
func Ints(name string, n, below int) []int32 {
	r := NewRand(name)
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(r.Intn(below))
	}
	return x
}

// Bools returns n values that are true with probability p.
func Bools(name string, n int, p float64) []bool {
	r := NewRand(name)
	x := make([]bool, n)
	for i := range x {
		x[i] = r.Uniform() < p
	}
	return x
}
