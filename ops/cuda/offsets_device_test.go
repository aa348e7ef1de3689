//go:build gpu

package cuda

// Pools whose offsets do not fit 32 bits: writes to the pages at their end, and attention over them.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDeviceA16_OffsetsOfPoolsNeed64Bits(t *testing.T) {
	const hq, hk, D, page, length, size = 8, 8, 128, 16, 40, 2
	const width = hk * D
	const pages = 1<<32/(page*width) + 3 // 2^32 elements, and the pages of a request behind them
	b := newBench(t)
	r := rand.New(rand.NewPCG(16, 16))
	large := func(what string) *Buffer {
		pool, err := b.d.Alloc(what, pages*page*width*size)
		if err != nil && os.Getenv("REQUIRE_CUDA") != "1" {
			t.Skip(err)
		}
		require.NoError(t, err)
		b.all = append(b.all, pool)
		return pool
	}
	kPool, vPool := large("keys of a large pool"), large("values of a large pool")
	indices, slots, positions := []int{pages - 1, 0, pages - 2}, make([]int, length), make([]int, length)
	for i := range slots {
		slots[i] = indices[i/page]*page + i%page
	}
	for _, id := range indices { // NaN behind the last token
		for _, pool := range []*Buffer{kPool, vPool} {
			require.NoError(t, b.d.Main().Fill(pool.At(int64(id)*page*width*size), 0xff, page*width*size))
		}
	}
	q, k, v := normal(r, BF16, length*hq*D, 1), normal(r, BF16, length*width, 1), normal(r, BF16, length*width, 1)
	cos, sin := make([]float64, D/2), make([]float64, D/2) // of position 0: nothing turns
	for i := range cos {
		cos[i] = 1
	}
	slotsAt, qAt, vAt := b.ints(slots...), b.put(BF16, q), b.put(BF16, v)
	// Keys by the rotation's write, values by both.
	b.run(Append{Type: BF16, PoolType: BF16, T: length, Columns: width, Pool: vPool.Pointer, X: vAt, Slots: slotsAt})
	for _, from := range []int{0, length - 1} { // many tokens, few tokens: two kernels
		n := length - from
		b.run(Rotary{Type: BF16, Pairing: Half, T: n, Hq: hq, Hk: hk, D: D, Rot: D, MaxPositions: 1, Q: qAt, K: b.put(BF16, k[from*width:]), QOut: b.out(BF16, n*hq*D), KOut: b.out(BF16, n*width), Cos: b.put(F32, cos), Sin: b.put(F32, sin),
			Positions: b.ints(positions...), V: vAt.At(int64(from * width * size)), KPool: kPool.Pointer, VPool: vPool.Pointer, Slots: b.ints(slots[from:]...)})
	}
	for i, slot := range slots {
		for at, want := range map[Pointer][]float64{kPool.Pointer: k, vPool.Pointer: v} {
			row := make([]byte, width*size)
			require.NoError(t, b.d.Download(row, at.At(int64(slot)*width*size)))
			require.Equal(t, want[i*width:][:width], decode(BF16, row), "token %d in slot %d of %v", i, slot, at)
		}
	}
	table := Pages{PageSize: page, Indptr: b.ints(0, len(indices)), Indices: b.ints(append(indices, 0)...), LastPageLen: b.ints((length-1)%page + 1)}
	want := func(i int) (rows []float64) {
		for h := range hq {
			row := func(x []float64) func(int) []float64 { return func(j int) []float64 { return x[j*width+h*D:][:D] } }
			o, _ := oracle(q[(i*hq+h)*D:][:D], row(k), row(v), i+1, D, func(int) bool { return true }, 1/math.Sqrt(D), 0, nil)
			rows = append(rows, o...)
		}
		return rows
	}
	last := AttentionDecode{Type: BF16, B: 1, Hq: hq, Hk: hk, D: D, Q: qAt.At((length - 1) * hq * D * size), K: kPool.Pointer, V: vPool.Pointer, Out: b.out(BF16, hq*D), MaxLength: length, Window: -1, Pages: &table}
	b.decodeScratch(&last)
	b.run(last)
	near(t, BF16, 2, want(length-1), b.get(BF16, last.Out, hq*D))
	for _, portable := range []bool{false, true} {
		a := AttentionPrefill{Type: BF16, Hq: hq, Hk: hk, D: D, Q: qAt, K: kPool.Pointer, V: vPool.Pointer, Out: b.out(BF16, length*hq*D), Causal: true, Window: -1, Ticket: b.ints(0),
			Ragged: &Ragged{Pages: table, Tokens: length, PoolTokens: pages * page, QoIndptr: b.ints(0, length), TileBatch: b.ints(0), TileIndex: b.ints(0), Tiles: 1}}
		b.runOn(portable, a)
		var all []float64
		for i := range length {
			all = append(all, want(i)...)
		}
		near(t, BF16, 2, all, b.get(BF16, a.Out, length*hq*D))
	}
	fmt.Printf("OFFSETS\tpools of %d elements each\n", pages*page*width)
}
