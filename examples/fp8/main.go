// Command fp8 trains the same small language model twice, in float32 and with
// FP8 linears, and shows what the autocast pass decided, both losses side by
// side, and the layer with the largest error.
//
//	go run ./examples/fp8
//	go run ./examples/fp8 -fp8 delayed -steps 1000
//	eval "$(make env)" # the flags of cgo for -tags gpu
//	go run -tags gpu ./examples/fp8 -backend cuda
//
// Training is native; where -backend chooses a device, the held-out loss of the
// model with FP8 linears is computed there too.
//
// With -steps 1000 -warmup 100 -eval-every 250 -eval-rows 0 the held-out loss
// ends at 1.5717 in float32, 1.5748 with dynamic and 1.5683 with delayed
// scaling.
//
// Without -text it reads Newton's Opticks, which comes with Go. -h lists the
// flags.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/examples/opticks"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/backend"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fp8:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	text    string
	recipe  string
	history int
	margin  int
	format  string
	backend string
	dtype   string
	model   models.Config
	train   train.Options
}

func parse(args []string, errOut io.Writer) (settings, error) {
	s := settings{
		model: models.Config{Type: "llama", Vocab: 256, NormEps: 1e-5, RopeTheta: 1e4},
		train: train.Defaults(),
	}
	f := flag.NewFlagSet("fp8", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprint(errOut, "fp8 trains a small model twice, in float32 and with FP8 linears, and compares them.\n\n")
		f.PrintDefaults()
	}
	f.StringVar(&s.text, "text", "", "`PATH` of a text; default: Newton's Opticks, from the Go install")
	f.StringVar(&s.recipe, "fp8", "dynamic", "recipe: dynamic or delayed")
	f.IntVar(&s.history, "history", 16, "steps that -fp8 delayed remembers")
	f.IntVar(&s.margin, "margin", 0, "headroom above the largest value, in powers of 2")
	f.StringVar(&s.format, "format", "hybrid", "formats: hybrid (E4M3, gradients E5M2), e4m3 or e5m2")
	f.StringVar(&s.backend, "backend", "", "what evaluates beside the training: native or cuda; default: SEAFAN_BACKEND, else cuda where there is a device")
	f.StringVar(&s.dtype, "dtype", "bf16", "type of activations on cuda: bf16, f16 or f32")
	f.IntVar(&s.model.Layers, "layers", 4, "layers of the model")
	f.IntVar(&s.model.Hidden, "dim", 256, "width of the model")
	f.IntVar(&s.model.Heads, "heads", 4, "attention heads")
	f.IntVar(&s.model.FFN, "ffn", 1024, "width of the gated unit")
	f.IntVar(&s.train.Steps, "steps", 200, "steps of each run")
	f.IntVar(&s.train.Batch, "batch", s.train.Batch, "rows of a batch")
	f.IntVar(&s.train.Context, "context", s.train.Context, "tokens of a row")
	f.Float64Var(&s.train.LR, "lr", s.train.LR, "highest learning rate")
	f.IntVar(&s.train.Warmup, "warmup", 50, "steps of linear warm-up")
	f.IntVar(&s.train.EvalEvery, "eval-every", 50, "steps between two lines of the table")
	f.IntVar(&s.train.EvalRows, "eval-rows", 64, "held-out rows of an evaluation, 0: all")
	f.Uint64Var(&s.train.Seed, "seed", 0, "seed of the weights and of the order of the data")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q: every value belongs to a flag (-h lists them)", f.Arg(0))
	}
	if err := s.check(); err != nil {
		return s, err
	}
	s.model.KVHeads, s.model.Context = s.model.Heads, s.train.Context
	s.model.HeadDim = s.model.Hidden / s.model.Heads
	return s, nil
}

// check names the first flag that no model or run can have.
func (s settings) check() error {
	const most = 1 << 20 // the product of three fits an int
	for _, x := range []struct {
		flag    string
		v, most int
	}{{"layers", s.model.Layers, 1 << 16}, {"dim", s.model.Hidden, most}, {"heads", s.model.Heads, most}, {"ffn", s.model.FFN, most}, {"history", s.history, 1 << 16}} {
		if x.v < 1 || x.v > x.most {
			return fmt.Errorf("-%s must be 1 to %d, got %d", x.flag, x.most, x.v)
		}
	}
	if s.model.Hidden%(2*s.model.Heads) != 0 {
		return fmt.Errorf("-dim must be a multiple of %d, an even number for each of the %d -heads, got %d", 2*s.model.Heads, s.model.Heads, s.model.Hidden)
	}
	if err := (ops.FP8Recipe{History: s.history, Margin: s.margin}).Check(); err != nil {
		return fmt.Errorf("-history, -margin: %w", err)
	}
	var oe *train.OptionError
	err := s.train.Check()
	if errors.As(err, &oe) {
		return fmt.Errorf("-%s must be %s, got %s", strings.ReplaceAll(oe.Field, "_", "-"), oe.Need, oe.Got)
	}
	return err
}

