//go:build gpu

package cuda

// Every op with a body against its float64 oracle, through graph, plan and executor: the case tables of native, and cases of
// sizes that the kernels of attention exist for.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
	"github.com/seafan/seafan/ops/optest/cases"
)

var computes = []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16}

// roundoffsOf is how many unit roundoffs of float32, in which cases bound errors, one of the compute dtype is.
func roundoffsOf(dt dtype.DType) float64 {
	return map[dtype.DType]float64{dtype.Float32: 1, dtype.BFloat16: 1 << 16, dtype.Float16: 1 << 13}[dt]
}

// narrowBound is in unit roundoffs of bf16 or f16: half a unit for each rounding of the inputs, one for the output, and what
// a gate makes of its input's error. Measured at most 1.2.
const narrowBound = 3

// once runs a plan on the device and says how many of its steps ran there.
func once(t testing.TB, dt dtype.DType, onDevice *int) cases.Executor {
	return func(p *graph.Plan, feeds graph.Feeds) ([]graph.Tensor, error) {
		e, err := Compile(p, Options{Compute: dt})
		if err != nil {
			return nil, err
		}
		defer func() { require.NoError(t, e.Close()) }()
		for _, s := range e.prog.steps {
			if s.host == nil {
				*onDevice++
			}
		}
		var ts []graph.Tensor
		runs := 2 // launch by launch, then as a graph
		if slices.ContainsFunc(p.Nodes(), movesOn) {
			runs = 1
		}
		for range runs {
			if err := e.Do(context.Background(), feeds); err != nil {
				return nil, err
			}
			var now []graph.Tensor
			for i, o := range p.Outputs {
				v, err := e.Value(o)
				if err != nil {
					return nil, err
				}
				own := graph.NewTensor(v.Type)
				copy(own.Bytes(), v.Bytes())
				if now = append(now, own); ts != nil && string(own.Bytes()) != string(ts[i].Bytes()) {
					t.Errorf("output %d of the replay differs from the first run", i)
				}
			}
			ts = now
		}
		return ts, nil
	}
}

// movesOn says that a second run starts from other states than the first.
func movesOn(n *graph.Node) bool {
	switch n.Op().(type) {
	case ops.KDASlotsOp, ops.ShortConvSlotsOp:
		return true
	}
	return false
}

func TestDeviceExecutorCases(t *testing.T) {
	device(t)
	var list []cases.Case
	for _, c := range slices.Concat(cases.All(), deviceCases(), fp8DeviceCases(), fp8ExpertsDeviceCases()) {
		large := c.In[0].F != nil && len(c.In[0].F) > 1<<18
		if c.Err == "" && (Supports(c.Op) || c.Op == "reshape") && !(testing.Short() && large) {
			list = append(list, c)
		}
	}
	for turn, dt := range computes {
		var mu sync.Mutex
		seen := map[string]int{}
		onDevice, native := map[string]int{}, map[string]int{}
		for _, c := range list {
			// The short form takes some of each op, others in each type.
			if seen[c.Op]++; testing.Short() && (seen[c.Op]-turn)%12 != 1 {
				continue
			}
			each(t, 1, strings.ReplaceAll(fmt.Sprintf("%s/%s/%s", dt, c.Op, c.Name), " ", "_"), func(t *testing.T) {
				switch {
				case dt != dtype.Float32 && c.Op == "kda_gate":
					c.C = 16 * narrowBound * roundoffsOf(dt) // exp(A x) makes A, up to 15, times the rounding of x of it
				case dt != dtype.Float32 && c.Op == "fp8_experts" && strings.Contains(c.Name, ops.StepPerBlock.String()):
					c.C = codeTie
				case dt != dtype.Float32:
					c.C = narrowBound * roundoffsOf(dt)
				} // else the bound is native's
				if slices.Contains(fp8Ops, c.Op) {
					c.In = slices.Clone(c.In)
					for i := range c.In {
						if c.In[i].F != nil {
							c.In[i].F = decode(deviceType(t, dt), encode(deviceType(t, dt), c.In[i].F))
						}
					}
				}
				if c.Op == "sampling" { // draws are from the logits as the device has them
					c.In = slices.Clone(c.In)
					c.In[0].F = decode(deviceType(t, dt), encode(deviceType(t, dt), c.In[0].F))
				}
				n := 0
				c.Forward(t, dtype.Float32, once(t, dt, &n))
				mu.Lock()
				defer mu.Unlock()
				if n > 0 {
					onDevice[c.Op]++
				} else {
					native[c.Op]++
				}
			})
		}
		t.Cleanup(func() { fmt.Printf("CASES\t%s\ton the device %v\tnative %v\n", dt, onDevice, native) })
	}
}

func deviceType(t testing.TB, dt dtype.DType) DType {
	c, err := Options{Compute: dt}.compute()
	require.NoError(t, err)
	return c
}

