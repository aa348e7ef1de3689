// Package train trains a language model: a plain loop over a plan of its
// graph. Draw a micro-batch, run loss and gradient, clip, AdamW, write a line.
//
// Everything that decides the result is in Options, the model and the data; a
// checkpoint adds the number of the step, the moments and the best loss. Data,
// dropout and learning rate are functions of the step alone and every sum runs
// in a fixed order, so a run that is stopped at any moment, killed included,
// and resumed has the bits of one that was not, on any number of workers.
package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

// Model is what a Trainer trains.
type Model interface {
	// Params holds the weights. Every graph of the model shares them.
	Params() *graph.Params
	// Loss builds the graph of a batch: the inputs "tokens" and "labels",
	// int32 [batch, context], and, with dropout, "step", int64 [1]. It returns
	// the mean loss over the labels that count, in nats, and their number,
	// both scalars; the mean is 0 where none counts.
	Loss(b *graph.Builder, batch, context int, dropout float64, seed uint64) (loss, tokens *graph.Node)
	// WriteFiles writes the model into a folder that is there, the weights by
	// their names into model.safetensors.
	WriteFiles(dir string) error
}

// Stateful is a Model that keeps more than weights from step to step, such as
// the scaling of autocast.Model: WriteFiles writes it, and Resume has it read.
type Stateful interface {
	ReadFiles(dir string) error
}

// Checker is a Model that tells whether a checkpoint is of itself in what the
// shapes of weights do not show: Resume asks it before anything is read.
type Checker interface {
	CheckFiles(dir string) error
}

// Trainer is one run. Its methods are for one goroutine at a time.
type Trainer struct {
	model  Model
	data   Data
	packed Packed // the data, when their rows hold several sequences
	opts   Options
	choose bool // Compute was left to the trainer

	dir      string
	log      *slog.Logger
	progress io.Writer
	each     func(Metric)

	state   state
	adam    *adamW
	graphs  map[graphKey]*loss
	eval    *loss
	train   *loss
	folder  *Folder // held
	claimed bool    // by the caller, who lets it go
	wrong   error   // in a setting
	running atomic.Bool
	file    *metricsFile
	bar     *bar
	metric  Metric
	val     float64
	saved   string // the newest checkpoint
	dirty   bool   // it is older than the state
	began   time.Time
	first   int // step that this process began with
	seen    int64
}

// state is what a checkpoint adds to parameters and moments.
type state struct {
	Step    int      `json:"step"`    // steps done, skipped ones included
	Updates int      `json:"updates"` // of the parameters: t of AdamW's bias correction
	Skipped int      `json:"skipped"` // steps without a counted token
	Tokens  int64    `json:"tokens"`  // counted tokens so far
	Loss    float64  `json:"loss"`    // of the last step
	Val     *float64 `json:"val_loss"`
	Best    *float64 `json:"best_val_loss"`
	BestAt  int      `json:"best_step"`
	Stale   int      `json:"stale"`   // evaluations since the best
	Pending *Metric  `json:"pending"` // line of a step whose evaluation was interrupted
}

// Setting changes how a Trainer works, not what it computes.
type Setting func(*Trainer)

// Dir makes the Trainer write checkpoints, metrics and plots to a folder. The
// folder of a run holds
//
//	step-00001000/   a checkpoint: the model as its Save writes it,
//	                 optimizer.safetensors and trainer.json
//	last, best       links to the newest and the best of them
//	metrics.jsonl    a line for each step
//	loss.csv         the same as a table
//	loss.png         the curve
func Dir(dir string) Setting {
	return func(t *Trainer) {
		if dir == "" {
			t.wrong = errors.New("train: Dir: the folder of the run must have a name, got an empty one")
			return
		}
		t.place(dir, nil)
	}
}

// In is Dir for a folder that the caller holds, and closes after the run. One
// Trainer at a time writes to it: from Resume, or the start of Run, to the end of Run.
func In(f *Folder) Setting {
	return func(t *Trainer) {
		if f == nil {
			t.wrong = errors.New("train: In: the folder is missing (nil): see the error of Claim")
			return
		}
		if err := f.held(); err != nil {
			t.wrong = fmt.Errorf("train: %w", err)
			return
		}
		t.place(f.path, f)
	}
}

// place sets the folder of the run, claimed by the caller or not.
func (t *Trainer) place(dir string, f *Folder) {
	if t.dir != "" {
		t.wrong = fmt.Errorf("train: Dir and In: a run must have one folder, got %s and %s", t.dir, dir)
		return
	}
	t.dir, t.folder, t.claimed = dir, f, f != nil
}

