package models

import (
	"fmt"
	"math"

	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/ops"
)

// ministral is mistral with a window on the layers that the config lists, on all
// unless it lists some. Source: Mistral AI, Un Ministral, des Ministraux (2024).
var ministral = architecture{
	class:    "MinistralForCausalLM",
	defaults: mistral.defaults,
	read: func(f *file, c *Config) error {
		return f.windows(c, func(int) bool { return true })
	},
	write: func(f *file, c *Config) { f.writeWindows(c) },
	layer: llamaLayer,
}

// ministral3 is mistral whose queries grow with the logarithm of their position, see
// Config.Growth. Source: Mistral AI, Ministral 3 (2025).
var ministral3 = architecture{
	class: "Ministral3ForCausalLM",
	defaults: func() file {
		return file{HiddenAct: "silu", RMSNormEps: 1e-5, MaxPositions: 262144, RopeTheta: new(1e6), KVHeads: new(8), HeadDim: new(128),
			unsaidRope: &rope{Type: "yarn", Factor: 16, Original: 16384, BetaFast: 32, BetaSlow: 1, MScale: 1, MScaleAll: 1, Growth: new(0.1)}}
	},
	read: func(f *file, c *Config) error {
		if r := f.saidRope(); r.Growth != nil && *r.Growth != 0 {
			if c.Growth, c.GrowthSpan = *r.Growth, r.Original; r.Original < 1 {
				return fmt.Errorf("original_max_position_embeddings must be 1 or more with llama_4_scaling_beta, got %d", r.Original)
			}
		}
		return mistral.read(f, c)
	},
	write: func(f *file, c *Config) {
		mistral.write(f, c)
		r := rope{Type: "default", Original: c.Context}
		if f.RopeScaling != nil {
			r, f.RopeScaling = *f.RopeScaling, nil
		}
		if c.GrowthSpan > 0 {
			r.Original = c.GrowthSpan
		}
		r.Theta, r.Growth = &c.RopeTheta, &c.Growth
		f.RopeParameters = &r
	},
	layer: llamaLayer,
	// The text of every mistral3: without keys of growth and scaling it is mistral.
	gguf: &ggufForm{name: "mistral3", turned: true, norms: llamaNorms, more: func(k *ggufKeys, _ *checkpoint.Checkpoint, f *file) {
		f.unsaidRope = &rope{
			Growth:   new(tidy(orElse(k, "attention.temperature_scale", k.float, 0))),
			Original: orElse(k, "rope.scaling.original_context_length", k.int, 0),
		}
	}},
}

// grown is a table whose turn multiplies by what queries grow to.
func (c *Config) grown(t *ops.RotaryTable, positions int) *ops.RotaryTable {
	out := &ops.RotaryTable{Positions: t.Positions, Width: t.Width, Cos: make([]float32, len(t.Cos)), Sin: make([]float32, len(t.Sin))}
	for i := range t.Cos {
		p := i / (t.Width / 2) % positions
		by := 1 + c.Growth*math.Log(float64(1+p/c.GrowthSpan))
		out.Cos[i], out.Sin[i] = float32(by*float64(t.Cos[i])), float32(by*float64(t.Sin[i]))
	}
	return out
}
