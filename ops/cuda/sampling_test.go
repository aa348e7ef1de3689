//go:build gpu

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

// draws are n requests that ask for the same, for tokens 0, 1, 2 and on.
func (b *bench) draws(n int, d native.Draw) Pointer {
	words := make([]int32, n*native.DrawWords)
	for i := range n {
		d.Number = int32(i)
		d.Put(words[i*native.DrawWords:])
	}
	return b.ints(wide(words)...)
}

// Cuts that leave few tokens, and cuts that leave more than the kernel gathers.
func TestDeviceS01_Sampling(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(13, 13))
	cases := []native.Draw{{}, {Temperature: 1}, {Temperature: 1e-4}, {Temperature: 0.8, TopK: 50, TopP: 0.9}, {Temperature: 1, TopK: 1}, {Temperature: 1, TopP: 1e-4},
		{Temperature: 1.3, MinP: 0.1}, {Temperature: 1, TopK: 1000}, {Temperature: 0.3, TopP: 0.9}, {Temperature: 1, TopK: 40, Penalty: 1.5}, {Penalty: 3}, {Temperature: 2, TopK: 7, TopP: 0.5, MinP: 0.2},
		{Temperature: 30, TopP: 0.95}, {Temperature: 20, TopK: 3000}, {Temperature: 20, TopK: 5000, TopP: 0.5, MinP: 0.01}, {Temperature: 40, MinP: 0.9}, {Temperature: 10, TopK: 1 << 20, TopP: 0.3, Penalty: 1.2}}
	near, all, tried := 0, 0, 0
	for _, dt := range allTypes {
		for _, v := range []int{1, 5, 1000, 40004, 50257} {
			const rows = 8
			words := (v + 31) / 32
			if v > 1000 && (dt != F32 || testing.Short()) {
				continue // the oracle sorts
			}
			for _, d := range cases {
				if tried++; testing.Short() && tried%5 != 0 {
					continue
				}
				if d.Penalty == 0 {
					d.Penalty = 1
				}
				x := normal(r, dt, rows*v, 3)
				if v > 100 { // ties across the cut
					for i := range 200 {
						x[r.IntN(rows*v)] = float64(5 + i%3)
					}
				}
				d.Seed = r.Uint64()
				seen, sets := make([]int, rows*words), make([]map[int]bool, rows)
				for i := range rows {
					sets[i] = map[int]bool{}
					for range v / 3 {
						id := r.IntN(v)
						sets[i][id] = true
						seen[i*words+id/32] |= 1 << (id % 32)
					}
				}
				s := Sampling{Type: dt, B: rows, V: v, Token: b.out(F32, rows), Logits: b.put(dt, x), Draws: b.draws(rows, d), Seen: b.ints(seen...), SeenWords: words}
				b.run(s)
				got := b.raw(s.Token, 4*rows)
				type draw struct {
					token  int
					margin float64
				}
				want := make([]draw, rows)
				var oracles sync.WaitGroup
				for i := range rows {
					oracles.Go(func() {
						o := optest.Sampling{Penalty: float64(d.Penalty), Temperature: float64(d.Temperature), TopP: float64(d.TopP), MinP: float64(d.MinP), TopK: int(d.TopK), Seed: d.Seed, Number: uint32(i)}
						want[i].token, want[i].margin = o.Draw(x[i*v:(i+1)*v], sets[i])
					})
				}
				oracles.Wait()
				for i, w := range want {
					if all++; w.margin < 1e-6 { // penalised logits are rounded to float32
						near++
						continue
					}
					require.EqualValues(t, w.token, int32(binary.LittleEndian.Uint32(got[4*i:])), "%v, vocabulary %d, row %d, %+v, margin %g", dt, v, i, d, w.margin)
				}
				b.freeAll()
			}
		}
	}
	fmt.Printf("SAMPLING\t%d draws are the oracle's, %d came too near to a border\n", all-near, near)
	require.Less(t, near, all/20)
	// What cannot be drawn says so, and as native says it.
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		x    []float64
		topK int32
		want int32
	}{{[]float64{1, nan, 2}, 0, native.NaNLogit}, {[]float64{1, nan, 2}, 1, native.NaNLogit}, {[]float64{-inf, -inf, -inf}, 2, native.NoneDrawn}, {[]float64{-inf, -inf, -inf}, 0, native.NoneDrawn},
		{[]float64{1, inf, 0}, 2, native.NoneDrawn}, {[]float64{-inf, 2, -inf}, 2, 1}, {[]float64{-inf, 2, -inf}, 0, 1}} {
		s := Sampling{Type: F32, B: 1, V: 3, Token: b.out(F32, 1), Logits: b.put(F32, c.x), Draws: b.draws(1, native.Draw{Penalty: 1, Temperature: 1, TopK: c.topK})}
		b.run(s)
		require.Equal(t, c.want, int32(binary.LittleEndian.Uint32(b.raw(s.Token, 4))), "%v", c.x)
	}
	words := make([]int32, native.DrawWords)
	native.Draw{Number: -1}.Put(words)
	s := Sampling{Type: F32, B: 1, V: 3, Token: b.out(F32, 1), Logits: b.put(F32, []float64{1, 2, 3}), Draws: b.ints(wide(words)...)}
	b.run(s)
	require.EqualValues(t, native.NoDraw, int32(binary.LittleEndian.Uint32(b.raw(s.Token, 4))))
}

