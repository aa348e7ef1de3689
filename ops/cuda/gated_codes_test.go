//go:build gpu

package cuda

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// A gated unit that leaves codes gives the bits of the unit and then the quantisation, also in the place of what it reads.
func TestDeviceGatedCodes(t *testing.T) {
	for gate := SwiGLU; gate <= GeGLUErf; gate++ {
		for _, dt := range []DType{BF16, F16} {
			for _, s := range [][2]int{{1, 8}, {3, 136}, {600, 1024}, {4, 14336}, {7, 2056}, {520, 8200}, {2, 40000}} {
				for _, steps := range []FP8Steps{{}, {Rows: 1}, {Rows: 1, Cols: 128}} {
					each(t, 7, fmt.Sprintf("%v/%v/%v/%dx%d", gate, dt, s, steps.Rows, steps.Cols), func(t *testing.T) {
						b := newBench(t)
						rows, f := s[0], s[1]
						r := rand.New(rand.NewPCG(uint64(rows), uint64(f)))
						x := normal(r, dt, rows*2*f, 3)
						if rows > 2 {
							x[f/2], x[2*f+5], x[3*f+6], x[4*f+7] = math.NaN(), math.Inf(1), math.Copysign(0, -1), 3e4
							x[5*f+7] = 3e4
						}
						p := b.put(dt, x)
						g := Gated{Type: dt, Gate: gate, Rows: rows, F: f, Y: b.out(dt, rows*f), G: p, Up: p.At(int64(f * dt.Size())), Stride: int64(2 * f)}
						b.run(g)
						n := rows
						if steps.vector() {
							n *= ceilDiv(f, 128)
						}
						z := Quantize{Type: dt, Format: E4M3, Rows: rows, Cols: f, X: g.Y, Codes: b.out(E4M3, rows*f), Steps: steps, Dynamic: true}
						z.Steps.At = b.out(F32, n)
						if steps.tensor() {
							z.Steps.At, z.Dynamic, n = b.put(F32, []float64{0.0123}), false, 1
						}
						b.run(z)
						want := b.raw(z.Codes, rows*f)
						for _, place := range []string{"own", "gate's", "up's"} {
							g.Y, g.Codes, g.CodesStride, g.Steps = Pointer{}, b.out(E4M3, rows*f), int64(f), z.Steps
							if !steps.tensor() {
								g.Steps.At = b.out(F32, n)
							}
							if place != "own" {
								g.G = b.put(dt, x)
								if g.Up = g.G.At(int64(f * dt.Size())); place == "gate's" {
									g.Codes = g.G
								} else {
									g.Codes = g.Up
								}
								g.CodesStride = int64(2 * f * dt.Size())
							}
							b.run(g)
							require.Equal(t, b.get(F32, z.Steps.At, n), b.get(F32, g.Steps.At, n), place)
							for i := range rows {
								got := make([]byte, f)
								require.NoError(t, b.d.Download(got, g.Codes.At(int64(i)*g.CodesStride)))
								if want := want[i*f:][:f]; string(got) != string(want) {
									require.Equal(t, want, got, "row %d in %s place", i, place)
								}
							}
						}
					})
				}
			}
		}
	}
}

// A plan whose gated unit leaves codes gives the bits of one whose unit is read by another node too.
func TestDeviceExecutorGatedCodes(t *testing.T) {
	device(t)
	const rows, f, d = 70, 272, 144
	for _, o := range []ops.FP8WeightLinearOp{{Activations: ops.StepPerRow}, {Activations: ops.StaticSteps, StepX: 0.05}} {
		var results [2][]float32
		for i := range results {
			b := graph.New()
			x, y := b.Input("x", dtype.Float32, rows, f), b.Input("y", dtype.Float32, rows, f)
			w := b.Param("w", d, f)
			copy(graph.Data[float32](b.Store().Get("w").Tensor()), optest.Cast[float32](optest.Normals("w", d*f, .1)))
			b.Store().Get("w").Touch()
			unit := ops.GeGLU(ops.Add(x, y), ops.Add(y, y), true)
			outs := []*graph.Node{ops.FP8WeightLinear(unit, w, o)}
			if i == 1 {
				outs = append(outs, unit)
			}
			plan, err := b.Plan(outs...)
			require.NoError(t, err)
			e, err := Compile(plan, Options{Strict: true})
			require.NoError(t, err)
			defer e.Close()
			if i == 0 {
				require.Contains(t, e.String(), "gated_fp8_geglu_tanh_bf16")
			} else {
				require.NotContains(t, e.String(), "gated_fp8")
			}
			require.NoError(t, e.Do(context.Background(), graph.Feeds{"x": optest.Cast[float32](optest.Normals("x", rows*f, 1)), "y": optest.Cast[float32](optest.Normals("y", rows*f, 1))}))
			v, err := e.Value(outs[0])
			require.NoError(t, err)
			results[i] = graph.Data[float32](v)
		}
		require.Equal(t, results[1], results[0])
	}
}

func TestDeviceSpeedGatedCodes(t *testing.T) {
	speed(t)
	b := newBench(t)
	const f = 14336
	for _, rows := range []int{1, 16, 64, 512, 2048, 8192} {
		sets := max(1, min(8, 16<<20/(rows*f)))
		x, y, codes, steps := b.random(BF16, sets*rows*2*f, 1), b.out(BF16, rows*f), b.out(E4M3, sets*rows*f), b.out(F32, rows*f/128)
		for _, way := range []string{"unit", "codes", "unit, then codes", "codes in one", "codes in one, 1x128"} {
			us := clock(t, b.d, 10, func(q Queue, i int) error {
				p, to := x.At(int64(i%sets)*int64(rows)*2*f*2), codes.At(int64(i%sets)*int64(rows)*f)
				g := Gated{Type: BF16, Rows: rows, F: f, Y: y, G: p, Up: p.At(2 * f), Stride: 2 * f}
				z := Quantize{Type: BF16, Format: E4M3, Rows: rows, Cols: f, X: y, Codes: to, Steps: FP8Steps{At: steps, Rows: 1}, Dynamic: true}
				switch way {
				case "unit":
					return g.Launch(q)
				case "codes":
					return z.Launch(q)
				case "unit, then codes":
					if err := g.Launch(q); err != nil {
						return err
					}
					return z.Launch(q)
				}
				g.Codes, g.CodesStride, g.Steps = to, f, z.Steps
				if way != "codes in one" {
					g.Steps.Cols = 128
				}
				return g.Launch(q)
			})
			row(t, "gated unit: "+way, fmt.Sprintf("T%d 2x%d", rows, f), us, 0, float64(5*rows*f))
		}
	}
}