// options turns the flags into those of the pass.
func (s settings) options() (autocast.Options, error) {
	var o autocast.Options
	switch s.recipe {
	case "dynamic":
		o.Recipe = autocast.Dynamic{Margin: s.margin}
	case "delayed":
		o.Recipe = autocast.Delayed{History: s.history, Margin: s.margin}
	default:
		return o, fmt.Errorf("-fp8 must be dynamic or delayed, got %q", s.recipe)
	}
	switch s.format {
	case "hybrid":
		o.Format = autocast.Hybrid
	case "e4m3":
		o.Format = autocast.E4M3
	case "e5m2":
		o.Format = autocast.E5M2
	default:
		return o, fmt.Errorf("-format must be hybrid, e4m3 or e5m2, got %q", s.format)
	}
	return o, nil
}

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	s, err := parse(args, errOut)
	if err != nil {
		return err
	}
	o, err := s.options()
	if err != nil {
		return err
	}
	compute, ok := map[string]dtype.DType{"bf16": dtype.BFloat16, "f16": dtype.Float16, "f32": dtype.Float32}[s.dtype]
	if !ok {
		return fmt.Errorf("-dtype must be bf16, f16 or f32, got %q", s.dtype)
	}
	chosen, err := backend.Choose(backend.Options{Name: s.backend, Compute: compute, Warn: errOut})
	if err != nil {
		return fmt.Errorf("-backend: %w", err)
	}
	if s.text == "" {
		if s.text, err = opticks.Path(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "float32, %d steps\n", s.train.Steps)
	_, plain, err := s.fit(ctx, nil, func(m train.Metric) {
		if m.ValLoss != nil {
			fmt.Fprintf(out, "%6d  %.4f\n", m.Step, *m.ValLoss)
		}
	})
	if err != nil {
		return err
	}
	model, cast, err := s.fit(ctx, &o, nil)
	if err != nil {
		return err
	}
	_, _, report, err := s.cast(model.Transformer, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\nheld-out loss\n%6s  %8s  %8s  %s\n", report.Explain(), "step", "float32", "fp8", "difference")
	for i, m := range plain {
		fmt.Fprintf(out, "%6d  %8.4f  %8.4f  %+.2f %%\n", m.Step, *m.ValLoss, *cast[i].ValLoss, 100*(*cast[i].ValLoss / *m.ValLoss - 1))
	}
	skipped := 0
	for _, st := range model.fp8.Stats() {
		skipped += st.Skipped
	}
	fmt.Fprintf(out, "steps of an operand without a usable maximum: %d\n\n", skipped)
	if err := s.layers(ctx, model.Transformer, o, out); err != nil || chosen.Name == backend.Native {
		return err
	}
	return s.evaluate(ctx, model.Transformer, o, chosen, out)
}

// trained is a model that went through a run.
type trained struct {
	*models.Transformer
	fp8 *autocast.Model // nil in float32
}

// fit trains a new model and returns it with the metrics that have a held-out
// loss.
func (s settings) fit(ctx context.Context, o *autocast.Options, each func(train.Metric)) (trained, []train.Metric, error) {
	fail := func(err error) (trained, []train.Metric, error) { return trained{}, nil, err }
	m, err := models.New(s.model)
	if err != nil {
		return fail(err)
	}
	if err := m.Init(s.train.Seed); err != nil {
		return fail(err)
	}
	data, closeData, err := s.data()
	if err != nil {
		return fail(err)
	}
	defer closeData()
	t := trained{Transformer: m}
	var model train.Model = m
	if o != nil {
		t.fp8 = autocast.Train(m, *o)
		model = t.fp8
	}
	var kept []train.Metric
	tr, err := train.New(model, data, s.train, train.Each(func(m train.Metric) {
		if m.ValLoss != nil {
			v := *m.ValLoss
			m.ValLoss = &v
			kept = append(kept, m)
		}
		if each != nil {
			each(m)
		}
	}))
	if err != nil {
		return fail(err)
	}
	_, err = tr.Run(ctx)
	return t, kept, err
}

func (s settings) data() (*train.Windows, func() error, error) {
	tokens, err := train.Open(train.OpenOptions{}, s.text)
	if err != nil {
		return nil, nil, fmt.Errorf("-text: %w", err)
	}
	w, err := train.NewWindows(tokens, s.model.Vocab, train.WindowOptions{Context: s.train.Context, Seed: s.train.Seed, Order: train.Random, Validation: 0.1})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("-text: %w", err), tokens.Close())
	}
	return w, tokens.Close, nil
}

