package native

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// wideF16 is IEEE binary16 by its definition.
func wideF16(u uint16) float64 {
	sign, exp, frac := 1.0, int(u>>10)&0x1f, float64(u&0x3ff)
	if u>>15 == 1 {
		sign = -1
	}
	switch {
	case exp == 0:
		return sign * math.Ldexp(frac, -24)
	case exp == 31 && frac == 0:
		return sign * math.Inf(1)
	case exp == 31:
		return math.NaN()
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// bytesOf16 is the little-endian memory of 16-bit numbers.
func bytesOf16(x []uint16) []byte {
	var b []byte
	for _, u := range x {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return b
}

func TestEvery16BitNumberWidensExactly(t *testing.T) {
	x := make([]uint16, 1<<16)
	for i := range x {
		x[i] = uint16(i)
	}
	y := make([]float32, len(x))
	CodedF16.widen(y, bytesOf16(x))
	for i, v := range y {
		want := wideF16(x[i])
		if math.IsNaN(want) {
			require.True(t, v != v)
			continue
		}
		require.Equal(t, want, float64(v), "%#x", i)
		require.Equal(t, math.Signbit(want), math.Signbit(float64(v)), "%#x", i)
		require.Equal(t, math.Float32bits(fromF16(x[i])), math.Float32bits(v), "%#x", i)
	}
	CodedBF16.widen(y, bytesOf16(x))
	for i, v := range y {
		require.Equal(t, uint32(i)<<16, math.Float32bits(v))
	}
}

// TestBlocksAreTheirDefinition decodes random blocks against float64.
func TestBlocksAreTheirDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range []Coding{CodedQ8_0, CodedQ4_0, CodedQ4_1, CodedQ4_K, CodedQ5_K, CodedQ6_K} {
		const blocks = 50
		block := c.Block()
		w := randomCoded(r, c, blocks*block)
		y := make([]float32, blocks*block)
		c.widen(y, w)
		size := c.Bytes(block)
		for b := range blocks {
			x := w[b*size:]
			d := wideF16(binary.LittleEndian.Uint16(x))
			for i := range block {
				var want float64
				switch c {
				case CodedQ4_K, CodedQ5_K:
					s, m := sixBits(x[4:16], i/32)
					q := int(x[size-128+i/64*32+i%32]) / [2]int{1, 16}[i/32%2] % 16
					if c == CodedQ5_K && x[16+i%32]&(1<<(i/32)) != 0 {
						q += 16
					}
					want = d*float64(s)*float64(q) - wideF16(binary.LittleEndian.Uint16(x[2:]))*float64(m)
				case CodedQ6_K: // 32 numbers of a row of 128 have the same places in their bytes
					row, col, lane := i/128, i/32%4, i%32
					low := int(x[row*64+col%2*32+lane]) / [2]int{1, 16}[col/2] % 16
					high := int(x[128+row*32+lane]) / [4]int{1, 4, 16, 64}[col] % 4
					want = wideF16(binary.LittleEndian.Uint16(x[208:])) * float64(int8(x[192+i/16])) * float64(low+16*high-32)
				case CodedQ8_0:
					want = d * float64(int8(x[2+i]))
				case CodedQ4_0:
					want = d * float64(int(x[2+i%16]>>(i/16*4)&15)-8)
				case CodedQ4_1:
					want = d*float64(x[4+i%16]>>(i/16*4)&15) + wideF16(binary.LittleEndian.Uint16(x[2:]))
				}
				require.Equal(t, float32(want), y[b*block+i], "%s block %d number %d", c, b, i)
			}
		}
	}
}

// sixBits are the step and the least number of a run, of 6 bits each.
func sixBits(p []byte, run int) (s, m int) {
	if run < 4 {
		return int(p[run]) % 64, int(p[4+run]) % 64
	}
	return int(p[4+run])%16 + int(p[run-4])/64*16, int(p[4+run])/16 + int(p[run])/64*16
}

// randomCoded is n numbers of about 1.
func randomCoded(r *rand.Rand, c Coding, n int) []byte {
	if !c.Blocks() {
		x := make([]uint16, n)
		for i := range x {
			x[i] = uint16(r.Uint32())
			if c == CodedF16 {
				x[i] = x[i]&0x83ff | uint16(12+r.IntN(8))<<10
			} else {
				x[i] = x[i]&0x807f | uint16(122+r.IntN(8))<<7
			}
		}
		return bytesOf16(x)
	}
	w := make([]byte, c.Bytes(n))
	for i := range w {
		w[i] = byte(r.Uint32())
	}
	for at := 0; at < len(w); at += c.Bytes(c.Block()) {
		switch c {
		case CodedQ6_K:
			binary.LittleEndian.PutUint16(w[at+208:], uint16(r.IntN(0x400))|uint16(3+r.IntN(3))<<10)
			continue
		case CodedQ4_K, CodedQ5_K:
			binary.LittleEndian.PutUint16(w[at:], uint16(r.IntN(0x400))|uint16(3+r.IntN(3))<<10)
			binary.LittleEndian.PutUint16(w[at+2:], uint16(r.IntN(0x400))|uint16(6+r.IntN(3))<<10)
			continue
		}
		binary.LittleEndian.PutUint16(w[at:], uint16(r.IntN(0x400))|uint16(8+r.IntN(3))<<10)
		if c == CodedQ4_1 {
			binary.LittleEndian.PutUint16(w[at+2:], uint16(r.IntN(0x400))|0x8000|uint16(12+r.IntN(3))<<10)
		}
	}
	return w
}

// TestCodedWeightsGiveTheBitsOfWideOnes: storage changes no result.
func TestCodedWeightsGiveTheBitsOfWideOnes(t *testing.T) {
	defer SetWorkers(0)
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	fresh := func(n int) []float32 {
		x := make([]float32, n+1)
		for i := range x {
			x[i] = float32(math.NaN())
		}
		x[n] = 7 // the guard
		return x
	}
	for _, c := range []Coding{CodedBF16, CodedF16, CodedQ8_0, CodedQ4_0, CodedQ4_1, CodedQ4_K, CodedQ5_K, CodedQ6_K} {
		for _, s := range [][3]int{{0, 5, 3}, {1, 1, 1}, {1, 300, 700}, {3, 65, 257}, {13, 130, 64}, {70, 33, 515}, {1, 70, 576}, {2, 64, 288}, {3, 96, 32}, {4, 131, 1536}} {
			m, n, k := s[0], s[1], s[2]
			k = ceilDiv(k, c.Block()) * c.Block()
			x, b, dy := normal(m*k), normal(n), normal(m*n)
			w := randomCoded(r, c, n*k)
			wide := make([]float32, n*k)
			c.widen(wide, w)
			for _, workers := range []int{1, 2, 7} {
				SetWorkers(workers)
				for _, bias := range [][]float32{nil, b} {
					want, got := fresh(m*n), fresh(m*n)
					Linear(want, x, wide, bias, m, n, k)
					LinearCoded(got, x, w, bias, c, 0, m, n, k)
					require.Equal(t, want, got, "%s %v", c, s)
				}
				want, got := fresh(m*k), fresh(m*k)
				LinearGradInput(want, dy, wide, m, n, k)
				LinearCodedGradInput(got, dy, w, c, 0, m, n, k)
				require.Equal(t, want, got, "%s %v", c, s)
			}
			ids := []int32{int32(n - 1), 0, int32(n / 2)}
			want, got := fresh(3*k), fresh(3*k)
			require.NoError(t, Embedding(want, wide, ids, 3, n, k))
			require.NoError(t, EmbeddingCoded(got, w, c, ids, 3, n, k))
			require.Equal(t, want, got)
			require.Error(t, EmbeddingCoded(got, w, c, []int32{int32(n)}, 1, n, k))
		}
	}
}

func TestStreamedOddNumbers(t *testing.T) {
	const n, k = 48, 320
	oddNumbers(t, n, k, func(y, x []float32, w []byte, c Coding, m int) { LinearCoded(y, x, w, nil, c, 0, m, n, k) })
}

// oddNumbers holds a product of few rows with NaN, infinite, subnormal and signed zero
// weights and activations to the bits of wide weights.
func oddNumbers(t *testing.T, n, k int, product func(y, x []float32, w []byte, c Coding, m int)) {
	r := rand.New(rand.NewPCG(9, 9))
	for _, c := range []Coding{CodedBF16, CodedF16} {
		for m := 1; m <= gemmFew+2; m++ {
			w := make([]byte, c.Bytes(n*k))
			for i := range w {
				w[i] = byte(r.Uint32())
			}
			x := make([]float32, m*k)
			for i := range x {
				x[i] = math.Float32frombits(r.Uint32())
			}
			for i := range n / 2 { // rows that are finite, others are NaN before long
				for j := range k {
					binary.LittleEndian.PutUint16(w[c.Bytes(i*k+j):], uint16(r.IntN(8))|uint16(r.IntN(2))<<15)
				}
			}
			wide := make([]float32, n*k)
			c.widen(wide, w)
			want, got := make([]float32, m*n), make([]float32, m*n)
			Linear(want, x, wide, nil, m, n, k)
			product(got, x, w, c, m)
			for i, v := range want {
				if v != v { // one NaN is as good as another
					require.True(t, got[i] != got[i], "%d", i)
					want[i], got[i] = 0, 0
				}
			}
			requireSameBits(t, want, got)
		}
	}
}

// TestStreamedOddSteps does so with steps and least numbers of every kind.
func TestStreamedOddSteps(t *testing.T) {
	const n, k = 32, 320
	r := rand.New(rand.NewPCG(8, 9))
	for _, c := range []Coding{CodedQ8_0, CodedQ4_0, CodedQ4_1} { // those with tiles
		for m := 1; m <= gemmFew+2; m++ {
			w := make([]byte, n*c.Bytes(k))
			for i := range w {
				w[i] = byte(r.Uint32())
			}
			for i := range n / 2 { // rows with steps that are subnormal or zero
				for at := i * c.Bytes(k); at < (i+1)*c.Bytes(k); at += c.Bytes(codedBlock) {
					w[at+1] &= 0x83
					if c == CodedQ4_1 {
						w[at+3] &= 0x83
					}
				}
			}
			x, wide := normals[float32](r, m*k), make([]float32, n*k)
			c.widen(wide, w)
			want, got := make([]float32, m*n), make([]float32, m*n)
			Linear(want, x, wide, nil, m, n, k)
			LinearCoded(got, x, w, nil, c, 0, m, n, k)
			for i, v := range want {
				if v != v {
					require.True(t, got[i] != got[i], "%d", i)
					want[i], got[i] = 0, 0
				}
			}
			requireSameBits(t, want, got)
		}
	}
}

// TestLinearsTogether are each as it is alone.
func TestLinearsTogether(t *testing.T) {
	defer SetWorkers(0)
	const m, k = 2, 96
	r := rand.New(rand.NewPCG(2, 3))
	x := make([]float32, m*k)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	var ps []CodedLinear
	var want [][]float32
	for i, n := range []int{64, 50, 700, 16, 33, 48} {
		p := CodedLinear{Coding: []Coding{CodedBF16, CodedF16, CodedQ8_0}[i%3], N: n, Y: make([]float32, m*n)}
		p.W = randomCoded(r, p.Coding, n*k)
		if i%2 == 0 {
			p.Bias = make([]float32, n)
			p.Bias[n-1] = 3
		}
		ps, want = append(ps, p), append(want, make([]float32, m*n))
		LinearCoded(want[i], x, p.W, p.Bias, p.Coding, 0, m, n, k)
	}
	for _, workers := range []int{1, 2, 7} {
		SetWorkers(workers)
		for _, p := range ps {
			fill(p.Y, float32(math.NaN()))
		}
		LinearsCoded(x, m, k, ps)
		for i, p := range ps {
			require.Equal(t, want[i], p.Y)
		}
	}
}

// TestRowsOfHeads reads a weight whose rows lie as GGUF has them.
func TestRowsOfHeads(t *testing.T) {
	const heads, d, k, m = 3, 10, 32, 5
	r := rand.New(rand.NewPCG(5, 6))
	w := randomCoded(r, CodedQ8_0, heads*d*k)
	row := CodedQ8_0.Bytes(k)
	turned := make([]byte, len(w))
	for h := range heads {
		for i := range d / 2 {
			for s := range 2 {
				copy(turned[(h*d+2*i+s)*row:][:row], w[(h*d+s*d/2+i)*row:])
			}
		}
	}
	x, dy := make([]float32, m*k), make([]float32, m*heads*d)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	for i := range dy {
		dy[i] = float32(r.NormFloat64())
	}
	want, got := make([]float32, m*heads*d), make([]float32, m*heads*d)
	LinearCoded(want, x, w, nil, CodedQ8_0, 0, m, heads*d, k)
	LinearCoded(got, x, turned, nil, CodedQ8_0, d, m, heads*d, k)
	require.Equal(t, want, got)
	want, got = make([]float32, m*k), make([]float32, m*k)
	LinearCodedGradInput(want, dy, w, CodedQ8_0, 0, m, heads*d, k)
	LinearCodedGradInput(got, dy, turned, CodedQ8_0, d, m, heads*d, k)
	require.Equal(t, want, got)
}

// BenchmarkLinearOneRow compares one row of activations on a weight of 32 M
// numbers in every storage.
func BenchmarkLinearOneRow(b *testing.B) {
	const n, k = 8192, 4096
	x, y, w := make([]float32, k), make([]float32, n), make([]float32, n*k)
	b.Run("float32", func(b *testing.B) {
		b.SetBytes(4 * n * k)
		for b.Loop() {
			Linear(y, x, w, nil, 1, n, k)
		}
	})
	for _, c := range []Coding{CodedBF16, CodedF16, CodedQ8_0, CodedQ4_0, CodedQ4_1, CodedQ4_K, CodedQ5_K, CodedQ6_K} {
		coded := make([]byte, n*c.Bytes(k))
		b.Run(c.String(), func(b *testing.B) {
			b.SetBytes(int64(len(coded)))
			for b.Loop() {
				LinearCoded(y, x, coded, nil, c, 0, 1, n, k)
			}
		})
	}
}
