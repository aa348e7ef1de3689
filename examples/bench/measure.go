package main

// The step that is measured.

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/backend"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/cuda"
	"github.com/seafan/seafan/ops/native"
)

const pageSize = 16

// profiler is the executor of a device.
type profiler interface {
	Profile(context.Context, graph.Feeds, int) (cuda.Profile, error)
}

// measure builds the step, runs it and fills in the times.
func (r *result) measure(build func() (*models.Transformer, error), b backend.Backend, compute dtype.DType, steps int, kernels bool) error {
	requests, tokens, length := r.Batch, r.Batch, r.Context
	if r.Prefill > 0 {
		requests, tokens, length = 1, r.Prefill, r.Prefill
	}
	m, err := build()
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
	states := graph.NewParams()
	g := graph.New(graph.Share(m.Params()), graph.States(states))
	logits := m.Packed(g, models.Packed{Tokens: tokens, Requests: requests, Pages: requests * each, PageSize: pageSize, Indices: requests * each, Slots: requests})
	drawn := ops.Sampling(logits, g.Input("draws", dtype.Int32, requests, native.DrawWords))
	var narrow []string // weights in 8 bits
	if activations, fp8 := map[string]autocast.Activations{"fp8": autocast.PerRow, "fp8-weights": autocast.Exact}[r.Dtype]; fp8 {
		var report *autocast.Report
		if g, report, err = autocast.FP8Inference(g, autocast.InferenceOptions{Activations: activations}); err != nil {
			return err
		}
		narrow = report.Cast()
		drawn = g.Node(drawn.Name())
	}
	plan, err := g.Plan(drawn)
	if err != nil {
		return err
	}
	e, err := b.Compile(plan)
	if err != nil {
		return err
	}
	all, feeds := stepFeeds(requests, tokens/requests, length, each), graph.Feeds{}
	for _, in := range plan.Inputs() {
		feeds[in.Name()] = all[in.Name()]
	}
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
		size := size
		if slices.Contains(narrow, p.Name) {
			size = 1
		}
		switch e := m.Config.Experts; {
		case p.Name == "model.embed_tokens.weight" && !m.Config.Tied:
		case e != nil && p.Type.Rank() == 3: // of a stack, the experts that tokens can go to
			read += p.Type.Size() * size * min(e.Router.Experts, tokens*e.Router.TopK) / e.Router.Experts
		default:
			read += p.Type.Size() * size
		}
	}
	for _, p := range states.All() {
		n := p.Type.Size() * size
		if strings.HasPrefix(p.Name, models.PagePools) {
			n = n / (each * pageSize) * length
		}
		read += n
	}
	r.StepMS, r.Tokens, r.GBs = t*1e3, float64(tokens)/t, float64(read)/t/1e9
	if x, ok := e.(profiler); ok && kernels {
		p, err := x.Profile(context.Background(), feeds, steps)
		if err != nil {
			return err
		}
		r.Profile = &p
		if r.Prefill == 0 {
			r.Floor = r.GBs * 1e9 / p.Bandwidth
		}
	}
	if c, ok := e.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// stepFeeds are n requests of the given length that bring their last tokens and
// take the likeliest next one.
func stepFeeds(n, brings, length, pages int) graph.Feeds {
	ints := func(n int, at func(i int) int) []int32 {
		v := make([]int32, n)
		for i := range v {
			v[i] = int32(at(i))
		}
		return v
	}
	draws := make([]int32, n*native.DrawWords)
	for i := range n {
		ops.Draw{Penalty: 1}.Put(draws[i*native.DrawWords:])
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
		models.PackedStateSlots:  ints(n, func(i int) int { return i }),
		models.PackedStateStarts: ints(n, func(int) int { return 0 }),
		"draws":                  draws,
	}
}
