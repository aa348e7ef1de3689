package optest

// Philox returns the four words that Philox4x32 with 10 rounds makes of a
// counter and a key. Source: Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011, section 4.
func Philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		mul0, mul1   = 0xD2511F53, 0xCD9E8D57
		weyl0, weyl1 = 0x9E3779B9, 0xBB67AE85 // golden ratio, sqrt(3) - 1
	)
	for range 10 {
		a, b := uint64(mul0)*uint64(counter[0]), uint64(mul1)*uint64(counter[2])
		counter = [4]uint32{
			uint32(b>>32) ^ counter[1] ^ key[0], uint32(b),
			uint32(a>>32) ^ counter[3] ^ key[1], uint32(a),
		}
		key[0] += weyl0
		key[1] += weyl1
	}
	return counter
}

// DropoutKeeps tells whether dropout with probability p keeps the element of an
// index. The random word of an element is that of lane index%4 of
//
//	counter = (index/4 low, index/4 high, step low, step high)
//	key     = (seed low, seed high)
//
// low and high being 32-bit halves; its upper 24 bits, times 2^-24, are a
// uniform number in [0, 1), and the element is kept when that is >= p.
func DropoutKeeps(index, seed, step uint64, p float64) bool {
	block := index / 4
	words := Philox([4]uint32{uint32(block), uint32(block >> 32), uint32(step), uint32(step >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return float64(words[index%4]>>8)*0x1p-24 >= p
}

// Dropout returns x / (1 - p) where an element is kept and 0 where it is not.
// Its gradient is Dropout of dy with the same seed and step.
func Dropout(x []float64, p float64, seed, step uint64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		if DropoutKeeps(uint64(i), seed, step, p) {
			y[i] = x[i] / (1 - p)
		}
	}
	return y
}