// Log sends messages to a logger; without it there are none.
func Log(l *slog.Logger) Setting {
	return func(t *Trainer) {
		if l != nil {
			t.log = l
		}
	}
}

// Progress draws a bar with loss, tokens a second and the time left.
func Progress(w io.Writer) Setting { return func(t *Trainer) { t.progress = w } }

// Each calls f after every step. f must not keep ValLoss.
func Each(f func(Metric)) Setting { return func(t *Trainer) { t.each = f } }

// New prepares a run. The parameters must have values, and nothing else may read or
// write them while Run is at it, but for the function of Each.
func New(model Model, data Data, o Options, settings ...Setting) (*Trainer, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	switch {
	case graph.Missing(model):
		return nil, errors.New("train: New: the model is missing (nil)")
	case model.Params() == nil:
		return nil, errors.New("train: New: the model has no Params (nil)")
	case graph.Missing(data):
		return nil, errors.New("train: New: the data are missing (nil)")
	}
	t := &Trainer{
		model: model, data: data, opts: o, choose: o.Compute == "",
		log:   slog.New(slog.DiscardHandler),
		dirty: true,
	}
	for i, s := range settings {
		if s == nil {
			return nil, fmt.Errorf("train: New: setting %d is missing (nil)", i)
		}
		s(t)
	}
	if t.wrong != nil {
		return nil, t.wrong
	}
	if t.dir != "" && data.Digest() == "" {
		return nil, errors.New("train: New: the data must have a Digest, by which a run in a folder is resumed, got an empty one")
	}
	if o.EarlyStop > 0 && data.Held() == 0 {
		return nil, &OptionError{"early_stop", "0 with data that hold out no rows to evaluate", fmt.Sprint(o.EarlyStop)}
	}
	if p, ok := data.(Packed); ok {
		t.packed = p
		if n := p.Sequences(); n < 1 || n > o.Context {
			return nil, fmt.Errorf("train: packed data must have 1 to %d sequences in a row, got %d", o.Context, n)
		}
	}
	compute := F32
	if native.GemmKernel() == "amx" {
		compute = BF16x6
	}
	if err := t.build(cmp.Or(o.Compute, compute)); err != nil {
		return nil, err
	}
	t.adam = newAdamW(o, t.train.params)
	// The first micro-batch shows a mistake in the data before the run.
	if err := t.draw(0); err != nil {
		return nil, fmt.Errorf("train: the first micro-batch: %w", err)
	}
	return t, nil
}

// build makes the graphs of the run, with products of c. On an error those that
// are there stay.
func (t *Trainer) build(c Compute) (err error) {
	before, graphs := t.opts.Compute, t.graphs
	t.opts.Compute, t.graphs = c, map[graphKey]*loss{}
	defer func() {
		if err != nil {
			t.opts.Compute, t.graphs = before, graphs
		}
	}()
	key := graphKey{rows: t.opts.Batch, train: true}
	if t.packed != nil {
		key.sequences = t.packed.Sequences()
	}
	train, err := t.graph(key)
	if err != nil {
		return err
	}
	var eval *loss
	if t.heldRows() > 0 {
		key.train = false
		if eval, err = t.graph(key); err != nil {
			return err
		}
	}
	t.train, t.eval = train, eval
	return nil
}

func (t *Trainer) usable() error {
	if t == nil || t.model == nil {
		return errors.New("train: the trainer is missing: New makes one")
	}
	return nil
}

// Compute is what the run multiplies: that of its Options, or what was chosen.
func (t *Trainer) Compute() Compute { return t.opts.Compute }

// Step is the number of steps done.
func (t *Trainer) Step() int { return t.state.Step }

// Plan is the plan of a training step: its Arena is the peak of what the step
// needs beside weights and moments.
func (t *Trainer) Plan() *graph.Plan { return t.train.exec.Plan() }

// Summary is the outcome of a run.
type Summary struct {
	Steps      int      `json:"steps"`
	Skipped    int      `json:"skipped"`
	Tokens     int64    `json:"tokens"`
	Loss       float64  `json:"loss"`
	ValLoss    *float64 `json:"val_loss,omitempty"`
	BestLoss   *float64 `json:"best_val_loss,omitempty"`
	BestStep   int      `json:"best_step,omitempty"`
	Early      bool     `json:"early_stop,omitempty"` // ended by EarlyStop
	Seconds    float64  `json:"seconds"`              // of this process
	TokensPerS float64  `json:"tokens_per_s"`
	Checkpoint string   `json:"checkpoint,omitempty"`
	Best       string   `json:"best_checkpoint,omitempty"`
}

