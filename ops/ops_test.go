package ops_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
	"github.com/seafan/seafan/ops/optest/cases"
)

// TestN05_EveryOpMatchesItsOracle runs the case tables, forward and gradient,
// in both float types.
func TestN05_EveryOpMatchesItsOracle(t *testing.T) {
	for _, c := range cases.All() {
		t.Run(c.Op+"/"+strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			c.Forward(t, dtype.Float32, cases.Native)
			if c.Err == "" {
				c.Forward(t, dtype.Float64, cases.Native)
				c.Gradient(t, dtype.Float32, cases.Native)
				c.Gradient(t, dtype.Float64, cases.Native)
			}
		})
	}
}

// TestResultsDoNotDependOnWorkers runs every case on 1, 2 and 7 workers.
func TestResultsDoNotDependOnWorkers(t *testing.T) {
	defer native.SetWorkers(0)
	for _, c := range cases.All() {
		if c.Err != "" {
			continue
		}
		var want [][]byte
		for _, w := range []int{1, 2, 7} {
			native.SetWorkers(w)
			var got [][]byte
			keep := func(p *graph.Plan, f graph.Feeds) ([]graph.Tensor, error) {
				ts, err := cases.Native(p, f)
				for _, x := range ts {
					got = append(got, slices.Clone(x.Bytes()))
				}
				return ts, err
			}
			c.Forward(t, dtype.Float32, keep)
			c.Gradient(t, dtype.Float32, keep)
			if want == nil {
				want = got
			}
			require.Equal(t, want, got, "%s %s with %d workers", c.Op, c.Name, w)
		}
	}
}

// TestBF16x6AttentionRunsWhereAMXIs: sequences of more than one key tile have other
// bits by BF16x6 (whose error the cases bound) where the CPU has AMX, and those of
// float32 elsewhere; one key tile has them everywhere.
func TestBF16x6AttentionRunsWhereAMXIs(t *testing.T) {
	for _, keys := range []int{128, 129, 300} {
		in := []cases.Input{cases.Normal("q", 1, keys, 2, 64), cases.Normal("k", 1, keys, 1, 64), cases.Normal("v", 1, keys, 1, 64)}
		run := func(split bool) []float32 {
			c := cases.Case{In: in, Build: func(in []*graph.Node) []*graph.Node {
				return graph.ApplyAll("attention", ops.AttentionOp{Causal: true, BF16x6: split}, in...)
			}}
			p, feeds, err := c.Plan(dtype.Float32)
			require.NoError(t, err)
			results, err := cases.Native(p, feeds)
			require.NoError(t, err)
			return slices.Clone(graph.Data[float32](results[0]))
		}
		require.Equal(t, native.GemmKernel() == "amx" && keys > 128, !slices.Equal(run(false), run(true)), "%d keys, kernels %s", keys, native.GemmKernel())
	}
}

// TestEveryOpIsTested holds the registry to the tables: an op has a native
// body, and cases, or is the gradient of an op that has.
func TestEveryOpIsTested(t *testing.T) {
	tested, graded := map[string]bool{}, map[string]bool{}
	for _, c := range cases.All() {
		tested[c.Op] = true
		graded[c.Op] = graded[c.Op] || c.Err == "" && c.Grad != nil
	}
	for _, name := range graph.Registered() {
		d, _ := graph.Lookup(name)
		switch {
		case strings.HasPrefix(name, "case_"), d.Symbolic, name == "result": // reached by every op of several results
			continue
		case strings.Contains(name, "_grad"):
			require.True(t, tested[name[:strings.Index(name, "_grad")]], "%s: the op has no cases", name)
		case strings.HasSuffix(name, "_measured"): // Share puts it in the place of the op, and its test holds every bit
			require.True(t, tested[strings.TrimSuffix(name, "_measured")], "%s: the op has no cases", name)
		default:
			require.True(t, tested[name], "%s has no cases in ops/optest/cases", name)
			require.True(t, graded[name] || d.Grad == nil, "%s has a gradient rule that no case checks", name)
		}
		require.True(t, d.Native != nil || name == "reshape", "%s has no native body", name)
	}
}

// TestN07_EmptyShapes gives every op an input with a dimension of 0: the error
// comes while the graph is built, and nothing can run.
func TestN07_EmptyShapes(t *testing.T) {
	for _, c := range cases.All() {
		if c.Err != "" || len(c.In[0].Shape) == 0 {
			continue
		}
		c.In = slices.Clone(c.In)
		c.In[0].Shape = append([]int{0}, c.In[0].Shape[1:]...)
		for i := range c.In { // the graph has failed before a state could be filled
			c.In[i].State = false
		}
		c.Err = c.In[0].Name + ": dimension 0 of " + graph.Dims(c.In[0].Shape) + " is 0, every dimension must be at least 1"
		c.Forward(t, dtype.Float32, cases.Native)
	}
}

// TestA06_HeadsMustDivide: the error names both numbers of heads, when the graph
// is built.
func TestA06_HeadsMustDivide(t *testing.T) {
	b := graph.New()
	s := b.Scope("layers.3.attn")
	q, k := s.Input("q", dtype.Float32, 2, 16, 6, 64), s.Input("k", dtype.Float32, 2, 16, 4, 64)
	ops.Attention(q, k, k, ops.AttentionOptions{Causal: true})
	require.EqualError(t, b.Err(), "layers.3.attn: attention: q has 6 heads, not a multiple of k's 4 (q [2,16,6,64], k [2,16,4,64], v [2,16,4,64])")
}