// edgeRows are rows of logits that are flat, peaked, tied, masked, subnormal, alone or not to be drawn from.
func edgeRows(r *rand.Rand, v int) (rows [][]float64) {
	inf := math.Inf(-1)
	row := func(f func(i int) float64) {
		x := make([]float64, v)
		for i := range x {
			x[i] = float64(float32(f(i)))
		}
		rows = append(rows, x)
	}
	one := func(at float64, others func(i int) float64) {
		row(others)
		rows[len(rows)-1][r.IntN(v)] = at
	}
	flat := func(int) float64 { return 0.01 * r.NormFloat64() }
	wide := func(int) float64 { return 4 * r.NormFloat64() }
	row(flat)
	row(wide)
	row(func(int) float64 { return 2.5 })
	row(func(int) float64 { return math.Round(2*r.NormFloat64()) / 2 })
	row(func(int) float64 { return float64(r.IntN(2)) / 2 })
	row(func(i int) float64 {
		if i%10 > 0 {
			return inf
		}
		return 3 * r.NormFloat64()
	})
	row(func(int) float64 { return 1e-41 * r.NormFloat64() })
	row(func(int) float64 { return math.Copysign(0, r.NormFloat64()) })
	one(1e30, wide)
	one(3, func(int) float64 { return inf })
	one(math.NaN(), wide)
	one(math.Inf(1), wide)
	row(func(int) float64 { return inf })
	return rows
}

