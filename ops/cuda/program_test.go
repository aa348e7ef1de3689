//go:build gpu

package cuda

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
)

var tiny = models.Config{Type: "llama", Vocab: 512, Hidden: 256, FFN: 512, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 64, Context: 512, NormEps: 1e-5, RopeTheta: 1e4}

// cosine compares logits as directions; every row must also agree in its largest element where the margin is wide.
func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab += float64(a[i]) * float64(b[i])
		aa += float64(a[i]) * float64(a[i])
		bb += float64(b[i]) * float64(b[i])
	}
	return ab / math.Sqrt(aa*bb)
}

func TestDeviceProgramMatchesNative(t *testing.T) {
	d := device(t)
	for _, dt := range []DType{BF16, F16} {
		m, err := models.New(tiny)
		require.NoError(t, err)
		require.NoError(t, m.Init(7))
		b := graph.New(graph.Share(m.Params()))
		logits := m.Logits(b, b.Input("tokens", dtype.Int32, 2, 70), models.Dropout{})
		plan, err := b.Plan(logits)
		require.NoError(t, err)
		native, err := plan.Native()
		require.NoError(t, err)
		before := d.Stats()
		p, err := Compile(d, plan, Options{Type: dt})
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(1, 1))
		for range 2 {
			tokens := make([]int32, 140)
			for i := range tokens {
				tokens[i] = int32(r.IntN(tiny.Vocab))
			}
			feeds := graph.Feeds{"tokens": tokens}
			require.NoError(t, native.Do(context.Background(), feeds))
			require.NoError(t, p.Do(context.Background(), feeds))
			want, err := native.Value(logits)
			require.NoError(t, err)
			got, err := p.Value(logits)
			require.NoError(t, err)
			c := cosine(graph.Data[float32](want), graph.Data[float32](got))
			t.Logf("%v: cosine %.6f, %d launches", dt, c, p.Launches())
			require.Greater(t, c, 0.999)
			again := append([]float32(nil), graph.Data[float32](got)...)
			require.NoError(t, p.Do(context.Background(), feeds))
			got, _ = p.Value(logits)
			require.Equal(t, again, graph.Data[float32](got), "two runs differ")
		}
		// A changed weight is uploaded again.
		head := m.Params().Get("lm_head.weight")
		for i := range graph.Data[float32](head.Tensor()) {
			graph.Data[float32](head.Tensor())[i] = 0
		}
		head.Touch()
		require.NoError(t, p.Do(context.Background(), graph.Feeds{"tokens": make([]int32, 140)}))
		got, _ := p.Value(logits)
		for _, v := range graph.Data[float32](got) {
			require.Zero(t, v)
		}
		err = p.Do(context.Background(), graph.Feeds{"tokens": append(make([]int32, 139), 512)})
		require.EqualError(t, err, "cuda: Do: tokens: token 512 at 139: 0 to 511 are possible")
		require.NoError(t, p.Close())
		after := d.Stats()
		require.Zero(t, after.Pinned-before.Pinned)
		require.Zero(t, after.ByLabel["arena"])
	}
}

// packedStep runs one step of a packed graph on both executors.
type packedStep struct {
	native *graph.Native
	prog   *Program
	logits *graph.Node
}

