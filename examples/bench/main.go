// Command bench measures the steps of a model's shape: decode of a batch at a
// context, or the prefill of one prompt, with random weights.
//
//	go run -tags gpu ./examples/bench -shape llama3-8b -batch 16 -context 1024
//	go run -tags gpu ./examples/bench -shape llama3-8b -prefill 2048
//
// A step is a whole one: feeds sent, model run, logits back on the host. The
// rate is that of the weights and the cache that a step must read.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/backend"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var shapes = map[string]models.Config{
	"llama3-8b": {Type: "llama", Vocab: 128256, Hidden: 4096, FFN: 14336, Layers: 32, Heads: 32, KVHeads: 8, HeadDim: 128, NormEps: 1e-5, RopeTheta: 5e5},
	"llama3-1b": {Type: "llama", Vocab: 128256, Hidden: 2048, FFN: 8192, Layers: 16, Heads: 32, KVHeads: 8, HeadDim: 64, NormEps: 1e-5, RopeTheta: 5e5, Tied: true},
	"tiny":      {Type: "llama", Vocab: 256, Hidden: 128, FFN: 256, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 64, NormEps: 1e-5, RopeTheta: 1e4},
}

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
}

func run(args []string, out, errOut io.Writer) error {
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(errOut)
	names := slices.Sorted(maps.Keys(shapes))
	shape := f.String("shape", "llama3-8b", "what is measured: "+strings.Join(names, ", "))
	batch := f.Int("batch", 1, "requests that bring one token each")
	length := f.Int("context", 1024, "tokens of each request, the new one among them")
	prefill := f.Int("prefill", 0, "measure the prefill of one prompt of this many tokens instead")
	kind := f.String("dtype", "bf16", "compute dtype on CUDA: bf16, f16 or f32")
	name := f.String("backend", "", "what computes: native or cuda; default: cuda where there is a device")
	steps := f.Int("steps", 20, "steps that are measured; the median counts")
	asJSON := f.Bool("json", false, "print a line of JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	c, ok := shapes[*shape]
	if !ok {
		return fmt.Errorf("-shape must be one of %s, got %q", strings.Join(names, ", "), *shape)
	}
	for _, x := range []struct {
		name           string
		v, least, most int
	}{{"batch", *batch, 1, 1024}, {"context", *length, 1, 1 << 20}, {"prefill", *prefill, 0, 1 << 20}, {"steps", *steps, 1, 1 << 20}} {
		if x.v < x.least || x.v > x.most {
			return fmt.Errorf("-%s must be %d to %d, got %d", x.name, x.least, x.most, x.v)
		}
	}
	compute, ok := map[string]dtype.DType{"bf16": dtype.BFloat16, "f16": dtype.Float16, "f32": dtype.Float32}[*kind]
	if !ok {
		return fmt.Errorf("-dtype must be bf16, f16 or f32, got %q", *kind)
	}
	b, err := backend.Choose(backend.Options{Name: *name, Compute: compute, Random: true, Warn: errOut})
	if err != nil {
		return fmt.Errorf("-backend: %w", err)
	}
	r := result{Shape: *shape, Backend: b.Name, Batch: *batch, Context: *length, Prefill: *prefill, Dtype: *kind}
	if err := r.measure(c, b, compute, *steps); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	what := fmt.Sprintf("batch %d context %d", r.Batch, r.Context)
	if r.Prefill > 0 {
		what = fmt.Sprintf("prefill %d", r.Prefill)
	}
	_, err = fmt.Fprintf(out, "%s %s on %s (%s), %s: %.3f ms a step, %.0f tokens/s, %.0f GB/s of weights and cache\n",
		r.Shape, r.Dtype, r.Backend, b.Why, what, r.StepMS, r.Tokens, r.GBs)
	return err
}

const pageSize = 16

// measure builds the step, runs it and fills in the times.
func (r *result) measure(c models.Config, b backend.Backend, compute dtype.DType, steps int) error {
	requests, tokens, length := r.Batch, r.Batch, r.Context
	if r.Prefill > 0 {
		requests, tokens, length = 1, r.Prefill, r.Prefill
	}
	c.Context = length
	m, err := models.New(c)
	if err != nil {
		return err
	}
	if b.Name == backend.CUDA {
		err = m.Declare() // the weights are made on the device
	} else {
		err = m.Init(1)
	}
	if err != nil {
		return err
	}
	for _, p := range m.Params().All() {
		p.Touch()
	}
	each := (length + pageSize - 1) / pageSize
	g := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
	logits := m.Packed(g, models.Packed{Tokens: tokens, Requests: requests, Pages: requests * each, PageSize: pageSize, Indices: requests * each})
	plan, err := g.Plan(logits)
	if err != nil {
		return err
	}
	e, err := b.Compile(plan)
	if err != nil {
		return err
	}
	feeds := stepFeeds(requests, tokens/requests, length, each)
	var times []float64
	for i := range steps + 3 {
		start := time.Now()
		if err := e.Do(context.Background(), feeds); err != nil {
			return err
		}
		if i >= 3 {
			times = append(times, time.Since(start).Seconds())
		}
	}
	slices.Sort(times)
	t := times[len(times)/2]
	size := compute.Size()
	if b.Name == backend.Native {
		size = dtype.Float32.Size()
	}
	read := 0
	for _, p := range m.Params().All() {
		if p.Name != "model.embed_tokens.weight" || c.Tied {
			read += p.Type.Size() * size
		}
	}
	read += requests * length * c.Layers * 2 * c.KVHeads * c.HeadDim * size
	r.StepMS, r.Tokens, r.GBs = t*1e3, float64(tokens)/t, float64(read)/t/1e9
	if c, ok := e.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// stepFeeds are n requests of the given length that bring their last tokens.
func stepFeeds(n, brings, length, pages int) graph.Feeds {
	ints := func(n int, at func(i int) int) []int32 {
		v := make([]int32, n)
		for i := range v {
			v[i] = int32(at(i))
		}
		return v
	}
	position := func(i int) int { return length - brings + i%brings }
	return graph.Feeds{
		models.PackedTokens:      ints(n*brings, func(i int) int { return i % 251 }),
		models.PackedPositions:   ints(n*brings, position),
		models.PackedSlots:       ints(n*brings, func(i int) int { return i/brings*pages*pageSize + position(i) }),
		models.PackedQOIndptr:    ints(n+1, func(i int) int { return i * brings }),
		models.PackedPageIndptr:  ints(n+1, func(i int) int { return i * pages }),
		models.PackedPageIndices: ints(n*pages, func(i int) int { return i }),
		models.PackedLastPageLen: ints(n, func(int) int { return (length+pageSize-1)%pageSize + 1 }),
		models.PackedLastRows:    ints(n, func(i int) int { return (i+1)*brings - 1 }),
	}
}
