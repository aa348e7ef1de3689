//go:build gpu

package cuda

// Models of every type on the device and natively: prompts in pieces, single tokens and requests that come and go in one step;
// weights and pages of every type; sessions; adapters.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// traffic is a step of requests: how many tokens each brings, and which of them are new ones.
type traffic struct {
	bucket, requests int
	take             []int
	fresh            []int
}

var script = []traffic{
	{1100, 4, []int{37, 5, 1, 0}, []int{0, 1, 2, 3}}, // more than decode takes
	{96, 4, []int{50, 1, 3, 20}, nil},
	{4, 4, []int{1, 1, 1, 1}, nil},
	{16, 4, []int{1, 9, 1, 0}, []int{1}},
	{1, 1, []int{1}, nil},
	{4, 4, []int{1, 0, 1, 1}, nil},
	{96, 4, []int{1, 70, 1, 1}, nil},
}

// feedsOf are what the steps are fed, and the requests whose logits count in each. Pages of requests lie scattered.
func feedsOf(t testing.TB, m packer, v variety) (all []graph.Feeds, counts [][]int) {
	const size = 16
	r := optest.NewRand(v.name)
	pages, length := make([][]int32, 4), make([]int, 4)
	free := make([]int32, trafficPages)
	for i := range free {
		free[i] = int32(i * 29 % trafficPages)
	}
	for _, s := range script {
		f := map[string][]int32{}
		ints := func(name string, n int) []int32 { f[name] = make([]int32, n); return f[name] }
		tokens, positions, slots := ints(models.PackedTokens, s.bucket), ints(models.PackedPositions, s.bucket), ints(models.PackedSlots, s.bucket)
		qo, indptr, indices := ints(models.PackedQOIndptr, s.requests+1), ints(models.PackedPageIndptr, s.requests+1), ints(models.PackedPageIndices, trafficPages)
		last, rows := ints(models.PackedLastPageLen, s.requests), ints(models.PackedLastRows, s.requests)
		stateSlots, starts := ints(models.PackedStateSlots, s.requests), ints(models.PackedStateStarts, s.requests)
		row, page, count := 0, 0, []int(nil)
		for i, n := range s.take {
			if slices.Contains(s.fresh, i) {
				free, pages[i], length[i] = append(free, pages[i]...), nil, 0
			}
			if stateSlots[i] = -1; n > 0 {
				stateSlots[i], count = int32(3-i), append(count, i)
			}
			if length[i] == 0 {
				starts[i] = 1
			}
			for range n {
				at := length[i]
				if at%size == 0 {
					pages[i], free = append(pages[i], free[0]), free[1:]
				}
				tokens[row], positions[row], slots[row] = int32(r.Intn(v.Vocab)), int32(at), pages[i][at/size]*size+int32(at%size)
				length[i]++
				row++
			}
			page += copy(indices[page:], pages[i])
			qo[i+1], indptr[i+1], rows[i] = int32(row), int32(page), int32(max(row-1, 0))
			if length[i] > 0 {
				last[i] = int32((length[i]-1)%size + 1)
			}
		}
		for ; row < s.bucket; row++ {
			slots[row] = -1
		}
		b := graph.New(graph.Share(m.Params()), graph.States(graph.NewParams()))
		plan, err := b.Plan(m.Packed(b, packedShape(s, dtype.Invalid)))
		require.NoError(t, err)
		feeds := graph.Feeds{}
		for _, in := range plan.Inputs() {
			feeds[in.Name()] = f[in.Name()]
		}
		all, counts = append(all, feeds), append(counts, count)
	}
	return all, counts
}

const trafficPages = 48

func packedShape(s traffic, cache dtype.DType) models.Packed {
	return models.Packed{Tokens: s.bucket, Requests: s.requests, Pages: trafficPages, PageSize: 16, Indices: trafficPages, Slots: 4, Cache: cache}
}

// exchange is the script for a model.
type exchange struct {
	variety
	feeds  []graph.Feeds
	counts [][]int
}

func exchangeOf(t testing.TB, m packer, v variety) exchange {
	feeds, counts := feedsOf(t, m, v)
	return exchange{v, feeds, counts}
}

