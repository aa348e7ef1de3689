//go:build gpu

package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type samplingCase struct {
	temperature, topP, minP, penalty float64
	topK                             int
}

// oracleDraw is the definition: sort, cut, draw. ok is false where the draw falls within rounding of a border.
func oracleDraw(logits []float64, seen map[int]bool, c samplingCase, seed, number uint64) (token int, ok bool) {
	type cand struct {
		id   int
		z, p float64
	}
	var all []cand
	top := math.Inf(-1)
	for i, z := range logits {
		if seen[i] && z > 0 {
			z /= c.penalty
		} else if seen[i] {
			z *= c.penalty
		}
		all, top = append(all, cand{id: i, z: float64(float32(z))}), math.Max(top, float64(float32(z)))
	}
	cuts := c.topK > 0 || c.topP > 0 && c.topP < 1 || c.minP > 0
	if cuts || c.temperature == 0 {
		slices.SortStableFunc(all, func(a, b cand) int {
			if a.z != b.z {
				if a.z > b.z {
					return -1
				}
				return 1
			}
			return a.id - b.id
		})
	}
	if c.temperature == 0 {
		return all[0].id, true
	}
	total := 0.
	for i := range all {
		all[i].p = math.Exp((all[i].z - top) / c.temperature)
	}
	if c.topK > 0 {
		all = all[:min(len(all), c.topK)]
	}
	for _, x := range all {
		total += x.p
	}
	close := func(a, b float64) bool { return math.Abs(a-b) < 1e-9*total }
	if c.topP > 0 && c.topP < 1 {
		sum := 0.
		for i := range all {
			if sum += all[i].p; close(sum, c.topP*total) {
				return 0, false
			}
			if sum >= c.topP*total {
				all = all[:i+1]
				break
			}
		}
	}
	for i := range all {
		if all[i].p < c.minP {
			all = all[:i]
			break
		}
	}
	kept := 0.
	for _, x := range all {
		kept += x.p
	}
	u := rand.New(rand.NewPCG(seed, number)).Float64() * kept
	for _, x := range all {
		if close(u, x.p) {
			return 0, false
		}
		if u -= x.p; u < 0 {
			return x.id, true
		}
	}
	return all[len(all)-1].id, false
}

func TestDeviceSampling(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(13, 13))
	cases := []samplingCase{{temperature: 0}, {temperature: 1}, {temperature: 1e-4}, {temperature: 0.8, topK: 50, topP: 0.9}, {temperature: 1, topK: 1}, {temperature: 1, topP: 1e-4},
		{temperature: 1.3, minP: 0.1}, {temperature: 1, topK: 1000}, {temperature: 0.3, topP: 0.9}, {temperature: 1, topK: 40, penalty: 1.5}, {temperature: 0, penalty: 3}, {temperature: 2, topK: 7, topP: 0.5, minP: 0.2}}
	for _, v := range []int{1, 5, 1000, 50257} {
		const rows = 8
		for _, c := range cases {
			if c.penalty == 0 {
				c.penalty = 1
			}
			x := normal(r, F32, rows*v, 3)
			if v > 100 { // ties across the cut
				for i := range 200 {
					x[r.IntN(rows*v)] = float64(5 + i%3)
				}
			}
			words := (v + 31) / 32
			seen := make([]int, rows*words)
			var seenSets []map[int]bool
			for i := range rows {
				set := map[int]bool{}
				for range v / 3 {
					id := r.IntN(v)
					set[id] = true
					seen[i*words+id/32] |= 1 << (id % 32)
				}
				seenSets = append(seenSets, set)
			}
			seeds, numbers := make([]uint64, rows), make([]uint64, rows)
			for i := range rows {
				seeds[i], numbers[i] = r.Uint64(), uint64(r.IntN(1000))
			}
			s := Sampling{B: rows, V: v, Token: b.out(F32, rows), Logits: b.put(F32, x), Temperature: b.fill(rows, c.temperature), Penalty: b.fill(rows, c.penalty), TopP: b.fill(rows, c.topP), MinP: b.fill(rows, c.minP),
				TopK: b.same(rows, c.topK), Seed: b.longs(seeds), Number: b.longs(numbers), Seen: b.ints(seen...), SeenWords: words}
			b.run(s)
			got := b.raw(s.Token, 4*rows)
			c.temperature, c.topP, c.minP, c.penalty = float64(float32(c.temperature)), float64(float32(c.topP)), float64(float32(c.minP)), float64(float32(c.penalty))
			for i := range rows {
				set := seenSets[i]
				if c.penalty == 1 {
					set = nil
				}
				want, ok := oracleDraw(x[i*v:(i+1)*v], set, c, seeds[i], numbers[i])
				if token := int(int32(binary.LittleEndian.Uint32(got[4*i:]))); ok {
					require.Equal(t, want, token, "vocabulary %d, row %d, %+v", v, i, c)
				}
			}
			b.freeAll()
		}
	}
	// What cannot be drawn says so.
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		x    []float64
		topK int
		want int
	}{{[]float64{1, nan, 2}, 0, NoToken}, {[]float64{-inf, -inf, -inf}, 2, NoToken}, {[]float64{1, inf, 0}, 2, NoToken}, {[]float64{-inf, 2, -inf}, 2, 1}, {[]float64{-inf, 2, -inf}, 0, 1}} {
		s := Sampling{B: 1, V: 3, Token: b.out(F32, 1), Logits: b.put(F32, c.x), Temperature: b.fill(1, 1), TopP: b.fill(1, 0), MinP: b.fill(1, 0), TopK: b.same(1, c.topK), Seed: b.longs([]uint64{1}), Number: b.longs([]uint64{1})}
		b.run(s)
		require.Equal(t, c.want, int(int32(binary.LittleEndian.Uint32(b.raw(s.Token, 4)))), "%v", c.x)
	}
}