func one(n *graph.Node) []*graph.Node { return []*graph.Node{n} }

func normalInput(name string, shape ...int) cases.Input { return cases.Normal(name, shape...) }

func intInput(name string, v ...int32) cases.Input {
	return cases.Input{Name: name, Shape: []int{len(v)}, I: v}
}

// deviceCases are of sizes that the kernels exist for.
func deviceCases() []cases.Case {
	var cs []cases.Case
	for _, s := range [][3]int{{1, 264, 512}, {16, 264, 512}, {64, 128, 136}, {65, 128, 136}, {300, 520, 256}} {
		m, n, k := s[0], s[1], s[2]
		cs = append(cs, cases.Case{Op: "linear", Name: fmt.Sprint("device ", s), C: 8, In: []cases.Input{normalInput("x", m, k), normalInput("w", n, k), normalInput("bias", n)},
			Build: func(in []*graph.Node) []*graph.Node { return one(ops.Linear(in[0], in[1], in[2])) },
			Oracle: func(in []cases.Input) [][]float64 {
				return [][]float64{optest.Linear(in[0].F, in[1].F, in[2].F, m, n, k)}
			}})
	}
	for _, s := range [][3]int{{1, 8, 3}, {9, 20, 90}, {70, 33, 77}} { // weights whose rows are no multiple of 8
		m, n, k := s[0], s[1], s[2]
		w := optest.Normals(fmt.Sprint("odd", s), n*k, 1)
		cs = append(cs, cases.Case{Op: "linear", Name: fmt.Sprint("device odd ", s), C: 8, In: []cases.Input{normalInput("x", m, k)},
			Build: func(in []*graph.Node) []*graph.Node {
				p := in[0].Builder().Param("w", n, k)
				copy(graph.Data[float32](p.Param().Tensor()), optest.Cast[float32](w))
				p.Param().Touch()
				return one(ops.Linear(in[0], p))
			},
			Oracle: func(in []cases.Input) [][]float64 { return [][]float64{optest.Linear(in[0].F, w, nil, m, n, k)} }})
	}
	for _, a := range []optest.Attention{
		{B: 2, Lq: 65, Lk: 65, Hq: 4, Hkv: 2, D: 64, Dv: 64, Causal: true}, {B: 1, Lq: 130, Lk: 200, Hq: 6, Hkv: 2, D: 128, Dv: 128, Causal: true, Window: 33},
		{B: 2, Lq: 33, Lk: 70, Hq: 2, Hkv: 1, D: 96, Dv: 96}, {B: 1, Lq: 70, Lk: 70, Hq: 2, Hkv: 2, D: 256, Dv: 256, Causal: true, Softcap: 20},
	} {
		cs = append(cs, cases.Case{Op: "attention", Name: fmt.Sprintf("device %+v", a), C: 8,
			In: []cases.Input{normalInput("q", a.B, a.Lq, a.Hq, a.D), normalInput("k", a.B, a.Lk, a.Hkv, a.D), normalInput("v", a.B, a.Lk, a.Hkv, a.D)},
			Build: func(in []*graph.Node) []*graph.Node {
				out, lse := ops.AttentionLSE(in[0], in[1], in[2], ops.AttentionOptions{Causal: a.Causal, Window: a.Window, Softcap: a.Softcap})
				return []*graph.Node{out, lse}
			},
			Oracle: func(in []cases.Input) [][]float64 {
				out, lse := a.Forward(in[0].F, in[1].F, in[2].F)
				return [][]float64{out, lse}
			}})
	}
	for _, d := range []int{8, 24, 40, 80, 112, 160, 256} { // multiples of 8 that are nobody's own size
		cs = append(cs, pagedCase(2, 16, 0, d, []int{70, 1, 33, 200}, []int{70, 1, 5, 1}))
	}
	for _, size := range []int{1, 16, 256} {
		for _, window := range []int{0, 5} {
			cs = append(cs, pagedCase(2, size, window, 64, []int{13, 65, 0, 2 * size, 600}, []int{13, 1, 0, 1, 1}), pagedCase(2, size, window, 128, []int{70, 1, 33}, []int{1, 1, 1}))
		}
	}
	for _, spare := range []int{0, 3} { // for the kernels of many tokens alone
		cs = append(cs, pagedCase(spare, 16, 0, 128, []int{200, 90, 1}, []int{120, 40, 1}), pagedCase(spare, 16, 40, 64, []int{140, 3}, []int{140, 3}))
	}
	return append(cs, appendCase(64), appendCase(16))
}

