// Options: everything that decides the result of a run, as JSON.

package train

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Options decide a run together with the model and the data: two runs with
// equal Options give equal bits, on CPUs with the same native.GemmKernel. They are
// stored in every checkpoint.
type Options struct {
	Steps      int    `json:"steps"`      // optimiser steps of the whole run
	Batch      int    `json:"batch"`      // rows of a micro-batch
	Context    int    `json:"context"`    // tokens of a row
	Accumulate int    `json:"accumulate"` // micro-batches of a step
	Seed       uint64 `json:"seed"`

	// Compute is how linears and attention multiply. Empty leaves it to the trainer:
	// BF16x6 where the CPU has AMX, else F32, and a run that is resumed goes on as it
	// began. Trainer.Compute says which it is.
	Compute Compute `json:"compute"`

	Dropout  float64  `json:"dropout"`   // probability of dropping an activation
	LR       float64  `json:"lr"`        // the highest learning rate
	MinLR    float64  `json:"min_lr"`    // the last one, as a fraction of LR
	Warmup   int      `json:"warmup"`    // steps of linear warm-up; a run of fewer ends below LR
	Schedule Schedule `json:"schedule"`  // what follows the warm-up
	Beta1    float64  `json:"beta1"`     // decay of the first moment
	Beta2    float64  `json:"beta2"`     // decay of the second moment
	Eps      float64  `json:"eps"`       // added to the root of the second moment
	Decay    float64  `json:"decay"`     // decoupled weight decay, of parameters with 2 or 3 dimensions
	DecayAll bool     `json:"decay_all"` // decay every parameter, vectors too, as torch.optim.AdamW does when left alone
	Clip     float64  `json:"clip"`      // highest global norm of the gradient; 0: no clipping

	EvalEvery int `json:"eval_every"` // steps between evaluations; 0: only after the last step
	EvalRows  int `json:"eval_rows"`  // held-out rows of an evaluation; 0: all
	EarlyStop int `json:"early_stop"` // evaluations without a new best that end the run; 0: never

	// These do not decide the result.
	Recompute bool `json:"recompute"`  // keep only what the layers hand on, and compute the rest again for the gradient: memory for time
	SaveEvery int  `json:"save_every"` // steps between checkpoints; 0: only after the last step
	Keep      int  `json:"keep"`       // newest checkpoints to keep, beside the best
}

// Compute says what linears and attention multiply. Weights, moments and sums are float32
// in any case.
type Compute string

const (
	F32  Compute = "f32"
	BF16 Compute = "bf16" // operands rounded to bf16, as autocast.BF16 does; linears in FP8 stay so

	// BF16x6 multiplies float32 by six products of bf16, as autocast.BF16x6 does: faster
	// than F32 where the CPU has AMX, with no more error (linears about half); elsewhere
	// it is F32.
	BF16x6 Compute = "bf16x6"
)

// Defaults are the options of a small model: AdamW at 1e-3 with betas 0.9 and
// 0.95, weight decay 0.1 on matrices, clipping at norm 1, 100 steps of warm-up,
// then a cosine to a tenth of the rate at the last step.
func Defaults() Options {
	return Options{
		Steps: 1000, Batch: 8, Context: 128, Accumulate: 1,
		LR: 1e-3, MinLR: 0.1, Warmup: 100, Schedule: Cosine,
		Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: 1,
		EvalEvery: 250, SaveEvery: 250, Keep: 2,
	}
}

// OptionError is a value that Options cannot have.
type OptionError struct {
	Field string // the JSON name
	Need  string
	Got   string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("train: option %s: must be %s, got %s", e.Field, e.Need, cmp.Or(e.Got, `""`))
}

// Check returns an *OptionError for the first value out of range.
func (o Options) Check() error {
	type bound struct {
		field string
		ok    bool
		need  string
		got   any
	}
	positive := func(field string, v int) bound { return bound{field, v >= 1, "at least 1", v} }
	count := func(field string, v int) bound { return bound{field, v >= 0, "0 or more", v} }
	for _, b := range []bound{
		positive("steps", o.Steps), positive("batch", o.Batch), positive("context", o.Context), positive("accumulate", o.Accumulate),
		{"context", o.Context <= math.MaxInt32, "below 2^31", o.Context},
		{"batch", o.Batch <= math.MaxInt32/max(1, o.Context), "at most 2^31 tokens a micro-batch", o.Batch},
		{"compute", slices.Contains([]Compute{"", F32, BF16, BF16x6}, o.Compute), "f32, bf16 or bf16x6", o.Compute},
		{"dropout", o.Dropout >= 0 && o.Dropout < 1, "in [0,1)", o.Dropout},
		{"lr", finite(o.LR) && o.LR > 0, "above 0", o.LR},
		{"min_lr", o.MinLR >= 0 && o.MinLR <= 1, "a fraction of lr, 0 to 1", o.MinLR},
		count("warmup", o.Warmup),
		{"schedule", o.Schedule.known(), "cosine, linear or constant", o.Schedule},
		{"beta1", o.Beta1 >= 0 && o.Beta1 < 1, "in [0,1)", o.Beta1},
		{"beta2", o.Beta2 >= 0 && o.Beta2 < 1, "in [0,1)", o.Beta2},
		{"eps", finite(o.Eps) && o.Eps > 0, "above 0", o.Eps},
		{"decay", finite(o.Decay) && o.Decay >= 0, "0 or more", o.Decay},
		{"clip", finite(o.Clip) && o.Clip >= 0, "0 or more", o.Clip},
		count("eval_every", o.EvalEvery), count("eval_rows", o.EvalRows), count("early_stop", o.EarlyStop),
		{"early_stop", o.EarlyStop == 0 || o.EvalEvery > 0, "0 where eval_every is 0, which evaluates after the last step alone", o.EarlyStop},
		count("save_every", o.SaveEvery), positive("keep", o.Keep),
	} {
		if !b.ok {
			return &OptionError{b.field, b.need, fmt.Sprint(b.got)}
		}
	}
	return nil
}

// differs names the first field that a resumed run may not change, with both
// values. Steps may change (the schedule then follows the new number), and so
// may what does not decide the parameters.
func (o Options) differs(saved Options) (field, was, is string) {
	for _, s := range []*Options{&o, &saved} {
		s.Steps, s.EvalEvery, s.EvalRows, s.EarlyStop, s.Recompute, s.SaveEvery, s.Keep = 0, 0, 0, 0, false, 0, 0
		s.Compute = cmp.Or(s.Compute, F32)
	}
	now, then := o.fields(), saved.fields()
	for _, f := range fieldOrder {
		if was, is := string(then[f]), string(now[f]); was != is {
			return f, was, is
		}
	}
	return "", "", ""
}

var fieldOrder = []string{
	"batch", "context", "accumulate", "seed", "compute", "dropout", "lr", "min_lr", "warmup", "schedule",
	"beta1", "beta2", "eps", "decay", "decay_all", "clip",
}

// fields are the values as JSON, by name.
func (o Options) fields() map[string]json.RawMessage {
	raw, err := json.Marshal(o)
	m := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		panic(err) // numbers and strings, which Check keeps finite
	}
	return m
}