func (b *bench) fill(n int, v float64) Pointer {
	x := make([]float64, n)
	for i := range x {
		x[i] = v
	}
	return b.put(F32, x)
}

func (b *bench) same(n, v int) Pointer {
	x := make([]int, n)
	for i := range x {
		x[i] = v
	}
	return b.ints(x...)
}

func (b *bench) longs(x []uint64) Pointer {
	p := b.alloc(8 * len(x)).Pointer
	var data []byte
	for _, v := range x {
		data = binary.LittleEndian.AppendUint64(data, v)
	}
	require.NoError(b.t, b.d.Upload(p, data))
	return p
}

func TestDeviceCrossEntropy(t *testing.T) {
	for _, dt := range allTypes {
		for _, v := range []int{1, 63, 1000, 50257} {
			t.Run(fmt.Sprintf("%v/%d", dt, v), func(t *testing.T) {
				b := newBench(t)
				r := rand.New(rand.NewPCG(14, uint64(v)))
				const rows = 5
				x := normal(r, dt, rows*v, 4)
				labels := []int{0, v - 1, -100, v / 2, 0}
				c := CrossEntropy{Type: dt, T: rows, V: v, Loss: b.out(F32, rows), X: b.put(dt, x), Labels: b.ints(labels...)}
				b.run(c)
				want := make([]float64, rows)
				for i, label := range labels {
					if label < 0 {
						continue
					}
					top, sum := math.Inf(-1), 0.
					for _, u := range x[i*v : (i+1)*v] {
						top = math.Max(top, u)
					}
					for _, u := range x[i*v : (i+1)*v] {
						sum += math.Exp(u - top)
					}
					want[i] = top + math.Log(sum) - x[i*v+label]
				}
				near(t, F32, 60, want, b.get(F32, c.Loss, rows))
			})
		}
	}
}

func TestDeviceSpeedSampling(t *testing.T) {
	speed(t)
	b := newBench(t)
	const rows, v = 64, 128256
	seeds := make([]uint64, rows)
	s := Sampling{B: rows, V: v, Token: b.out(F32, rows), Temperature: b.fill(rows, 1), TopP: b.fill(rows, 0.9), MinP: b.fill(rows, 0), TopK: b.same(rows, 50), Seed: b.longs(seeds), Number: b.longs(seeds)}
	logits := b.random(F32, 4*rows*v, 3)
	us := clock(t, b.d, 10, func(q Queue, i int) error {
		s.Logits = logits.At(int64(i%4) * rows * v * 4)
		return s.Launch(q)
	})
	row(t, "sampling top-k 50 top-p 0.9", "B64 V128256", us, 0, 4*rows*v)
}