// serve takes the steps on states of its own. Choices of experts that are given stand for the routers'.
func (x exchange) serve(t *testing.T, m packer, cache dtype.DType, pass func(*graph.Builder) *graph.Builder, given []routing, compile func(*graph.Plan) (graph.Executor, error)) (all []routing) {
	states, plans := graph.NewParams(), map[int]func(graph.Feeds, [][]int32) routing{}
	for i, s := range script {
		if plans[s.bucket] == nil {
			b := graph.New(graph.Share(m.Params()), graph.States(states))
			logits := m.Packed(b, packedShape(s, cache))
			if pass != nil {
				b.Output("logits", logits)
				b = pass(b)
				logits = b.Out("logits")
			}
			plans[s.bucket] = routed(t, b, logits, given != nil, compile)
		}
		var choices [][]int32
		if given != nil {
			choices = given[i].choices
		}
		all = append(all, plans[s.bucket](x.feeds[i], choices))
	}
	return all
}

// off is the largest rms error of a step's logits on the device, in unit roundoffs of the compute dtype, beside native code that
// takes the same choices of experts; and how many steps of the plans ran natively.
func (x exchange) off(t *testing.T, m packer, cache dtype.DType, pass func(*graph.Builder) *graph.Builder, dt dtype.DType) (worst float64, native int) {
	got := x.serve(t, m, cache, pass, nil, func(p *graph.Plan) (graph.Executor, error) {
		e, err := Compile(p, Options{Compute: dt})
		if err == nil {
			native += strings.Count(e.String(), " native ")
		}
		return e, err
	})
	var given []routing
	if x.Experts != nil {
		given = got
	}
	want := x.serve(t, m, cache, pass, given, natively)
	for i, rows := range x.counts {
		var w, g []float64
		for _, r := range rows {
			w, g = append(w, float64s(want[i].logits[r*x.Vocab:][:x.Vocab])...), append(g, float64s(got[i].logits[r*x.Vocab:][:x.Vocab])...)
		}
		if off := rmsRatio(t, w, g); !(off <= worst) {
			worst = off
		}
	}
	return worst / roundoff(deviceType(t, dt)), native
}

// modelBound is in unit roundoffs of the compute dtype: each of the 30 roundings in a model adds its own; float32 adds those of
// sums of up to 512. Measured at most 34 and 6.4.
func modelBound(dt dtype.DType) float64 {
	if dt == dtype.Float32 {
		return 64
	}
	return 10
}

// hold compares what hold is named with native, of every compute dtype; slack is what is allowed beside, in rms.
func (x exchange) hold(t *testing.T, m packer, cache dtype.DType, pass func(*graph.Builder) *graph.Builder, slack float64, what ...any) {
	row := strings.TrimSuffix(fmt.Sprintln(append([]any{"MODELS", x.name}, what...)...), "\n")
	for _, dt := range computes {
		off, native := x.off(t, m, cache, pass, dt)
		row += fmt.Sprintf("\t%s %.2f", dt, off)
		if native > 0 {
			row += fmt.Sprintf(" (%d steps native)", native)
		}
		if !(off < modelBound(dt)+slack/roundoff(deviceType(t, dt))) {
			t.Errorf("%s %v %s: %.2f roundoffs from native", x.name, what, dt, off)
		}
	}
	fmt.Println(row)
}

// everyModel runs f for each variety.
func everyModel(t *testing.T, every int, f func(t *testing.T, i int, v variety)) {
	device(t)
	for i, v := range varieties() {
		each(t, every, strings.ReplaceAll(v.name, " ", "_"), func(t *testing.T) { f(t, i, v) })
	}
}

// Each type with its weights stored in each way beside native code, which reads the same weights and rounds nothing else.
func TestDeviceExecutorModels(t *testing.T) {
	everyModel(t, 5, func(t *testing.T, i int, v variety) {
		for j, storage := range storages {
			if m := v.grown(t, storage); !testing.Short() || j == i%len(storages) {
				exchangeOf(t, m, v).hold(t, m, dtype.Invalid, nil, 0, storage)
			}
		}
	})
}

// Pages in 16 bits whatever the compute dtype is: those of float16 are native's in another. A rounding to the other side of what
// is kept is a unit of it in one number of many.
func TestDeviceExecutorModelsPages(t *testing.T) {
	everyModel(t, 7, func(t *testing.T, _ int, v variety) {
		m := v.grown(t, "float32")
		x := exchangeOf(t, m, v)
		for _, cache := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
			x.hold(t, m, cache, nil, roundoff(deviceType(t, cache))/4, "pages of", cache)
		}
	})
}