// Interrupted is the error of a Run whose context ended; it unwraps to the
// context's error.
type Interrupted struct {
	Step       int    // steps done
	Checkpoint string // where they are saved; empty without Dir
	Cause      error
}

func (e *Interrupted) Error() string {
	if e.Checkpoint == "" {
		return fmt.Sprintf("train: interrupted after step %d: %v", e.Step, e.Cause)
	}
	return fmt.Sprintf("train: interrupted after step %d, saved in %s: resume to go on", e.Step, e.Checkpoint)
}

func (e *Interrupted) Unwrap() error { return e.Cause }

// NotFinite is the error of a Run that met a NaN or infinite number. The
// parameters are those before the step.
type NotFinite struct {
	Step       int    // the step, counted from 1
	What       string // "loss", "gradient norm" or "validation loss"
	Value      float64
	Checkpoint string // the last good one; empty when there is none
}

func (e *NotFinite) Error() string {
	s := fmt.Sprintf("train: step %d: the %s is %g, must be finite", e.Step, e.What, e.Value)
	if e.Checkpoint != "" {
		s += "; the last good checkpoint is " + e.Checkpoint
	}
	return s
}

// Run trains until Steps are done or EarlyStop ends the run. A context that
// ends stops it between two steps of the plan: Run saves what is done and
// returns *Interrupted. A call during another's is an error.
func (t *Trainer) Run(ctx context.Context) (sum Summary, err error) {
	if err := t.usable(); err != nil {
		return Summary{}, err
	}
	if ctx == nil {
		return Summary{}, errors.New("train: Run: the context is missing (nil)")
	}
	if err := t.alone("Run"); err != nil {
		return Summary{}, err
	}
	defer t.running.Store(false)
	if err := t.open(); err != nil {
		return Summary{}, joined(err, t.closeFiles())
	}
	t.began, t.first, t.seen = time.Now(), t.state.Step, t.state.Tokens
	t.bar = newBar(t.progress, t.opts.Steps, t.state.Step)
	defer func() {
		t.bar.close()
		err = joined(err, t.closeFiles())
		if err != nil {
			t.log.Error("training ended", "step", t.state.Step, "error", err)
		}
	}()
	early := t.stale()
	for !early && (t.state.Pending != nil || t.state.Step < t.opts.Steps) {
		if early, err = t.advance(ctx); err != nil {
			if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
				err = t.interrupted(err)
			}
			return t.summary(early), err
		}
	}
	if err := t.save(); err != nil {
		return t.summary(early), err
	}
	t.log.Info("training done", "step", t.state.Step, "loss", t.state.Loss)
	return t.summary(early), nil
}

// alone begins a call that changes the run, until running is false again.
func (t *Trainer) alone(call string) error {
	if !t.running.CompareAndSwap(false, true) {
		return fmt.Errorf("train: %s: the trainer is running already: neither the function of Each nor another goroutine may call %[1]s", call)
	}
	return nil
}

// joined keeps a single error as it is.
func joined(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return errors.Join(a, b)
}

func (t *Trainer) interrupted(cause error) error {
	if err := t.save(); err != nil {
		return errors.Join(cause, err)
	}
	return &Interrupted{t.state.Step, t.saved, cause}
}

func (t *Trainer) summary(early bool) Summary {
	s := Summary{
		Steps: t.state.Step, Skipped: t.state.Skipped, Tokens: t.state.Tokens, Loss: t.state.Loss,
		ValLoss: t.state.Val, BestLoss: t.state.Best, BestStep: t.state.BestAt, Early: early,
		Seconds: time.Since(t.began).Seconds(), Checkpoint: t.saved,
	}
	if s.Checkpoint != "" && t.state.Best != nil {
		s.Best = filepath.Join(t.dir, stepName(t.state.BestAt))
	}
	s.TokensPerS = float64(t.state.Tokens-t.seen) / s.Seconds
	return s
}

// advance does one step, with the evaluation and the checkpoint that follow it.
func (t *Trainer) advance(ctx context.Context) (early bool, err error) {
	if t.state.Pending == nil {
		start := time.Now()
		if err := t.update(ctx); err != nil {
			return false, err
		}
		spent := time.Since(start).Seconds()
		t.metric.StepMS = 1e3 * spent
		t.metric.TokensPerS = float64(t.metric.Tokens) / spent
	}
	better, err := t.measure(ctx)
	if err != nil {
		return false, err
	}
	if err := t.report(); err != nil {
		return false, err
	}
	if better || due(t.state.Step, t.opts.SaveEvery) {
		if err := t.save(); err != nil {
			return false, err
		}
	}
	return t.stale(), nil
}

