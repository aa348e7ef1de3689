//go:build gpu

package cuda

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

type prefillCase struct {
	b, lq, lk, hq, hk, d int
	causal, sinks        bool
	mask                 string // "", "keys" [B,Lk] or "full" [B,H,Lq,Lk]
	window               int
	softcap              float64
}

var prefillCases = []prefillCase{
	{b: 1, lq: 1, lk: 1, hq: 1, hk: 1, d: 64, window: -1},
	{b: 1, lq: 2, lk: 5, hq: 1, hk: 1, d: 128, causal: true, window: -1},
	{b: 1, lq: 5, lk: 2, hq: 1, hk: 1, d: 128, causal: true, window: -1},
	{b: 2, lq: 200, lk: 200, hq: 4, hk: 2, d: 128, causal: true, window: -1},
	{b: 2, lq: 129, lk: 300, hq: 4, hk: 1, d: 128, window: -1},
	{b: 1, lq: 300, lk: 257, hq: 2, hk: 2, d: 64, causal: true, sinks: true, window: -1},
	{b: 1, lq: 190, lk: 190, hq: 2, hk: 1, d: 256, causal: true, window: -1},
	{b: 1, lq: 400, lk: 400, hq: 2, hk: 1, d: 128, causal: true, window: 100, softcap: 8},
	{b: 1, lq: 400, lk: 400, hq: 2, hk: 1, d: 64, window: 31},
	{b: 2, lq: 65, lk: 63, hq: 2, hk: 1, d: 96, causal: true, window: -1},
	{b: 1, lq: 70, lk: 140, hq: 3, hk: 1, d: 192, window: -1},
	{b: 2, lq: 70, lk: 140, hq: 2, hk: 2, d: 32, mask: "keys", window: -1},
	{b: 2, lq: 70, lk: 140, hq: 2, hk: 1, d: 128, mask: "full", causal: true, sinks: true, window: -1},
	{b: 1, lq: 64, lk: 0, hq: 2, hk: 1, d: 64, window: -1},
	{b: 2, lq: 129, lk: 129, hq: 2, hk: 1, d: 80, causal: true, window: -1},
	{b: 1, lq: 70, lk: 140, hq: 2, hk: 1, d: 8, mask: "keys", window: -1},
	{b: 1, lq: 100, lk: 100, hq: 2, hk: 2, d: 232, window: -1},
	{b: 1, lq: 1500, lk: 20, hq: 32, hk: 4, d: 64, causal: true, window: -1}, // a block has tiles in a row that see no key
	{b: 1, lq: 1500, lk: 20, hq: 32, hk: 4, d: 128, causal: true, window: -1},
	{b: 2, lq: 700, lk: 150, hq: 16, hk: 2, d: 256, causal: true, sinks: true, window: 20},
	{b: 3, lq: 500, lk: 130, hq: 16, hk: 2, d: 128, causal: true, window: -1, softcap: 8},
	{b: 2, lq: 129, lk: 1030, hq: 8, hk: 8, d: 256, window: -1}, // two sections of heads
}

func TestDeviceAttentionPrefill(t *testing.T) {
	for _, dt := range []DType{BF16, F16} {
		for _, c := range prefillCases {
			for _, portable := range []bool{false, true} {
				each(t, 19, fmt.Sprintf("%v/portable=%v/%+v", dt, portable, c), func(t *testing.T) { testPrefill(t, dt, c, portable) })
			}
		}
	}
}

// onPortable makes launch code see the device without its Hopper kernels.
type onPortable struct{ Queue }

func (q onPortable) Target() Target {
	t := q.Queue.Target()
	t.Portable = true
	return t
}

func (b *bench) runOn(portable bool, launch interface{ Launch(Queue) error }) {
	b.t.Helper()
	var q Queue = b.d.Main()
	if portable {
		q = onPortable{q}
	}
	require.NoError(b.t, launch.Launch(q))
	require.NoError(b.t, b.d.Main().Wait())
}