// Linears in FP8: weights alone, whose codes are the device's as they are native's, and activations with a step a row, of which a
// code that flips is a sixteenth of a number: measured 0.1 of the logits at most.
func TestDeviceExecutorModelsFP8(t *testing.T) {
	everyModel(t, 7, func(t *testing.T, _ int, v variety) {
		m := v.grown(t, "bfloat16")
		x := exchangeOf(t, m, v)
		for _, o := range []autocast.InferenceOptions{{}, {Activations: autocast.PerRow}} {
			slack := 0.
			if o.Activations == autocast.PerRow {
				slack = 1. / 8
			}
			x.hold(t, m, dtype.Invalid, func(b *graph.Builder) *graph.Builder {
				b, _, err := autocast.FP8Inference(b, o)
				require.NoError(t, err)
				return b
			}, slack, "FP8", o.Activations)
		}
	})
}

// Adapters beside the weights and merged into them, and the model without.
func TestDeviceExecutorModelsAdapted(t *testing.T) {
	everyModel(t, 7, func(t *testing.T, i int, v variety) {
		storage, rank := storages[i%len(storages)], []int{8, 16, 3}[i%3]
		ad := adapt(t, v.grown(t, storage), models.LoRA{Rank: rank, Alpha: 2 * float64(rank)})
		merged, err := ad.Merge()
		require.NoError(t, err)
		x := exchangeOf(t, ad, v)
		x.hold(t, ad, dtype.Invalid, nil, 0, storage, "with adapters of rank", rank)
		x.hold(t, merged, dtype.Invalid, nil, 0, storage, "with merged adapters")
		x.hold(t, ad.Transformer, dtype.Invalid, nil, 0, storage, "below adapters")
	})
}

// A head of one's own on the features of whole sequences, under adapters and without.
func TestDeviceExecutorModelsFeatures(t *testing.T) {
	everyModel(t, 7, func(t *testing.T, _ int, v variety) {
		m := v.grown(t, "float32")
		head := func(b *graph.Builder) []*graph.Node {
			h := m.Features(b, b.Input("tokens", dtype.Int32, 2, 33), models.Dropout{})
			return []*graph.Node{ops.Linear(h, b.Param("score.weight", 3, v.Hidden), b.Param("score.bias", 3))}
		}
		head(graph.New(graph.Share(m.Params())))
		fillNormal(m.Params().Get("score.weight"), 0.2)
		fillNormal(m.Params().Get("score.bias"), 0.2)
		ad := adapt(t, m, models.LoRA{Rank: 8, Alpha: 8, Targets: []string{"*_proj"}})
		ids := make([]int32, 66)
		for i := range ids {
			ids[i] = int32(i * i % v.Vocab)
		}
		feeds := graph.Feeds{"tokens": ids}
		for name, build := range map[string]func(b *graph.Builder) []*graph.Node{"plain": head, "adapted": func(b *graph.Builder) []*graph.Node { return ad.Apply(b, head) }} {
			run := func(given bool, compile func(*graph.Plan) (graph.Executor, error)) func(graph.Feeds, [][]int32) routing {
				b := graph.New(graph.Share(m.Params()))
				return routed(t, b, build(b)[0], given, compile)
			}
			row := "FEATURES\t" + v.name + "\t" + name
			for _, dt := range computes {
				got := run(false, onCUDA(Options{Compute: dt}))(feeds, nil)
				want := run(v.Experts != nil, natively)(feeds, got.choices)
				off := rmsRatio(t, float64s(want.logits), float64s(got.logits)) / roundoff(deviceType(t, dt))
				row += fmt.Sprintf("\t%s %.2f", dt, off)
				if !(off < modelBound(dt)) {
					t.Errorf("%s %s %s: %.2f roundoffs from native", v.name, name, dt, off)
				}
			}
			fmt.Println(row)
		}
	})
}