// The tokens are native's for every distribution, and the same however many blocks a row has.
func TestDeviceSamplingIsNatives(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(14, 14))
	options := []native.Draw{{}, {Temperature: 1}, {Temperature: 0.8, TopK: 50, TopP: 0.9}, {Temperature: 5, TopP: 0.95}, {Temperature: 1, TopP: 0.3}, {Temperature: 1, MinP: 0.05},
		{Temperature: 2, TopK: 2500}, {Temperature: 1, TopK: 513, TopP: 0.99}, {Temperature: 3, TopP: 0.9, MinP: 0.3}, {Temperature: 1e30, TopK: 600}, {Temperature: 1e-44, TopP: 0.5}, {Temperature: 1, TopK: 1 << 20}}
	drawn := 0
	sizes := []int{1, 63, 513, 5003, 50257, 128256, 262144}
	if testing.Short() {
		sizes = []int{513, 20001}
	}
	for _, v := range sizes {
		rows := edgeRows(r, v)
		options := options
		if testing.Short() {
			options = options[2:6]
		}
		n := len(rows)
		for _, d := range options {
			d.Penalty, d.Seed = 1, r.Uint64()
			words, want, x := make([]int32, n*native.DrawWords), make([]int32, n), make([]float32, n*v)
			for i, row := range rows {
				d.Number = int32(i)
				d.Put(words[i*native.DrawWords:])
				for j, z := range row {
					x[i*v+j] = float32(z)
				}
			}
			require.NoError(t, native.Sampling(want, x, words, nil, n, v))
			for _, times := range []int{1, 4, 10} {
				if times > 1 && (testing.Short() || times*n*v > 7e6) {
					continue
				}
				var all []float64
				for range times {
					for _, row := range rows {
						all = append(all, row...)
					}
				}
				s := Sampling{Type: F32, B: times * n, V: v, Token: b.out(F32, times*n), Logits: b.put(F32, all), Draws: b.ints(wide(slices.Repeat(words, times))...)}
				b.run(s)
				got := b.raw(s.Token, 4*times*n)
				for i := range times * n {
					require.Equal(t, want[i%n], int32(binary.LittleEndian.Uint32(got[4*i:])), "vocabulary %d, row %d of %d, %+v", v, i, times*n, d)
					drawn++
				}
				b.freeAll()
			}
		}
	}
	fmt.Printf("SAMPLING\t%d draws are native's\n", drawn)
}

func TestDeviceSpeedSampling(t *testing.T) {
	speed(t)
	b := newBench(t)
	const most, v = 128, 128256
	logits := b.random(F32, 4*most*v, 3)
	equal := b.put(F32, make([]float64, most*v))
	seen := b.alloc(most * v / 8).Pointer
	require.NoError(t, b.d.Main().Fill(seen, 0x88, most*v/8))
	for _, rows := range []int{1, 16, 32, 64, 128} {
		for _, c := range []struct {
			name   string
			logits Pointer
			d      native.Draw
		}{{"greedy", logits, native.Draw{}}, {"temperature 1", logits, native.Draw{Temperature: 1}}, {"top-k 50 top-p 0.9", logits, native.Draw{Temperature: 1, TopK: 50, TopP: 0.9}},
			{"top-p 0.9 of few", logits, native.Draw{Temperature: 0.3, TopP: 0.9}}, {"top-p 0.95 of many", logits, native.Draw{Temperature: 5, TopP: 0.95}}, {"min-p 0.05", logits, native.Draw{Temperature: 1, MinP: 0.05}},
			{"min-p 0.05 of many", logits, native.Draw{Temperature: 5, MinP: 0.05}}, {"top-k 500", logits, native.Draw{Temperature: 1, TopK: 500}}, {"top-k 5000", logits, native.Draw{Temperature: 1, TopK: 5000}}, {"all, likeliest first", logits, native.Draw{Temperature: 5, TopK: v}},
			{"temperature 1, penalty", logits, native.Draw{Temperature: 1, Penalty: 1.2}},
			{"top-p 0.95 of equals", equal, native.Draw{Temperature: 1, TopP: 0.95}}} {
			if c.logits == equal && rows != 64 {
				continue
			}
			c.d.Penalty = max(c.d.Penalty, 1)
			s := Sampling{Type: F32, B: rows, V: v, Token: b.out(F32, rows), Draws: b.draws(rows, c.d), Seen: seen, SeenWords: v / 32}
			us := clock(t, b.d, 10, func(q Queue, i int) error {
				s.Logits = c.logits
				if c.logits != equal {
					s.Logits = logits.At(int64(i%4) * most * v * 4)
				}
				return s.Launch(q)
			})
			row(t, "sampling "+c.name, fmt.Sprintf("B%d V128256", rows), us, 0, float64(4*rows*v))
		}
	}
}
