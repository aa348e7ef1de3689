package main

import (
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// shapes are the models that can be measured. Those called a layer, or small, have fewer layers and a small vocabulary, so
// that what their layers cost is what is seen.
var shapes = map[string]func() (*models.Transformer, error){
	"llama3-8b": made(models.Config{Type: "llama", Vocab: 128256, Hidden: 4096, FFN: 14336, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, NormEps: 1e-5, RopeTheta: 5e5}),
	"llama3-1b": made(models.Config{Type: "llama", Vocab: 128256, Hidden: 2048, FFN: 8192, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64, NormEps: 1e-5, RopeTheta: 5e5, Tied: true}),
	"tiny":      made(models.Config{Type: "llama", Vocab: 256, Hidden: 128, FFN: 256, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 64, NormEps: 1e-5, RopeTheta: 1e4}),
	"qwen3-30b-a3b-layer": made(models.Config{Type: "qwen3_moe", Vocab: 256, Hidden: 2048, FFN: 6144, Layers: 1, Heads: 32, KVHeads: 4, HeadDim: 128, NormEps: 1e-6, RopeTheta: 1e6, QKNorm: true,
		Experts: &models.Experts{Router: ops.Router{Experts: 128, TopK: 8, Renormalize: true}, FFN: 768, Dense: make([]bool, 1)}}),
	"kimi-linear-small": kimi(models.Config{Vocab: 256, Hidden: 2304, FFN: 9216, Layers: 4, Heads: 32, NormEps: 1e-5,
		Latent:  &models.Latent{KVRank: 512, Nope: 128, Rope: 64, V: 128},
		Delta:   &models.Delta{Heads: 32, HeadDim: 128, Width: 4, Layers: []bool{true, true, true, false}},
		Experts: &models.Experts{Router: ops.Router{Experts: 64, TopK: 8, Sigmoid: true, Renormalize: true, Scale: 2.446}, FFN: 1024, Shared: 1024, Bias: true, Dense: []bool{true, false, false, false}}}),
}

// maxLength is the most tokens of a request that is measured.
const maxLength = 1 << 20

func made(c models.Config) func() (*models.Transformer, error) {
	c.Context = maxLength
	return func() (*models.Transformer, error) { return models.New(c) }
}

func kimi(c models.Config) func() (*models.Transformer, error) {
	c.Context = maxLength
	return func() (*models.Transformer, error) { return models.KimiLinear(c) }
}
