package cuda

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
)

// The golden checkpoints have heads of 8 to 24: the attention, rotation and cache of each have kernels in every type.
func TestExecutorCoversGoldenAttention(t *testing.T) {
	dirs, err := filepath.Glob("../../models/testdata/golden/*")
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	mine := []string{"attention", "paged_attention", "append_pages", "append_rotary", "rotary", "merge_states", "rmsnorm", "layernorm", "swiglu", "geglu", "add", "embedding"}
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
