package autocast_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops/optest"
)

// BenchmarkTrainStep is forward and backward of the demo's step in every
// precision.
func BenchmarkTrainStep(b *testing.B) {
	c := models.Config{Type: "llama", Vocab: 256, Hidden: 256, FFN: 1024, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 64, Context: 128, NormEps: 1e-5, RopeTheta: 1e4}
	for _, p := range []struct {
		name string
		pass func(b *graph.Builder) (*graph.Builder, *autocast.Report, error)
	}{
		{"float32", func(b *graph.Builder) (*graph.Builder, *autocast.Report, error) { return b, nil, nil }},
		{"fp8 dynamic", func(b *graph.Builder) (*graph.Builder, *autocast.Report, error) {
			return autocast.FP8(b, autocast.Options{})
		}},
		{"fp8 delayed", func(b *graph.Builder) (*graph.Builder, *autocast.Report, error) {
			return autocast.FP8(b, autocast.Options{Recipe: autocast.Delayed{History: 16}})
		}},
		{"bf16", func(b *graph.Builder) (*graph.Builder, *autocast.Report, error) {
			return autocast.BF16(b, autocast.Filter{})
		}},
		{"fp8 and bf16", func(b *graph.Builder) (*graph.Builder, *autocast.Report, error) {
			b, _, err := autocast.FP8(b, autocast.Options{})
			if err != nil {
				return nil, nil, err
			}
			return autocast.BF16(b, autocast.Filter{})
		}},
	} {
		b.Run(p.name, func(b *testing.B) {
			m := newModel(b, c)
			g := graph.New(graph.Share(m.Params()))
			loss, _ := m.Loss(g, 8, 128, 0, 0)
			g.Output("loss", loss)
			g, _, err := p.pass(g)
			require.NoError(b, err)
			d := newSharing(b, g)
			run, err := d.run.Plan().Native() // that of the tests fills its arena first
			require.NoError(b, err)
			f := graph.Feeds{"tokens": optest.Ints("tokens", 8*128, 256), "labels": optest.Ints("labels", 8*128, 256)}
			for b.Loop() {
				for _, p := range d.params { // as after an optimiser step
					p.Param().Touch()
				}
				require.NoError(b, run.Do(context.Background(), f))
			}
		})
	}
}

// A step takes its scratch from the steps before it.
func TestFP8StepsGiveBackTheirScratch(t *testing.T) {
	m := newModel(t, models.Config{Type: "llama", Vocab: 256, Hidden: 128, FFN: 512, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 64, Context: 128, NormEps: 1e-5, RopeTheta: 1e4})
	g := graph.New(graph.Share(m.Params()))
	loss, _ := m.Loss(g, 4, 128, 0, 0)
	g.Output("loss", loss)
	g, _, err := autocast.FP8(g, autocast.Options{})
	require.NoError(t, err)
	run, err := newSharing(t, g).run.Plan().Native()
	require.NoError(t, err)
	f := graph.Feeds{"tokens": optest.Ints("tokens", 4*128, 256), "labels": optest.Ints("labels", 4*128, 256)}
	step := func() { require.NoError(t, run.Do(context.Background(), f)) }
	for range 3 {
		step()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		step()
	}
	runtime.ReadMemStats(&after)
	require.Less(t, (after.TotalAlloc-before.TotalAlloc)/10, uint64(1<<16), "words of one product are 1 MB")
}
