package native

import (
	"fmt"
	"testing"

	"github.com/seafan/seafan/ops/optest"
)

// attnBench is a float32 attention that has run once.
func attnBench(a optest.Attention) *attnRun[float32] {
	n := func(name string, size int) []float64 { return optest.Normals(name, size, 1) }
	r := newAttnRun[float32](a, n("q", a.B*a.Lq*a.Hq*a.D), n("k", a.B*a.Lk*a.Hkv*a.D), n("v", a.B*a.Lk*a.Hkv*a.Dv),
		n("dout", a.B*a.Lq*a.Hq*a.Dv), nil)
	Attention(r.args.AttentionArgs)
	AttentionGrad(r.args)
	return r
}

// attnProducts is the number of floating point operations of one of the
// products of a, of which a causal mask leaves half.
func attnProducts(a optest.Attention) float64 {
	n := 2 * float64(a.B*a.Hq) * float64(a.Lq) * float64(a.Lk) * float64(a.D)
	if a.Causal {
		n /= 2
	}
	return n
}

func BenchmarkAttention(b *testing.B) {
	for _, a := range []optest.Attention{
		{B: 8, Lq: 128, Lk: 128, Hq: 4, Hkv: 4, D: 64, Dv: 64, Causal: true},
		{B: 1, Lq: 2048, Lk: 2048, Hq: 8, Hkv: 8, D: 64, Dv: 64, Causal: true},
		{B: 1, Lq: 2048, Lk: 2048, Hq: 8, Hkv: 8, D: 64, Dv: 64},
		{B: 1, Lq: 2048, Lk: 2048, Hq: 9, Hkv: 3, D: 64, Dv: 64, Causal: true},
		{B: 1, Lq: 2048, Lk: 2048, Hq: 8, Hkv: 2, D: 128, Dv: 128, Causal: true},
	} {
		name := fmt.Sprintf("B%d_H%d_%d_T%d_D%d_causal=%v", a.B, a.Hq, a.Hkv, a.Lq, a.D, a.Causal)
		r := attnBench(a)
		half := attnBench(a)
		half.args.BF16 = true
		report := func(b *testing.B, products float64) { // bf16 beside the peak of float32 too
			rate := products * attnProducts(a) * float64(b.N) / b.Elapsed().Seconds()
			b.ReportMetric(rate/1e9, "GFLOP/s")
			b.ReportMetric(100*rate/(peak()*float64(Workers())), "%peak")
		}
		b.Run(name+"/forward", func(b *testing.B) {
			for b.Loop() {
				Attention(r.args.AttentionArgs)
			}
			report(b, 2)
		})
		b.Run(name+"/backward", func(b *testing.B) {
			for b.Loop() {
				AttentionGrad(r.args)
			}
			report(b, 5)
		})
		b.Run(name+"/forward_bf16", func(b *testing.B) {
			for b.Loop() {
				Attention(half.args.AttentionArgs)
			}
			report(b, 2)
		})
		b.Run(name+"/backward_bf16", func(b *testing.B) {
			for b.Loop() {
				AttentionGrad(half.args)
			}
			report(b, 5)
		})
	}
}

// The two products of one attention head, at the rate of Gemm.
func BenchmarkAttentionProducts(b *testing.B) {
	const heads, l, d = 8, 2048, 64
	q, k, s := make([]float32, l*d), make([]float32, l*d), make([]float32, l*l)
	for b.Loop() {
		for range heads {
			Gemm(false, true, l, l, d, 1, q, d, k, d, 0, s, l)
			Gemm(false, false, l, d, l, 1, s, l, k, d, 0, q, d)
		}
	}
	b.ReportMetric(4*heads*l*l*d*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// One decode step over pages; each byte of the cache is read once.
func BenchmarkPagedDecode(b *testing.B) {
	for _, c := range []struct{ batch, keys, hq, hkv, d int }{
		{1, 600, 9, 3, 64}, {1, 4096, 9, 3, 64}, {2, 4096, 32, 8, 128},
	} {
		queries, lengths := make([]int32, c.batch), make([]int32, c.batch)
		for i := range queries {
			queries[i], lengths[i] = 1, int32(c.keys)
		}
		p := newPagedCase("bench", optest.Attention{Hq: c.hq, Hkv: c.hkv, D: c.d, Dv: c.d, Causal: true}, 16, queries, lengths)
		wide, near := pagedArgsOf[float32](p), pagedArgsOf[float32](p.inOrder())
		b.Run(fmt.Sprintf("f32_in_order_B%d_kv%d_H%d_%d_D%d", c.batch, c.keys, c.hq, c.hkv, c.d), func(b *testing.B) {
			b.SetBytes(int64(c.batch * c.keys * c.hkv * c.d * 2 * 4))
			for b.Loop() {
				PagedAttention(near)
			}
		})
		for _, format := range []*optest.Format{nil, optest.BF16, optest.F16, optest.E4M3} {
			args, name, size := wide, "f32", 4
			if format != nil {
				args.NarrowK, args.NarrowV, _, _ = narrowPools(p, format)
				name, size = format.Name, map[*optest.Format]int{optest.BF16: 2, optest.F16: 2, optest.E4M3: 1}[format]
			}
			b.Run(fmt.Sprintf("%s_B%d_kv%d_H%d_%d_D%d", name, c.batch, c.keys, c.hq, c.hkv, c.d), func(b *testing.B) {
				b.SetBytes(int64(c.batch * c.keys * c.hkv * c.d * 2 * size))
				for b.Loop() {
					PagedAttention(args)
				}
			})
		}
	}
}