// Gradients, half of whose steps run natively between those of the device: each is near native's.
func TestDeviceExecutorModelsGradients(t *testing.T) {
	everyModel(t, 7, func(t *testing.T, _ int, v variety) {
		m := v.grown(t, "float32")
		b := graph.New(graph.Share(m.Params()))
		loss, _ := m.Loss(b, 2, 33, 0, 1)
		grads, err := b.Grad(loss, b.Params()...)
		require.NoError(t, err)
		plan, err := b.Plan(append(grads, loss)...)
		require.NoError(t, err)
		ids := make([]int32, 66)
		for i := range ids {
			ids[i] = int32(i * i % v.Vocab)
		}
		run := func(compile func(*graph.Plan) (graph.Executor, error)) (all [][]float64) {
			e, err := compile(plan)
			require.NoError(t, err)
			require.NoError(t, e.Do(context.Background(), graph.Feeds{"tokens": ids, "labels": ids}))
			for _, o := range plan.Outputs {
				v, err := e.Value(o)
				require.NoError(t, err)
				all = append(all, float64s(graph.Data[float32](v)))
			}
			if c, ok := e.(*Executor); ok {
				require.NoError(t, c.Close())
			}
			return all
		}
		want, row := run(natively), "GRADIENTS\t"+v.name
		for _, dt := range computes {
			if v.Experts != nil && dt != dtype.Float32 {
				continue // another choice of experts is another gradient
			}
			worst, where := 0., ""
			for i, got := range run(onCUDA(Options{Compute: dt})) {
				if off := rmsRatio(t, want[i], got) / roundoff(deviceType(t, dt)); !(off <= worst) {
					worst, where = off, plan.Outputs[i].Name()
				}
			}
			row += fmt.Sprintf("\t%s %.2f of %s", dt, worst, where)
			if !(worst < 4*modelBound(dt)) {
				t.Errorf("%s %s: %s is %.2f roundoffs from native's", v.name, dt, where, worst)
			}
		}
		fmt.Println(row)
	})
}

