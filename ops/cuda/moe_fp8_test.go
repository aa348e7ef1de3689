//go:build gpu

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest"
)

// quantised gives codes and steps of x by blocks, and leaves in x what they stand for.
func quantised(x []float64, blocks native.FP8Blocks) (codes []byte, steps []float64) {
	wide := optest.Cast[float32](x)
	amax, s := make([]float32, blocks.Steps()), make([]float32, blocks.Steps())
	native.FP8Amax(amax, wide, blocks)
	for i := range s {
		s[i], _ = native.FP8Step(amax[i], native.E4M3, 0)
	}
	codes = make([]byte, len(x))
	native.FP8Quantize(codes, nil, wide, s, blocks, native.E4M3)
	native.FP8Dequantize(wide, codes, s, blocks, native.E4M3)
	for i, v := range wide {
		x[i] = float64(v)
	}
	return codes, decode(F32, floatBytes(s))
}

func TestDeviceExpertsFP8(t *testing.T) {
	gpu := newBench(t).d.Target()
	if hasFP8("", gpu) != nil {
		t.Skip("the kernels need FP8")
	}
	for _, dt := range []DType{BF16, F16} {
		for _, exact := range []bool{true, false} {
			for _, c := range []expertsCase{{t: 1, topK: 2, e: 4, d: 128, f: 128}, {t: 3, topK: 4, e: 6, d: 144, f: 80, ids: "few"}, {t: 8, topK: 2, e: 5, d: 1152, f: 272, residual: true}, {t: 33, topK: 3, e: 4, d: 304, f: 1040}, {t: 64, topK: 2, e: 3, d: 256, f: 384, ids: "one"},
				{t: 70, topK: 2, e: 8, d: 256, f: 384, ids: "few", residual: true}, {t: 300, topK: 2, e: 3, d: 384, f: 256, ids: "one"}, {t: 257, topK: 4, e: 16, d: 640, f: 128}, {t: 150, topK: 4, e: 20, d: 144, f: 272}, {t: 40, topK: 2, e: 20, d: 272, f: 144, ids: "few"}} {
				if gpu.Hopper() && c.d%128 == 0 || exact || c.t <= expertsStreamTokens {
					each(t, 11, fmt.Sprintf("%v/exact_%v/%+v", dt, exact, c), func(t *testing.T) { testExpertsFP8(t, dt, exact, c) })
				}
			}
		}
	}
}

func testExpertsFP8(t *testing.T, dt DType, exact bool, c expertsCase) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(15, uint64(c.t*c.e)))
	x, ids, weights, res := normal(r, dt, c.t*c.d, 1), c.choices(r), normal(r, F32, c.t*c.topK, 1), normal(r, dt, c.t*c.d, 1)
	a := ExpertsFP8{Type: dt, Exact: exact, T: c.t, TopK: c.topK, E: c.e, D: c.d, F: c.f, Y: b.out(dt, c.t*c.d), X: b.put(dt, x), Weights: b.put(F32, weights), WeightsF32: true, IDs: b.ints(wide(ids)...)}
	stack := func(n, k int) (Pointer, Pointer, []float64) {
		w := normal(r, F32, c.e*n*k, 1/math.Sqrt(float64(k)))
		var codes []byte
		var steps []float64
		for e := range c.e {
			q, s := quantised(w[e*n*k:][:n*k], native.FP8Blocks{Rows: n, Cols: k, BlockRows: 128, BlockCols: 128})
			codes, steps = append(codes, q...), append(steps, s...)
		}
		p := b.alloc(len(codes)).Pointer
		require.NoError(t, b.d.Upload(p, codes))
		return p, b.put(F32, steps), w
	}
	var gate, up, down []float64
	a.Gate, a.GateSteps, gate = stack(c.f, c.d)
	a.Up, a.UpSteps, up = stack(c.f, c.d)
	a.Down, a.DownSteps, down = stack(c.d, c.f)
	if c.residual {
		a.Residual = b.put(dt, res)
	}
	scratch := int(a.ScratchBytes(b.d.Target()))
	a.Scratch = b.alloc(scratch).Pointer
	b.run(a)
	b.raw(a.Scratch, scratch)

	// The definition, with the roundings to codes where they are.
	code := func(x []float64, rows, cols int) {
		if !exact {
			quantised(x, native.FP8Blocks{Rows: rows, Cols: cols, BlockRows: 1, BlockCols: 128})
		}
	}
	code(x, c.t, c.d)
	want := make([]float64, c.t*c.d)
	if c.residual {
		copy(want, res)
	}
	for i, e := range ids {
		row, h := x[i/c.topK*c.d:][:c.d], make([]float64, c.f)
		for j := range h {
			var g, u float64
			for k, v := range row {
				g += v * gate[(int(e)*c.f+j)*c.d+k]
				u += v * up[(int(e)*c.f+j)*c.d+k]
			}
			h[j] = g / (1 + math.Exp(-g)) * u
		}
		code(h, 1, c.f)
		for j := range c.d {
			var s float64
			for k, v := range h {
				s += v * down[(int(e)*c.d+j)*c.f+k]
			}
			want[i/c.topK*c.d+j] += weights[i] * s
		}
	}
	got := b.get(dt, a.Y, c.t*c.d)
	// A hidden value at a tie of two codes may take the other: up to 7 % of its block's largest, in all of a row. The whole is
	// held by rms, in roundoffs of bf16: measured 1.2, in f16 0.94.
	var diff, ref, worst float64
	for i := range want {
		require.False(t, math.IsNaN(got[i]), "element %d", i)
		diff, ref, worst = diff+(got[i]-want[i])*(got[i]-want[i]), ref+want[i]*want[i], max(worst, math.Abs(got[i]-want[i]))
	}
	rms := math.Sqrt(ref / float64(len(want)))
	t.Logf("error %.3f roundoffs of bf16, worst element %.3f of rms", math.Sqrt(diff/ref)*256, worst/rms)
	require.Less(t, math.Sqrt(diff/ref), 2./256)
	require.Less(t, worst, 0.25*rms)
	b.run(a)
	require.Equal(t, got, b.get(dt, a.Y, c.t*c.d), "two runs")
}

