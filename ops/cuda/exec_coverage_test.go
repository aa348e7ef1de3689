package cuda

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops/optest/cases"
)

// The golden checkpoints have heads of 6 to 24: the attention, rotation and cache of each have kernels in every type.
func TestExecutorCoversGoldenAttention(t *testing.T) {
	dirs, err := filepath.Glob("../../models/testdata/golden/*")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	mine := []string{"attention", "paged_attention", "append_pages", "append_rotary", "rotary", "merge_states", "rmsnorm", "layernorm", "swiglu", "geglu", "add", "affine", "split", "softcap", "embedding"}
	for _, dir := range dirs {
		if slices.Contains([]string{"deepseek_v3", "kimi_linear"}, filepath.Base(dir)) {
			continue // latents and KDA states
		}
		m, _, err := models.Load(dir)
		require.NoError(t, err)
		for _, compute := range []DType{F32, BF16, F16} {
			for _, tokens := range []int{1, 16} {
				b := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
				logits := m.Packed(b, models.Packed{Tokens: tokens, Requests: 1, Pages: 8, PageSize: 16, Indices: 8})
				require.NoError(t, b.Err())
				plan, err := b.Plan(logits)
				require.NoError(t, err)
				p, err := lower(plan, targets["sm_90"], compute, false, nil)
				require.NoError(t, err)
				for _, s := range p.steps {
					for _, n := range s.nodes {
						require.False(t, s.host != nil && slices.Contains(mine, n.Op().Name()), "%s: %s runs natively: %s", filepath.Base(dir), n.Name(), s.why)
					}
				}
			}
		}
	}
}

// Every case of the tables becomes a program for every GPU in every type. The golden file says for which ops some run natively:
// linears of rows that are no multiple of 8 numbers, and FP8 where a GPU or a layout has no kernel or an operand is no weight.
func TestExecutorLowersEveryCase(t *testing.T) {
	all, native := map[string]int{}, map[string]int{}
	for _, c := range cases.All() {
		if c.Err != "" || !Supports(c.Op) {
			continue
		}
		plan, feeds, err := c.Plan(dtype.Float32)
		require.NoError(t, err, "%s %s", c.Op, c.Name)
		for name, gpu := range targets {
			for _, dt := range []DType{F32, BF16, F16} {
				p, err := lower(plan, gpu, dt, false, nil)
				require.NoError(t, err, "%s %s on %s in %v", c.Op, c.Name, name, dt)
				require.NoError(t, p.stage(feeds, make([]byte, p.fed.bytes)), "%s %s on %s in %v", c.Op, c.Name, name, dt)
				key := fmt.Sprintf("%s %s %v", c.Op, name, dt)
				if all[key]++; slices.ContainsFunc(p.steps, func(s *step) bool { return s.host != nil }) {
					native[key]++
				}
			}
		}
	}
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(native)) {
		fmt.Fprintf(&text, "%s: %d of %d cases\n", key, native[key], all[key])
	}
	holdGolden(t, "native_cases", text.String())
}
