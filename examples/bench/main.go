// Command bench measures the steps of a model's shape: decode of a batch at a
// context, or the prefill of one prompt, with random weights.
//
//	eval "$(make env)" # the flags of cgo for -tags gpu
//	go run -tags gpu ./examples/bench -shape llama3-8b -batch 16 -context 1024
//	go run -tags gpu ./examples/bench -shape llama3-8b -prefill 2048
//
// A step is a whole one: feeds sent, model run, the next token of each request
// drawn and back on the host. The rate is that of the weights and the cache that
// a step must read; on a device it is also given as a part of the floor, the
// memory's highest rate, and a table of the kernels follows: what each is for,
// its time, its rates, and how much of its time is the floor, which is what it
// must move or compute at the device's highest rates. Native code computes in
// float32.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/backend"
	"github.com/seafan/seafan/ops/cuda"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var dtypes = map[string]dtype.DType{"bf16": dtype.BFloat16, "f16": dtype.Float16, "f32": dtype.Float32, "fp8": dtype.BFloat16, "fp8-weights": dtype.BFloat16}

// result is one line of the table.
type result struct {
	Shape   string  `json:"shape"`
	Backend string  `json:"backend"`
	Batch   int     `json:"batch"`
	Context int     `json:"context"`
	Prefill int     `json:"prefill,omitempty"`
	Dtype   string  `json:"dtype"`
	StepMS  float64 `json:"step_ms"`
	Tokens  float64 `json:"tokens_per_s"`
	GBs     float64 `json:"gb_per_s"` // weights and cache over the time of a step

	Floor   float64       `json:"of_the_floor,omitempty"` // of decode on a device: GBs over its memory's highest rate
	Profile *cuda.Profile `json:"profile,omitempty"`      // of a device
}

func (r result) String() string {
	what := fmt.Sprintf("batch %d context %d", r.Batch, r.Context)
	if r.Prefill > 0 {
		what = fmt.Sprintf("prefill %d", r.Prefill)
	}
	floor := ""
	if r.Floor > 0 {
		floor = fmt.Sprintf(", %.2f of the floor", r.Floor)
	}
	return fmt.Sprintf("%s: %.3f ms a step, %.0f tokens/s, %.0f GB/s of weights and cache%s", what, r.StepMS, r.Tokens, r.GBs, floor)
}

func run(args []string, out, errOut io.Writer) error {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprint(errOut, "bench measures the steps of a model's shape with random weights: decode, or prefill with -prefill.\n\n")
		f.PrintDefaults()
	}
	names := slices.Sorted(maps.Keys(shapes))
	shape := f.String("shape", "llama3-8b", "what is measured: "+strings.Join(names, ", "))
	batch := f.Int("batch", 1, "requests that bring one token each")
	length := f.Int("context", 1024, "tokens of each request, the new one among them")
	prefill := f.Int("prefill", 0, "measure the prefill of one prompt of this many tokens instead")
	kind := f.String("dtype", "bf16", "compute dtype on CUDA: bf16, f16 or f32; or fp8 (E4M3 weights and activations) or fp8-weights, both in bf16")
	name := f.String("backend", "", "what computes: native or cuda; default: cuda where there is a device")
	kernels := f.Bool("kernels", true, "on a device, time the kernels one by one as well")
	steps := f.Int("steps", 20, "steps that are measured; the median counts")
	asJSON := f.Bool("json", false, "print a line of JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: every value belongs to a flag (-h lists them)", f.Arg(0))
	}
	build, ok := shapes[*shape]
	if !ok {
		return fmt.Errorf("-shape must be one of %s, got %q", strings.Join(names, ", "), *shape)
	}
	for _, x := range []struct {
		name           string
		v, least, most int
	}{{"batch", *batch, 1, 1024}, {"context", *length, 1, maxLength}, {"prefill", *prefill, 0, maxLength}, {"steps", *steps, 1, 1 << 20}} {
		if x.v < x.least || x.v > x.most {
			return fmt.Errorf("-%s must be %d to %d, got %d", x.name, x.least, x.most, x.v)
		}
	}
	compute, ok := dtypes[*kind]
	if !ok {
		return fmt.Errorf("-dtype must be bf16, f16, f32, fp8 or fp8-weights, got %q", *kind)
	}
	b, err := backend.Choose(backend.Options{Name: *name, Compute: compute, Random: true, Warn: errOut})
	if err != nil {
		return fmt.Errorf("-backend: %w", err)
	}
	if b.Name == backend.Native && !strings.HasPrefix(*kind, "fp8") {
		*kind = "f32" // whatever a device would be asked for
	}
	r := result{Shape: *shape, Backend: b.Name, Batch: *batch, Context: *length, Prefill: *prefill, Dtype: *kind}
	if err := r.measure(build, b, compute, *steps, *kernels); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	text := fmt.Sprintf("%s %s on %s (%s), %v\n", r.Shape, r.Dtype, r.Backend, b.Why, r)
	if r.Profile != nil {
		text += fmt.Sprint(r.Profile)
	}
	_, err = fmt.Fprint(out, text)
	return err
}