func TestDeviceSpeedExpertsFP8(t *testing.T) {
	speed(t)
	b := newBench(t)
	for _, s := range []struct{ e, k, d, f, t int }{{64, 8, 2048, 1408, 4096}, {128, 8, 2048, 768, 4096}, {128, 8, 2048, 768, 512}, {128, 8, 2048, 768, 256}, {128, 8, 2048, 768, 128}, {128, 8, 2048, 768, 64}, {128, 8, 2048, 768, 16}, {128, 8, 2048, 768, 4}, {128, 8, 2048, 768, 1}, {64, 8, 7168, 2048, 4096}, {64, 8, 7168, 2048, 1}} {
		r := rand.New(rand.NewPCG(16, uint64(s.t)))
		sets := 6
		var ids []int32
		for range sets {
			ids = append(ids, expertsCase{t: s.t, topK: s.k, e: s.e}.choices(r)...)
		}
		p := b.ints(wide(ids)...)
		codes := func(n int) Pointer { // codes of normal numbers over 2^-3
			p := b.random(BF16, n/2, 1)
			x := make([]float32, 1<<20)
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			block := make([]byte, min(n, len(x)))
			native.FP8TensorQuantize(block, x[:len(block)], 0.125, native.E4M3)
			for at := 0; at < n; at += len(block) {
				require.NoError(t, b.d.Upload(p.At(int64(at)), block[:min(len(block), n-at)]))
			}
			return p
		}
		steps := b.random(F32, s.e*s.f*s.d/128/128, 0.01)
		a := ExpertsFP8{Type: BF16, T: s.t, TopK: s.k, E: s.e, D: s.d, F: s.f, Y: b.out(BF16, s.t*s.d), X: b.random(BF16, s.t*s.d, 1), Weights: b.random(F32, s.t*s.k, 1), WeightsF32: true, IDs: p,
			Gate: codes(s.e * s.f * s.d), Up: codes(s.e * s.f * s.d), Down: codes(s.e * s.f * s.d), GateSteps: steps, UpSteps: steps, DownSteps: steps}
		exact := a
		exact.Exact = true
		a.Scratch = b.alloc(int(max(a.ScratchBytes(b.d.Target()), exact.ScratchBytes(b.d.Target())))).Pointer
		timed := func(exact bool) float64 {
			a := a
			a.Exact = exact
			return clock(t, b.d, 6, func(q Queue, i int) error {
				a.IDs = p.At(int64(i % sets * s.t * s.k * 4))
				return a.Launch(q)
			})
		}
		used := map[int32]bool{}
		for _, e := range ids[:s.t*s.k] {
			used[e] = true
		}
		for _, exact := range []bool{false, true} {
			row(t, "experts fp8", fmt.Sprintf("E%d top%d T%d D%d F%d exact %v", s.e, s.k, s.t, s.d, s.f, exact), timed(exact), 6*float64(s.t*s.k)*float64(s.d*s.f), 3*float64(len(used)*s.d*s.f))
		}
		if s.t < 1024 {
			continue
		}
		part := &parts{Queue: b.d.Main()}
		require.NoError(t, a.Launch(part))
		for _, l := range part.list {
			us := clock(t, b.d, 6, func(q Queue, _ int) error { return q.Launch(l) })
			flops := map[string]float64{"moe_fp8_sm90_swiglu": 4, "moe_fp8_sm90_bf16": 2}[l.Kernel] * float64(s.t*s.k) * float64(s.d*s.f)
			row(t, "  "+l.Kernel, "", us, flops, 0)
		}
	}
}