// pagedCase has a page of another request between any two, with NaN in it, and spare rows that belong to nobody.
func pagedCase(spare, size, window, d int, lengths, queries []int) cases.Case {
	const hq, hk = 6, 2
	qo, table, next := []int32{0}, optest.PageTable{PageSize: size, Indptr: []int32{0}}, int32(0)
	for r, n := range lengths {
		for left := n; left > 0; left -= size {
			table.Indices = append(table.Indices, next)
			next += 2
		}
		table.Indptr = append(table.Indptr, int32(len(table.Indices)))
		last := 0
		if n > 0 {
			last = (n+size-1)%size + 1
		}
		table.LastPageLen = append(table.LastPageLen, int32(last))
		qo = append(qo, qo[r]+int32(queries[r]))
	}
	tokens := int(qo[len(lengths)]) + spare
	owned := map[int]bool{}
	for r, n := range lengths {
		for i := range n {
			owned[table.Slot(r, i)] = true
		}
	}
	pool := func(name string) cases.Input {
		x := normalInput(name, int(next), size, hk, d)
		x.State = true
		for i := range x.F {
			if !owned[i/(hk*d)] {
				x.F[i] = math.NaN()
			}
		}
		return x
	}
	a := optest.Attention{B: len(lengths), Lq: tokens, Hq: hq, Hkv: hk, D: d, Dv: d, Causal: true, Window: window}
	return cases.Case{Op: "paged_attention", Name: fmt.Sprintf("device D %d page size %d window %d queries %v of %v and %d", d, size, window, queries, lengths, spare), C: 8,
		In: []cases.Input{normalInput("q", tokens, hq, d), pool("k_pages"), pool("v_pages"), intInput("qo_indptr", qo...), intInput("kv_page_indptr", table.Indptr...),
			intInput("kv_page_indices", table.Indices...), intInput("kv_last_page_len", table.LastPageLen...)},
		Build: func(in []*graph.Node) []*graph.Node {
			return one(ops.PagedAttention(in[0], in[1], in[2], ops.Pages{QOIndptr: in[3], Indptr: in[4], Indices: in[5], LastPageLen: in[6]}, ops.PagedAttentionOp{Causal: true, Window: window}))
		},
		Oracle: func(in []cases.Input) [][]float64 {
			out, _ := optest.Paged{Attention: a, QO: qo, Table: table}.Forward(in[0].F, in[1].F, in[2].F)
			return [][]float64{append(out, make([]float64, spare*hq*d)...)}
		}}
}

func appendCase(d int) cases.Case {
	pool := normalInput("pages", 3, 4, 2, d)
	pool.State = true
	return cases.Case{Op: "append_pages", Name: fmt.Sprint("device D ", d), In: []cases.Input{pool, normalInput("x", 3, 2, d), intInput("slots", 11, -1, 0)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.AppendPages(in[0], in[1], in[2])) },
		Oracle: func(in []cases.Input) [][]float64 {
			pages := append([]float64(nil), in[0].F...)
			for t, slot := range in[2].I {
				if slot >= 0 {
					copy(pages[int(slot)*2*d:], in[1].F[t*2*d:(t+1)*2*d])
				}
			}
			return [][]float64{pages}
		}}
}

// What is written to pages is bit for bit what native code writes, rounded to the pool's type, and nothing else is touched.
func TestDeviceExecutorCacheWritesAreNatives(t *testing.T) {
	device(t)
	const tokens, heads, d = 9, 2, 64
	x := optest.Cast[float32](optest.Normals("cache", tokens*heads*d, 1))
	copy(x, []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), 1e-40, 65000, 1.0000001, -3.1415927})
	slots := []int32{7, -1, 0, 19, 18, 3, -1, 4, 12}
	written := func(compile func(*graph.Plan) (graph.Executor, error)) []float32 {
		b := graph.New(graph.States(graph.NewParams()))
		pool := b.State("pages", dtype.Float32, 5, 4, heads, d)
		for i := range graph.Data[float32](pool.Param().Tensor()) {
			graph.Data[float32](pool.Param().Tensor())[i] = -0.5
		}
		out := ops.AppendPages(pool, b.Input("x", dtype.Float32, tokens, heads, d), b.Input("slots", dtype.Int32, tokens))
		plan, err := b.Plan(out)
		require.NoError(t, err)
		e, err := compile(plan)
		require.NoError(t, err)
		require.NoError(t, e.Do(context.Background(), graph.Feeds{"x": x, "slots": slots}))
		v, err := e.Value(out)
		require.NoError(t, err)
		got := slices.Clone(graph.Data[float32](v))
		if c, ok := e.(*Executor); ok {
			require.NoError(t, c.Close())
		}
		return got
	}
	want := written(natively)
	for _, dt := range computes {
		in := deviceType(t, dt)
		rounded := make([]byte, 4*len(want))
		narrow(rounded, floatBytes(want), in)
		widen(rounded, slices.Clone(rounded[:in.Size()*len(want)]), in)
		require.Equal(t, rounded, floatBytes(written(onCUDA(Options{Compute: dt, Strict: true}))), dt)
	}
}