func testPrefill(t *testing.T, dt DType, c prefillCase, portable bool) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(10, uint64(c.d*c.lq)))
	q, k, v := normal(r, dt, c.b*c.lq*c.hq*c.d, 1), normal(r, dt, c.b*c.lk*c.hk*c.d, 1), normal(r, dt, c.b*c.lk*c.hk*c.d, 1)
	keep := make([]byte, c.b*c.hq*c.lq*c.lk)
	for i := range keep {
		keep[i] = 1
		if c.mask != "" && r.IntN(3) == 0 {
			keep[i] = 0
		}
	}
	index := func(b, h, i, j int) int {
		if c.mask == "keys" {
			return b*c.lk + j
		}
		return ((b*c.hq+h)*c.lq+i)*c.lk + j
	}
	a := AttentionPrefill{Type: dt, B: c.b, Hq: c.hq, Hk: c.hk, D: c.d, Lq: c.lq, Lk: c.lk, Out: b.out(dt, len(q)), LSE: b.out(F32, c.b*c.hq*c.lq), Q: b.put(dt, q), Causal: c.causal, Window: c.window, Softcap: float32(c.softcap), Ticket: b.ints(0)}
	if c.mask != "" {
		a.Mask = b.alloc(len(keep)).Pointer
		require.NoError(t, b.d.Upload(a.Mask, keep))
		a.MaskRequest, a.MaskHead, a.MaskRow = int64(c.hq*c.lq*c.lk), int64(c.lq*c.lk), int64(c.lk)
		if c.mask == "keys" {
			a.MaskRequest, a.MaskHead, a.MaskRow = int64(c.lk), 0, 0
		}
	}
	sees := func(bb, h, i, j int) bool {
		at := i + c.lk - c.lq
		return keep[index(bb, h, i, j)] != 0 && (!c.causal || j <= at) && (c.window < 0 || j >= at-c.window)
	}
	// A key that no query sees holds NaN.
	for bb := range c.b {
		for j := range c.lk {
			for h := range c.hk {
				seen := false
				for g := range c.hq / c.hk {
					for i := range c.lq {
						seen = seen || sees(bb, h*c.hq/c.hk+g, i, j)
					}
				}
				if !seen {
					for e := range c.d {
						k[((bb*c.lk+j)*c.hk+h)*c.d+e], v[((bb*c.lk+j)*c.hk+h)*c.d+e] = math.NaN(), math.NaN()
					}
				}
			}
		}
	}
	// The last key of a causal case holds NaN where only the last rows see it: they must be NaN, the others untouched.
	poison := c.causal && c.mask == "" && c.lk > 100
	if poison {
		v[(((c.lk-1)*c.hk)+0)*c.d+3] = math.NaN()
	}
	a.K, a.V = b.put(dt, k), b.put(dt, v)
	sinks := normal(r, F32, c.hq, 1)
	if c.sinks {
		a.Sinks = b.put(F32, sinks)
	}
	b.runOn(portable, a)
	got, gotLSE := b.get(dt, a.Out, len(q)), b.get(F32, a.LSE, c.b*c.hq*c.lq)
	var want, have, wantLSE, haveLSE []float64
	for bb := range c.b {
		for i := range c.lq {
			for h := range c.hq {
				row := func(x []float64) func(int) []float64 {
					return func(j int) []float64 { return x[((bb*c.lk+j)*c.hk+h/(c.hq/c.hk))*c.d:][:c.d] }
				}
				var sink *float64
				if c.sinks {
					sink = &sinks[h]
				}
				o, l := oracle(q[((bb*c.lq+i)*c.hq+h)*c.d:][:c.d], row(k), row(v), c.lk, c.d, func(j int) bool { return sees(bb, h, i, j) }, 1/math.Sqrt(float64(c.d)), c.softcap, sink)
				out := got[((bb*c.lq+i)*c.hq+h)*c.d:][:c.d]
				if o[3] != o[3] {
					require.True(t, math.IsNaN(out[3]), "row %d sees a NaN and has %g", i, out[3])
					continue
				}
				want, have = append(want, o...), append(have, out...)
				wantLSE, haveLSE = append(wantLSE, l), append(haveLSE, gotLSE[(bb*c.hq+h)*c.lq+i])
			}
		}
	}
	near(t, dt, 2, want, have) // rounding of p and of the result
	near(t, F32, 60, wantLSE, haveLSE)
	b.runOn(portable, a)
	if !poison {
		require.Equal(t, got, b.get(dt, a.Out, len(q)), "a second run has other bits")
	}
}

