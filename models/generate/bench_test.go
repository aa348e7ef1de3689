package generate_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
)

// BenchmarkDecode is one token after another with the demo's model.
func BenchmarkDecode(b *testing.B) {
	m, err := models.New(models.Config{Type: "llama", Vocab: 256, Hidden: 256, FFN: 1024, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 64, Context: 1 << 16, NormEps: 1e-6, RopeTheta: 1e4})
	require.NoError(b, err)
	require.NoError(b, m.Init(1))
	s, err := generate.New(m, generate.Options{})
	require.NoError(b, err)
	r, err := s.Add([]int32{1}, generate.Sampling{})
	require.NoError(b, err)
	for b.Loop() {
		_, err := r.Next(context.Background())
		require.NoError(b, err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "token/s")
}