// Sessions with pages of several sizes: requests that come and go, one that follows another, one that goes on natively. Each
// token is the likeliest of native's logits for what it was given, within what the compute dtype rounds.
func TestDeviceExecutorModelsServe(t *testing.T) {
	everyModel(t, 7, func(t *testing.T, i int, v variety) {
		m := v.grown(t, "bfloat16")
		o := generate.Options{Requests: 3, Chunk: 24, Context: 160, PageSize: []int{16, 1, 64, 4}[i%4]}
		if v.Type == "phi3" {
			o.Context = v.RopeScale.OriginalPositions + 6
		}
		row := "SERVE\t" + v.name
		for _, dt := range computes {
			if v.Experts != nil && dt != dtype.Float32 {
				continue // another choice of experts is another text
			}
			if o.Compute = dtype.Invalid; dt == dtype.BFloat16 {
				o.Compute = dt // a device computes so anyway
			}
			s, r := session(t, m, o, Options{Compute: dt}), optest.NewRand(v.name)
			tokens := map[*generate.Request][]int32{}
			add := func(after *generate.Request, n int) *generate.Request {
				ids := slices.Clone(tokens[after])
				for range n {
					ids = append(ids, int32(r.Intn(v.Vocab)))
				}
				q, err := s.Follow(after, ids, generate.Sampling{})
				require.NoError(t, err)
				tokens[q] = ids
				return q
			}
			worst := 0.
			check := func(ids []int32, from int) {
				logits := logitsOf(t, m, ids, natively)
				for at := from; at < len(ids); at++ {
					x, sum := logits[(at-1)*v.Vocab:][:v.Vocab], 0.
					for _, y := range x {
						sum += float64(y) * float64(y)
					}
					worst = max(worst, float64(slices.Max(x)-x[ids[at]])/math.Sqrt(sum/float64(v.Vocab)))
				}
			}
			next := func(n int, qs ...*generate.Request) {
				for range n {
					for _, q := range qs {
						id, err := q.Next(context.Background())
						require.NoError(t, err)
						tokens[q] = append(tokens[q], id)
					}
				}
			}
			a := add(nil, 40)
			next(5, a)
			b, c := add(nil, 9), add(nil, 61)
			next(6, c, a, b)
			s.Remove(b)
			check(tokens[b], 9)
			b = add(nil, 1)
			next(4, b, c)
			check(tokens[a], 40)
			follows := add(a, 7)
			next(3, b, follows)
			check(tokens[b], 1)
			check(tokens[c], 61)
			check(tokens[follows], 58)
			if dt == dtype.Float32 {
				s.Remove(b)
				prompt := make([]int32, o.Context-10) // of phi3 the text grows past the length that the model was trained for
				for i := range prompt {
					prompt[i] = int32(i * i % v.Vocab)
				}
				snapshot, err := c.Snapshot()
				require.NoError(t, err)
				plain, err := generate.New(m, o)
				require.NoError(t, err)
				native, err := plain.Restore(snapshot)
				require.NoError(t, err)
				for range 4 {
					want, err := c.Next(context.Background())
					require.NoError(t, err)
					got, err := native.Next(context.Background())
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
				plain.Remove(native)
				require.Equal(t, text(t, plain, prompt, generate.Sampling{}, 10), text(t, s, prompt, generate.Sampling{}, 10))
			}
			row += fmt.Sprintf("\t%s %.2f", dt, worst/roundoff(deviceType(t, dt)))
			if !(worst < 4*modelBound(dt)*roundoff(deviceType(t, dt))) { // an element may be off by some rms
				t.Errorf("%s %s: a token is %.3g below the likeliest", v.name, dt, worst)
			}
			require.NoError(t, s.Close())
		}
		fmt.Println(row)
	})
}

// Two models in sessions of their own run side by side on one device, and a step that is cancelled in between is taken again.
func TestDeviceExecutorModelsSideBySide(t *testing.T) {
	device(t)
	var wait sync.WaitGroup
	all := varieties()
	for _, v := range []variety{all[0], all[10], all[len(all)-5]} {
		m := v.grown(t, "bfloat16")
		prompt := make([]int32, 70)
		for i := range prompt {
			prompt[i] = int32(i * i % v.Vocab)
		}
		alone := text(t, session(t, m, generate.Options{Chunk: 8}, Options{}), prompt, generate.Sampling{Temperature: 1, Seed: 3}, 30)
		for range 2 {
			s := session(t, m, generate.Options{Chunk: 8}, Options{})
			wait.Go(func() {
				r, err := s.Add(prompt, generate.Sampling{Temperature: 1, Seed: 3})
				if err != nil {
					t.Error(err)
					return
				}
				var got []int32
				cancels := 0
				for len(got) < len(alone) {
					ctx, cancel := context.WithCancel(context.Background())
					if len(got)%3 == 0 && cancels < 20 {
						go cancel()
					}
					id, err := r.Next(ctx)
					cancelled := ctx.Err() != nil
					cancel()
					switch {
					case err == nil:
						got = append(got, id)
					case !cancelled:
						t.Error(err)
						return
					default:
						cancels++
					}
				}
				if !slices.Equal(alone, got) {
					t.Errorf("%s: another text beside others", v.name)
				}
				fmt.Printf("SIDE\t%s\t%d tokens equal %v, %d times cancelled\n", v.name, len(got), slices.Equal(alone, got), cancels)
			})
		}
	}
	wait.Wait()
}

// A session whose pages do not fit says what holds the memory, gives it back, and leaves the model to others.
func TestDeviceExecutorPoolsThatDoNotFit(t *testing.T) {
	device(t)
	u, err := unitOf(0)
	require.NoError(t, err)
	before := u.dev.Stats()
	m := tiny(t, func(c *models.Config) { c.Context = 1 << 16 })
	_, err = generate.New(m, generate.Options{Requests: 1 << 13, Compile: onCUDA(Options{})})
	require.ErrorContains(t, err, "bytes are free; held: ")
	require.ErrorContains(t, err, "kv.")
	fmt.Println("POOL\t", err)
	after := u.dev.Stats()
	require.Equal(t, before.Bytes, after.Bytes, after.String())
	require.Equal(t, before.Pinned, after.Pinned)
	require.Len(t, text(t, session(t, m, generate.Options{Context: 64}, Options{}), []int32{1, 2, 3}, generate.Sampling{}, 4), 4)
}

// Texts end on the device where they end natively: before a stop string, before a token, at their length.
func TestDeviceExecutorTextStops(t *testing.T) {
	device(t)
	m, prompt := tiny(t, nil), []int32{9, 8, 7, 6, 5, 4, 3}
	plain, err := generate.New(m, generate.Options{})
	require.NoError(t, err)
	read := func(s *generate.Session, o generate.TextOptions) (said string, last generate.Token) {
		o.Sampling = generate.Sampling{Temperature: 1, Seed: 8, RepetitionPenalty: 1.1}
		for x, err := range s.Text(context.Background(), tokenizer.Byte(), prompt, o) {
			require.NoError(t, err)
			said, last = said+x.Text, x
		}
		return said, last
	}
	all, _ := read(plain, generate.TextOptions{Max: 60})
	for want, o := range map[string]generate.TextOptions{
		"stop":   {Max: 60, Stop: []string{"never said", string([]rune(all)[20:22])}},
		"length": {Max: 25},
	} {
		said, last := read(plain, o)
		got, end := read(session(t, m, generate.Options{}, Options{Compute: dtype.Float32}), o)
		require.Equal(t, want, end.End)
		require.Equal(t, said, got)
		require.Equal(t, last, end)
	}
}