// stale reports whether EarlyStop ends the run.
func (t *Trainer) stale() bool { return t.opts.EarlyStop > 0 && t.state.Stale >= t.opts.EarlyStop }

// due reports whether something that happens every n steps follows step i.
func due(i, n int) bool { return n > 0 && i%n == 0 }

// update draws the micro-batches of a step, adds up their gradients, each
// weighted by its counted tokens, and updates the parameters. Where it fails
// nothing has changed: the states of the model move on with the backward pass,
// and are taken back.
func (t *Trainer) update(ctx context.Context) (err error) {
	t.train.keep()
	defer func() {
		if err != nil {
			t.train.takeBack()
		}
	}()
	at := t.state.Step
	var tokens, total float64
	for k := range t.opts.Accumulate {
		i := int64(at)*int64(t.opts.Accumulate) + int64(k)
		if err := t.draw(i); err != nil {
			return fmt.Errorf("train: step %d: %w", at+1, err)
		}
		l, n, err := t.train.run(ctx, i)
		if err != nil {
			return t.located(ctx, err)
		}
		if n == 0 {
			continue
		}
		if !finite(l) {
			return &NotFinite{at + 1, "loss", l, t.saved}
		}
		if t.opts.Accumulate > 1 {
			t.adam.accumulate(t.train.grads, n, tokens == 0)
		}
		tokens += n
		total += n * l
	}
	t.metric = Metric{Step: at + 1, LR: t.opts.Rate(at), Tokens: int64(tokens), Skipped: tokens == 0}
	if tokens > 0 {
		grads, scale := t.train.grads, 1.0
		if t.opts.Accumulate > 1 {
			grads, scale = t.adam.sum, 1/tokens
		}
		norm := scale * t.adam.norm(grads)
		if !finite(norm) {
			return &NotFinite{at + 1, "gradient norm", norm, t.saved}
		}
		t.metric.Loss, t.metric.GradNorm = total/tokens, norm
		t.state.Updates++
		t.adam.update(grads, scale*t.opts.clip(norm), t.metric.LR, t.state.Updates)
		t.state.Loss = t.metric.Loss
		t.state.Tokens += int64(tokens)
	} else {
		t.state.Skipped++
	}
	t.state.Step++
	t.dirty = true
	return nil
}

// clip is the factor that brings a gradient of the given norm down to Clip.
func (o Options) clip(norm float64) float64 {
	if o.Clip == 0 {
		return 1
	}
	return min(1, o.Clip/(norm+1e-6))
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// located adds the step to an error that is not the context's.
func (t *Trainer) located(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err
	}
	return fmt.Errorf("train: step %d: %w", t.state.Step+1, err)
}

// measure evaluates when an evaluation is due and keeps account of the best.
func (t *Trainer) measure(ctx context.Context) (better bool, err error) {
	if t.state.Pending != nil {
		t.metric = *t.state.Pending
	} else if t.eval == nil || !due(t.state.Step, t.opts.EvalEvery) && t.state.Step < t.opts.Steps {
		return false, nil
	}
	v, err := t.Evaluate(ctx)
	if err != nil {
		if ctx.Err() != nil {
			pending := t.metric
			t.state.Pending = &pending
		}
		return false, err
	}
	if !finite(v) {
		return false, &NotFinite{t.state.Step, "validation loss", v, t.saved}
	}
	t.state.Pending = nil
	t.dirty = true
	t.val = v
	t.metric.ValLoss = &t.val
	t.state.Val = new(float64)
	*t.state.Val = v
	if t.state.Best == nil || v < *t.state.Best {
		t.state.Best, t.state.BestAt, t.state.Stale = t.state.Val, t.state.Step, 0
		better = true
	} else {
		t.state.Stale++
	}
	t.log.Info("evaluation", "step", t.state.Step, "loss", t.state.Loss, "val_loss", v, "best", *t.state.Best, "best_step", t.state.BestAt)
	return better, nil
}

// report writes the line of a step.
func (t *Trainer) report() error {
	if m, ok := t.model.(*autocast.Model); ok {
		sum := m.Summary()
		t.metric.FP8 = &sum
	}
	if t.metric.Skipped {
		t.log.Warn("step skipped: no label counts", "step", t.metric.Step)
	}
	if t.file != nil {
		if err := t.file.write(&t.metric); err != nil {
			return err
		}
	}
	t.bar.step(&t.metric)
	if t.each != nil {
		t.each(t.metric)
	}
	return nil
}