func TestDeviceProgramGeneratesOnPages(t *testing.T) {
	d := device(t)
	m, err := models.New(tiny)
	require.NoError(t, err)
	require.NoError(t, m.Init(8))
	const pages, pageSize, requests = 40, 16, 4
	ours, theirs := graph.NewParams(), graph.NewParams()
	build := func(tokens int) packedStep {
		shape := models.Packed{Tokens: tokens, Requests: requests, Pages: pages, PageSize: pageSize, Indices: pages}
		make := func(states *graph.Params) (*graph.Plan, *graph.Node) {
			b := graph.New(graph.Share(m.Params()), graph.States(states))
			logits := m.Packed(b, shape)
			plan, err := b.Plan(logits)
			require.NoError(t, err)
			return plan, logits
		}
		var s packedStep
		plan, _ := make(theirs)
		s.native, err = plan.Native()
		require.NoError(t, err)
		plan, logits := make(ours)
		s.prog, err = Compile(d, plan, Options{Type: F16})
		require.NoError(t, err)
		s.logits = logits
		t.Cleanup(func() { require.NoError(t, s.prog.Close()) })
		return s
	}
	prefill, decode := build(128), build(requests)
	r := rand.New(rand.NewPCG(3, 3))
	free := r.Perm(pages)
	var table [requests - 1][]int
	lengths := [requests - 1]int{}
	step := func(s packedStep, tokens int, take [requests - 1]int) {
		feeds := map[string][]int32{}
		for name, n := range map[string]int{models.PackedTokens: tokens, models.PackedPositions: tokens, models.PackedSlots: tokens, models.PackedQOIndptr: requests + 1, models.PackedPageIndptr: requests + 1,
			models.PackedPageIndices: pages, models.PackedLastPageLen: requests, models.PackedLastRows: requests} {
			feeds[name] = make([]int32, n)
		}
		for i := range feeds[models.PackedSlots] {
			feeds[models.PackedSlots][i] = -1
		}
		row, id := 0, 0
		for i, n := range take {
			for range n {
				if lengths[i]%pageSize == 0 {
					table[i], free = append(table[i], free[0]), free[1:]
				}
				feeds[models.PackedTokens][row] = int32(r.IntN(tiny.Vocab))
				feeds[models.PackedPositions][row] = int32(lengths[i])
				feeds[models.PackedSlots][row] = int32(table[i][lengths[i]/pageSize]*pageSize + lengths[i]%pageSize)
				lengths[i]++
				row++
			}
			for _, page := range table[i] {
				feeds[models.PackedPageIndices][id] = int32(page)
				id++
			}
			feeds[models.PackedQOIndptr][i+1], feeds[models.PackedPageIndptr][i+1] = int32(row), int32(id)
			feeds[models.PackedLastPageLen][i] = int32((lengths[i]-1)%pageSize + 1)
			feeds[models.PackedLastRows][i] = int32(max(0, row-1))
		}
		feeds[models.PackedQOIndptr][requests], feeds[models.PackedPageIndptr][requests] = int32(row), int32(id)
		fed := graph.Feeds{}
		for name, x := range feeds {
			fed[name] = x
		}
		require.NoError(t, s.native.Do(context.Background(), fed))
		require.NoError(t, s.prog.Do(context.Background(), fed))
		want, err := s.native.Value(s.native.Plan().Outputs[0])
		require.NoError(t, err)
		got, err := s.prog.Value(s.logits)
		require.NoError(t, err)
		n := (requests - 1) * tiny.Vocab
		c := cosine(graph.Data[float32](want)[:n], graph.Data[float32](got)[:n])
		require.Greater(t, c, 0.9999, fmt.Sprint(take))
	}
	step(prefill, 128, [3]int{40, 17, 60})
	bytes := d.Stats().Bytes
	for range 20 {
		step(decode, requests, [3]int{1, 1, 1})
	}
	step(prefill, 128, [3]int{30, 1, 90})
	require.Equal(t, bytes, d.Stats().Bytes, "device memory grew between steps")
}

// The host's share of a run: feeds, one graph launch, the logits back.
func TestDeviceSpeedProgramHost(t *testing.T) {
	speed(t)
	d := device(t)
	m, err := models.New(tiny)
	require.NoError(t, err)
	require.NoError(t, m.Init(7))
	b := graph.New(graph.Share(m.Params()))
	logits := m.Logits(b, b.Input("tokens", dtype.Int32, 1, 1), models.Dropout{})
	plan, err := b.Plan(logits)
	require.NoError(t, err)
	p, err := Compile(d, plan, Options{})
	require.NoError(t, err)
	defer p.Close()
	feeds := graph.Feeds{"tokens": make([]int32, 1)}
	run := func(n int, f func() error) float64 {
		start := time.Now()
		for range n {
			require.NoError(t, f())
		}
		return float64(time.Since(start).Microseconds()) / float64(n)
	}
	do := func() error { return p.Do(context.Background(), feeds) }
	run(100, do)
	whole := run(2000, do)
	queued := run(2000, func() error { return p.replay.Replay(d.Main()) })
	require.NoError(t, d.Main().Wait())
	row(t, "program, host", fmt.Sprintf("%d launches: %.1f us a run, %.1f us a queued replay", p.Launches(), whole, queued), whole, 0, 0)
	allocs := testing.AllocsPerRun(200, func() { require.NoError(t, do()) })
	t.Logf("%v allocations a run", allocs)
	fmt.Printf("BENCH\tallocations a run\t%v\n", allocs)
}
