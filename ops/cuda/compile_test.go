package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// paper is memory that exists only as names.
type paper struct{ next uint64 }

func (m *paper) take(label string) (Pointer, error) {
	m.next += 1 << 40
	return Pointer{Addr: m.next, Label: label}, nil
}
func (m *paper) param(p *graph.Param, _ DType) (Pointer, error) { return m.take(p.Name) }
func (m *paper) pair(p, q *graph.Param, _ DType) (Pointer, error) {
	return m.take(p.Name + " and " + q.Name)
}
func (m *paper) table(_ any, label string, _ func() []byte) (Pointer, error) { return m.take(label) }
func (m *paper) zeroed(label string, _ int64) (Pointer, error)               { return m.take(label) }

// What a plan becomes is text: kernel, grid, block, shared memory, arguments by name, for each architecture.
func TestPlanGolden(t *testing.T) {
	c := models.Config{Type: "llama", Vocab: 512, Hidden: 256, FFN: 512, Layers: 1, Heads: 4, KVHeads: 2, HeadDim: 64, Context: 512, NormEps: 1e-5, RopeTheta: 1e4}
	for name, gpu := range targets {
		for _, tokens := range []int{4, 256} {
			m, err := models.New(c)
			require.NoError(t, err)
			b := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
			plan, err := b.Plan(m.Packed(b, models.Packed{Tokens: tokens, Requests: 4, Pages: 32, PageSize: 16, Indices: 32}))
			require.NoError(t, err)
			comp := newCompilation(plan, Options{}, &paper{})
			comp.arena = Pointer{Addr: 1 << 30, Label: "arena"}
			r := &Recorder{GPU: gpu}
			require.NoError(t, comp.lower(r))
			path := filepath.Join("testdata", fmt.Sprintf("plan_%s_t%d.txt", name, tokens))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(r.String()), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), r.String(), "%s: run go test -update and read the difference", path)
		}
	}
}

func TestPlanWithoutKernelSaysWhy(t *testing.T) {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 2, 3)
	plan, err := b.Plan(ops.Linear(x, b.Param("w", 5, 3)))
	require.NoError(t, err)
	comp := newCompilation(plan, Options{}, &paper{})
	comp.arena = Pointer{Addr: 1 << 30}
	err = comp.lower(&Recorder{GPU: targets["sm_90"]})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, "gemm: no CUDA kernel: K 3, row strides 3 and 3")
}