func TestDeviceAttentionRagged(t *testing.T) {
	for _, dt := range []DType{BF16, F16} {
		for _, c := range []struct {
			q, kv     []int
			hq, hk, d int
			page      int
			causal    bool
			window    int
			codes     bool
			softcap   float64
			sinks     bool
			spread    int  // q has heads that differ by powers of two up to this one, in bf16 of magnitudes that f16 lacks
			flip      bool // the first head's step of k is negative
		}{
			{q: []int{70, 10, 130}, kv: []int{70, 10, 130}, hq: 4, hk: 2, d: 128, page: 16, causal: true, window: -1},
			{q: []int{1, 0, 257, 5}, kv: []int{100, 0, 600, 5}, hq: 4, hk: 1, d: 64, page: 8, causal: true, window: -1},
			{q: []int{40, 33}, kv: []int{200, 90}, hq: 2, hk: 2, d: 128, page: 1, causal: true, window: -1},
			{q: []int{40, 33}, kv: []int{200, 90}, hq: 2, hk: 1, d: 256, page: 32, window: -1},
			{q: []int{150, 33}, kv: []int{400, 90}, hq: 2, hk: 1, d: 128, page: 256, causal: true, window: 50},
			{q: []int{20, 200}, kv: []int{20, 333}, hq: 2, hk: 1, d: 96, page: 64, causal: true, window: -1},
			{q: []int{300}, kv: []int{300}, hq: 2, hk: 1, d: 256, page: 128, causal: true, window: -1},
			{q: []int{20, 200}, kv: []int{20, 333}, hq: 2, hk: 1, d: 112, page: 4, causal: true, window: -1},
			{q: []int{70, 10, 130}, kv: []int{70, 10, 130}, hq: 4, hk: 2, d: 128, page: 16, causal: true, window: -1, codes: true},
			{q: []int{1, 0, 257, 5}, kv: []int{100, 0, 600, 5}, hq: 4, hk: 1, d: 64, page: 1, causal: true, window: -1, codes: true},
			{q: []int{40, 150}, kv: []int{200, 190}, hq: 2, hk: 2, d: 256, page: 32, window: 60, codes: true},
			{q: []int{40, 33}, kv: []int{200, 90}, hq: 4, hk: 2, d: 80, page: 256, causal: true, window: -1, codes: true},
			{q: []int{150}, kv: []int{150}, hq: 3, hk: 1, d: 192, page: 16, causal: true, window: -1, codes: true},
			{q: []int{200, 1, 140}, kv: []int{300, 77, 140}, hq: 8, hk: 2, d: 128, page: 1, causal: true, window: 90, codes: true, softcap: 8, sinks: true},
			{q: []int{130, 260}, kv: []int{130, 700}, hq: 4, hk: 2, d: 64, page: 64, causal: true, window: -1, codes: true, sinks: true, spread: 40},
			{q: []int{129, 40}, kv: []int{400, 40}, hq: 4, hk: 4, d: 128, page: 64, window: -1, codes: true, spread: 12, flip: true},
			{q: []int{70, 180}, kv: []int{333, 180}, hq: 2, hk: 1, d: 256, page: 16, causal: true, window: -1, codes: true, softcap: 20, flip: true},
			{q: []int{90}, kv: []int{150}, hq: 8, hk: 1, d: 32, page: 8, causal: true, window: -1, codes: true},
			{q: []int{30, 1500}, kv: []int{30, 20}, hq: 32, hk: 4, d: 128, page: 16, causal: true, window: -1}, // a block has tiles in a row that see no key
			{q: []int{30, 1500}, kv: []int{30, 20}, hq: 32, hk: 4, d: 64, page: 16, causal: true, window: -1},
			{q: []int{30, 1500}, kv: []int{30, 20}, hq: 32, hk: 4, d: 64, page: 16, causal: true, window: -1, codes: true},
			{q: []int{30, 1500, 300}, kv: []int{1, 0, 300}, hq: 32, hk: 4, d: 128, page: 16, causal: true, window: -1, codes: true},
		} {
			for _, portable := range []bool{false, true} {
				each(t, 13, fmt.Sprintf("%v/portable=%v/%+v", dt, portable, c), func(t *testing.T) {
					b := newBench(t)
					r := rand.New(rand.NewPCG(11, uint64(c.d)))
					indptr := []int32{0}
					for _, n := range c.q {
						indptr = append(indptr, indptr[len(indptr)-1]+int32(n))
					}
					T, width := int(indptr[len(indptr)-1]), c.hk*c.d
					p := shuffledPages(r, c.kv, c.page)
					k, v := make([]float64, p.pages*c.page*width), make([]float64, p.pages*c.page*width)
					for i := range k {
						k[i], v[i] = math.NaN(), math.NaN()
					}
					for i, n := range c.kv {
						for j := range n {
							copy(k[p.slot(i, j, c.page)*width:], normal(r, dt, width, 1))
							copy(v[p.slot(i, j, c.page)*width:], normal(r, dt, width, 1))
						}
					}
					if c.causal { // what the last query alone sees
						v[p.slot(0, c.kv[0]-1, c.page)*width+3] = math.NaN()
					}
					q := normal(r, dt, T*c.hq*c.d, 1)
					scale := 1 / math.Sqrt(float64(c.d))
					if c.spread > 0 {
						lift := 0
						if dt == BF16 {
							lift = 100
						}
						for i := range q {
							q[i] = math.Ldexp(q[i], lift-i/c.d*7%(c.spread+1))
						}
						q, scale = decode(dt, encode(dt, q)), math.Ldexp(scale, -lift)
					}
					a := AttentionPrefill{Type: dt, Hq: c.hq, Hk: c.hk, D: c.d, Out: b.out(dt, len(q)), LSE: b.out(F32, c.hq*T), Q: b.put(dt, q), Causal: c.causal, Window: c.window, Softcap: float32(c.softcap), Scale: float32(scale), Ticket: b.ints(0),
						Ragged: &Ragged{Pages: Pages{PageSize: c.page, Indptr: b.ints(p.indptr...), Indices: b.ints(append(p.indices, 0)...), LastPageLen: b.ints(p.last...)}, Tokens: T, PoolTokens: p.pages * c.page}}
					if c.codes {
						kSteps, vSteps := make([]float64, c.hk), make([]float64, c.hk)
						for i := range c.hk {
							kSteps[i], vSteps[i] = float64(float32(0.02*float64(i+1))), float64(float32(0.05/float64(i+1)))
						}
						if c.flip {
							kSteps[0] = -kSteps[0]
						}
						a.K, a.V, a.KSteps, a.VSteps = b.putCodes(k, c.d, kSteps), b.putCodes(v, c.d, vSteps), b.put(F32, kSteps), b.put(F32, vSteps)
					} else {
						a.K, a.V = b.put(dt, k), b.put(dt, v)
					}
					sinks := normal(r, F32, c.hq, 1)
					if c.sinks {
						a.Sinks = b.put(F32, sinks)
					}
					gpu := b.d.Target()
					gpu.Portable = gpu.Portable || portable
					batch, index, err := WorkMap(indptr, a.TileRows(gpu))
					require.NoError(t, err)
					a.Ragged.QoIndptr, a.Ragged.TileBatch, a.Ragged.TileIndex, a.Ragged.Tiles = b.ints(wide(indptr)...), b.ints(append(wide(batch), -1)...), b.ints(append(wide(index), 0)...), len(batch)+1
					b.runOn(portable, a)
					got, gotLSE := b.get(dt, a.Out, len(q)), b.get(F32, a.LSE, c.hq*T)
					var want, have, wantLSE, haveLSE []float64
					for bb, n := range c.q {
						for i := range n {
							for h := range c.hq {
								row := func(x []float64) func(int) []float64 {
									return func(j int) []float64 { return x[p.slot(bb, j, c.page)*width+h/(c.hq/c.hk)*c.d:][:c.d] }
								}
								at, tok := i+c.kv[bb]-n, int(indptr[bb])+i
								var sink *float64
								if c.sinks {
									sink = &sinks[h]
								}
								o, l := oracle(q[(tok*c.hq+h)*c.d:][:c.d], row(k), row(v), c.kv[bb], c.d, func(j int) bool {
									return (!c.causal || j <= at) && (c.window < 0 || j >= at-c.window)
								}, scale, c.softcap, sink)
								out := got[(tok*c.hq+h)*c.d:][:c.d]
								if o[3] != o[3] {
									require.True(t, math.IsNaN(out[3]), "token %d sees a NaN and has %g", tok, out[3])
									continue
								}
								want, have, wantLSE, haveLSE = append(want, o...), append(have, out...), append(wantLSE, l), append(haveLSE, gotLSE[h*T+tok])
							}
						}
					}
					near(t, dt, 2, want, have)
					near(t, F32, 60, wantLSE, haveLSE)
					first := b.raw(a.Out, len(q)*dt.Size())
					b.runOn(portable, a)
					require.True(t, bytes.Equal(first, b.raw(a.Out, len(q)*dt.Size())), "a second run has other bits")
					// The last request alone, with its part of the page table.
					last, row := len(c.q)-1, c.hq*c.d*dt.Size()
					n, page := c.q[last], p.indptr[last]
					one := a
					one.Q, one.Out, one.LSE = a.Q.At(int64(int(indptr[last])*row)), b.out(dt, n*c.hq*c.d), Pointer{}
					batch, index, err = WorkMap([]int32{0, int32(n)}, a.TileRows(gpu))
					require.NoError(t, err)
					one.Ragged = &Ragged{Pages: Pages{PageSize: c.page, Indptr: b.ints(0, p.indptr[last+1]-page), Indices: b.ints(append(p.indices[page:], 0)...), LastPageLen: b.ints(p.last[last])}, Tokens: n, PoolTokens: p.pages * c.page,
						QoIndptr: b.ints(0, n), TileBatch: b.ints(wide(batch)...), TileIndex: b.ints(wide(index)...), Tiles: len(batch)}
					b.runOn(portable, one)
					require.True(t, bytes.Equal(first[int(indptr[last])*row:], b.raw(one.Out, n*row)), "alone it has other bits than in the batch")
				})
			}
		}
	}
}