// loss builds the loss of one batch, without dropout.
func (s settings) loss(m *models.Transformer) (*graph.Builder, error) {
	b := graph.New(graph.Share(m.Params()))
	loss, _ := m.Loss(b, s.train.Batch, s.train.Context, 0, 0)
	b.Output("loss", loss)
	return b, b.Err()
}

// cast builds the loss and runs the pass on it.
func (s settings) cast(m *models.Transformer, o autocast.Options) (plain, cast *graph.Builder, report *autocast.Report, err error) {
	if plain, err = s.loss(m); err != nil {
		return nil, nil, nil, err
	}
	cast, report, err = autocast.FP8(plain, o)
	return plain, cast, report, err
}

// held returns a batch of held-out text, the batch-th.
func (s settings) held(data *train.Windows, batch int) (graph.Feeds, error) {
	c := s.train.Context
	tokens, labels := make([]int32, s.train.Batch*c), make([]int32, s.train.Batch*c)
	for r := range s.train.Batch {
		if err := data.HeldRow((batch*s.train.Batch+r)%data.Held(), tokens[r*c:(r+1)*c], labels[r*c:(r+1)*c]); err != nil {
			return nil, err
		}
	}
	return graph.Feeds{"tokens": tokens, "labels": labels}, nil
}

// evaluate computes the held-out loss with FP8 linears on the chosen backend and
// natively.
func (s settings) evaluate(ctx context.Context, m *models.Transformer, o autocast.Options, chosen backend.Backend, out io.Writer) (err error) {
	data, closeData, err := s.data()
	if err != nil {
		return err
	}
	defer closeData()
	_, cast, _, err := s.cast(m, o)
	if err != nil {
		return err
	}
	plan, err := cast.Plan(cast.Out("loss"))
	if err != nil {
		return err
	}
	native, err := plan.Native()
	if err != nil {
		return err
	}
	run, err := chosen.Compile(plan)
	if err != nil {
		return fmt.Errorf("-backend: %w", err)
	}
	if c, ok := run.(io.Closer); ok {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	rows := s.train.EvalRows
	if rows == 0 {
		rows = data.Held()
	}
	batches := max(1, rows/s.train.Batch)
	var sums [2]float64
	for i := range batches {
		feeds, err := s.held(data, i)
		if err != nil {
			return err
		}
		for j, e := range []graph.Executor{native, run} {
			if err := e.Do(ctx, feeds); err != nil {
				return err
			}
			v, err := e.Value(cast.Out("loss"))
			if err != nil {
				return err
			}
			sums[j] += float64(graph.Data[float32](v)[0])
		}
	}
	_, err = fmt.Fprintf(out, "\nheld-out loss with FP8 linears, %d rows: native %.4f, %s %.4f (%s, %s)\n", batches*s.train.Batch, sums[0]/float64(batches), chosen.Name, sums[1]/float64(batches), chosen.Why, s.dtype)
	return err
}

// layers compares the layers of the trained model with and without FP8 on a
// batch of held-out text.
func (s settings) layers(ctx context.Context, m *models.Transformer, o autocast.Options, out io.Writer) error {
	data, closeData, err := s.data()
	if err != nil {
		return err
	}
	defer closeData()
	feeds, err := s.held(data, 0)
	if err != nil {
		return err
	}
	plain, cast, _, err := s.cast(m, o)
	if err != nil {
		return err
	}
	cmp, err := autocast.Compare(ctx, plain, cast, feeds)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "layers on held-out text, the trained weights in float32 and in FP8\n%s", cmp)
	last := "no linear was large enough for FP8"
	if w := cmp.Worst(); w != nil {
		last = fmt.Sprintf("worst layer: %s, error %.4f of its output", w.Weight, w.Own)
	}
	_, err = fmt.Fprintln(out, "\n"+last)
	return err
}
