package native

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/seafan/seafan/ops/optest"
	"github.com/stretchr/testify/require"
)

// narrowPools stores the tokens of a case in narrow pools, everything else
// being NaN codes, and returns what they then hold.
func narrowPools(c pagedCase, format *optest.Format) (k, v NarrowPool, heldK, heldV []float64) {
	store := func(pool []float64, width int) (NarrowPool, []float64) {
		var n NarrowPool
		held := append([]float64(nil), pool...)
		heads := c.truth.Hkv
		switch format {
		case optest.BF16:
			n.BF16 = make([]uint16, len(pool))
		case optest.F16:
			n.F16 = make([]uint16, len(pool))
		default:
			n.E4M3 = make([]byte, len(pool))
			for h := range heads {
				n.Steps = append(n.Steps, 0x1p-6*float32(h+1))
			}
		}
		for i, x := range pool {
			step := 1.0
			if n.Steps != nil {
				step = float64(n.Steps[i/width%heads])
			}
			code := format.Encode(x / step)
			held[i] = step * format.Decode(code)
			switch format {
			case optest.BF16:
				n.BF16[i] = code
			case optest.F16:
				n.F16[i] = code
			default:
				n.E4M3[i] = byte(code)
			}
		}
		return n, held
	}
	k, heldK = store(c.k, c.truth.D)
	v, heldV = store(c.v, c.truth.Dv)
	return k, v, heldK, heldV
}

// Attention over narrow pages is attention over the values that they hold, bit
// for bit, and so the oracle's.
func TestNarrowPages(t *testing.T) {
	for name, format := range map[string]*optest.Format{"bf16": optest.BF16, "f16": optest.F16, "E4M3": optest.E4M3} {
		for caseName, c := range pagedCases() {
			t.Run(name+", "+caseName, func(t *testing.T) {
				k, v, heldK, heldV := narrowPools(c, format)
				wide := pagedArgsOf[float32](c)
				wide.K, wide.V = optest.Cast[float32](heldK), optest.Cast[float32](heldV)
				PagedAttention(wide)
				got := pagedArgsOf[float32](c)
				got.K, got.V, got.NarrowK, got.NarrowV = nil, nil, k, v
				PagedAttention(got)
				require.Equal(t, wide.Out, got.Out)
				require.Equal(t, wide.LSE, got.LSE)
				out, lse := c.truth.Forward(c.q, heldK, heldV)
				optest.RequireClose(t, "out", got.Out, out, optest.Float32, 10)
				optest.RequireClose(t, "lse", got.LSE, lse, optest.Float32, 10)
			})
		}
	}
}

// Every kind of number is stored as the nearest bf16, a NaN quiet with the upper
// half of its bits, in whole vectors and behind them.
func TestStoreBF16(t *testing.T) {
	const tokens, width = 2000, 37
	x, slots := make([]float32, tokens*width), make([]int32, tokens)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range x {
		x[i] = math.Float32frombits(r.Uint32())
		switch i % 5 {
		case 0: // half way, or next to it
			x[i] = math.Float32frombits(r.Uint32()&^0xFFFF | 0x7FFF + r.Uint32()%3)
		case 1: // infinity and NaN
			x[i] = math.Float32frombits(r.Uint32() | 0x7F800000&^(r.Uint32()&1<<16))
		case 2: // subnormal
			x[i] = math.Float32frombits(r.Uint32() &^ 0x7F800000)
		}
	}
	for i := range slots {
		slots[i] = int32(tokens - 1 - i)
	}
	got := optest.Guard[uint16](len(x))
	AppendNarrowPages(NarrowPool{BF16: got.Data}, x, slots, 1, width)
	optest.CheckGuards(t, "pool", got)
	for i, v := range x {
		want := optest.BF16.EncodeIEEE(float64(v))
		if v != v {
			want = uint16(math.Float32bits(v)>>16) | 0x40
		}
		if stored := got.Data[int(slots[i/width])*width+i%width]; stored != want {
			t.Fatalf("%x became %x, not %x", math.Float32bits(v), stored, want)
		}
	}
}

// An append rounds as the format says, by the op and by slots.
func TestNarrowAppend(t *testing.T) {
	const tokens, heads, width = 3, 2, 8
	rows := optest.Normals("rows", tokens*heads*width, 100)
	copy(rows, []float64{0, math.Inf(1), math.Inf(-1), nan, 448, 464, -1000, 65519, -1e5, 1e-30, 0x1p-24, 0x1p-25, 0x1p-9, 0x1p-10, 1.0625, 1 + 0x1p-8, 1 + 3*0x1p-8, -0x1p-133})
	steps := []float32{1, 0.25}
	x := optest.Cast[float32](rows)
	slots := []int32{2, -1, 0}
	bf16, f16, e4m3 := make([]uint16, 4*heads*width), make([]uint16, 4*heads*width), make([]byte, 4*heads*width)
	AppendNarrowPages(NarrowPool{BF16: bf16}, x, slots, heads, width)
	AppendNarrowPages(NarrowPool{F16: f16}, x, slots, heads, width)
	AppendNarrowPages(NarrowPool{E4M3: e4m3, Steps: steps}, x, slots, heads, width)
	for slot := range 4 {
		for i := range heads * width {
			at := slot*heads*width + i
			token := map[int]int{2: 0, 0: 2}
			if tk, ok := token[slot]; ok {
				v := float64(x[tk*heads*width+i])
				if math.IsNaN(v) {
					require.True(t, optest.BF16.IsNaN(bf16[at]) && optest.F16.IsNaN(f16[at]) && optest.E4M3.IsNaN(uint16(e4m3[at])))
					continue
				}
				require.Equal(t, optest.BF16.EncodeIEEE(v), bf16[at], v)
				require.Equal(t, optest.F16.Encode(v), f16[at], v)
				require.Equal(t, optest.E4M3.Encode(v/float64(steps[i/width])), uint16(e4m3[at]), v)
			} else {
				require.Zero(t, bf16[at])
				require.Zero(t, f16[at])
				require.Zero(t, e4m3[at])
			}
		}
	}

	// The same through the op, decoding one token.
	a := optest.Attention{Hq: heads, Hkv: heads, D: width, Dv: width, Causal: true}
	c := newPagedCase(t.Name(), a, 4, []int32{1}, []int32{1})
	args := pagedArgsOf[float32](c)
	n := c.pages * 4 * heads * width
	args.K, args.V = nil, nil
	args.NarrowK, args.NarrowV = NarrowPool{BF16: make([]uint16, n)}, NarrowPool{E4M3: make([]byte, n), Steps: steps}
	args.NewK, args.NewV = x[16:32], x[32:48]
	PagedAttention(args)
	at := c.truth.Table.Slot(0, 0) * heads * width
	for i := range heads * width {
		require.Equal(t, optest.BF16.Encode(rows[16+i]), args.NarrowK.BF16[at+i])
		step := float64(steps[i/width])
		code := optest.E4M3.Encode(rows[32+i] / step)
		require.Equal(t, code, uint16(args.NarrowV.E4M3[at+i]))
		require.Equal(t, float32(step*optest.E4M3.Decode(code)), args.Out[i])
	}
}