func wide(x []int32) []int {
	y := make([]int, len(x))
	for i, v := range x {
		y[i] = int(v)
	}
	return y
}

func TestDeviceSpeedPrefill(t *testing.T) {
	speed(t)
	b := newBench(t)
	for _, c := range []struct {
		b, s, hq, hk, d int
		causal          bool
	}{{1, 2048, 32, 8, 128, true}, {4, 2048, 32, 8, 128, true}, {1, 8192, 32, 8, 128, true}, {1, 16384, 32, 8, 128, true}, {1, 8192, 32, 8, 128, false}, {1, 8192, 32, 8, 64, true}, {1, 8192, 16, 4, 256, true}} {
		q, k, v := b.random(BF16, c.b*c.s*c.hq*c.d, 1), b.random(BF16, c.b*c.s*c.hk*c.d, 1), b.random(BF16, c.b*c.s*c.hk*c.d, 1)
		a := AttentionPrefill{Type: BF16, B: c.b, Hq: c.hq, Hk: c.hk, D: c.d, Lq: c.s, Lk: c.s, Q: q, K: k, V: v, Out: b.out(BF16, c.b*c.s*c.hq*c.d), Causal: c.causal, Window: -1, Ticket: b.ints(0)}
		flops := 4 * float64(c.b) * float64(c.hq) * float64(c.s) * float64(c.s) * float64(c.d)
		if c.causal {
			flops /= 2
		}
		us := clock(t, b.d, 5, func(q Queue, i int) error { return a.Launch(q) })
		row(t, "prefill", fmt.Sprintf("B%d S%d Hq%d Hk%d D%d causal=%v", c.b, c.s, c.hq, c.hk, c.d, c.causal), us, flops, 0)
		if c.d == 128 && c.s == 2048 && c.b == 4 {
			us := clock(t, b.d, 5, func(q Queue, i int) error { return a.Launch(onPortable{q}) })
			row(t, "prefill portable", fmt.Sprintf("B%d S%d Hq%d Hk%d D%d causal=%v", c.b, c.s, c.hq, c.hk, c.d, c.causal), us, flops, 0)
		}
		b.freeAll()
	}
	r := rand.New(rand.NewPCG(12, 12))
	for _, c := range []struct {
		q, kv []int
		page  int
		pool  DType
	}{{same(4, 2048), same(4, 2048), 16, BF16}, {same(8, 256), same(8, 8448), 16, BF16}, {same(4, 2048), same(4, 2048), 16, E4M3}, {same(4, 2048), same(4, 2048), 1, E4M3}, {same(8, 256), same(8, 8448), 16, E4M3}} {
		const hq, hk, d = 32, 8, 128
		p := shuffledPages(r, c.kv, c.page)
		indptr := []int32{0}
		flops := 0.
		for i, n := range c.q {
			indptr = append(indptr, indptr[i]+int32(n))
			flops += 4 * hq * d * (float64(n)*float64(c.kv[i]) - float64(n)*float64(n)/2)
		}
		T := int(indptr[len(indptr)-1])
		a := AttentionPrefill{Type: BF16, Hq: hq, Hk: hk, D: d, Out: b.out(BF16, T*hq*d), Q: b.random(BF16, T*hq*d, 1), K: b.random(c.pool, p.pages*c.page*hk*d, 1), V: b.random(c.pool, p.pages*c.page*hk*d, 1), Causal: true, Window: -1, Ticket: b.ints(0),
			Ragged: &Ragged{Pages: Pages{PageSize: c.page, Indptr: b.ints(p.indptr...), Indices: b.ints(p.indices...), LastPageLen: b.ints(p.last...)}, Tokens: T, PoolTokens: p.pages * c.page}}
		if c.pool == E4M3 {
			a.KSteps, a.VSteps = b.random(F32, hk, 0.01), b.random(F32, hk, 0.01)
		}
		batch, index, err := WorkMap(indptr, a.TileRows(b.d.Target()))
		require.NoError(t, err)
		a.Ragged.QoIndptr, a.Ragged.TileBatch, a.Ragged.TileIndex, a.Ragged.Tiles = b.ints(wide(indptr)...), b.ints(wide(batch)...), b.ints(wide(index)...), len(batch)
		us := clock(t, b.d, 5, func(q Queue, i int) error { return a.Launch(q) })
		row(t, "prefill paged", fmt.Sprintf("%d x %d on %d page %d %v", len(c.q), c.q[0], c.kv[0], c.page, c.pool), us, flops, 0)
		b.freeAll()
	}
}
