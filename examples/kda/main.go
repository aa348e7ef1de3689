// Command kda trains a hybrid of Kimi Delta Attention on a text and lets it
// write, with the memory that the text holds as it grows.
//
//	go run ./examples/kda
//	go run ./examples/kda -steps 1000 -out runs/kda -n 10000
//	eval "$(make env)" # the flags of cgo for -tags gpu
//	go run -tags gpu ./examples/kda -backend cuda -n 10000
//
// In every few layers one attends to all tokens, over pages that grow with the
// text; the others keep a state whose size never changes. Without -text it
// reads Newton's Opticks, which comes with Go: 1,000 steps of the defaults take
// the loss of its last tenth to 1.44 nats a byte. A text of 10,000 bytes then
// holds 224,256 bytes of states, as one of 100 does, and 1,090 bytes of pages for
// each of its own. A folder -out that holds a run goes on with it. -h lists the
// flags. Training is native; the text is written by the backend that -backend
// names.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/seafan/seafan/examples/opticks"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/backend"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var interrupted *train.Interrupted
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &interrupted):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "kda:", err)
		os.Exit(1)
	}
}

// settings are the flags.
type settings struct {
	text, out, prompt, backend, dtype   string
	layers, attend, dim, heads, experts int
	n, workers                          int
	temperature                         float64
	train                               train.Options
}

func parse(args []string, errOut io.Writer) (settings, error) {
	s := settings{train: train.Defaults()}
	f := flag.NewFlagSet("kda", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprint(errOut, "kda trains a hybrid of Kimi Delta Attention on a text and lets it write.\n\n")
		f.PrintDefaults()
	}
	f.StringVar(&s.text, "text", "", "`PATH` of a text; default: Newton's Opticks, from the Go install")
	f.StringVar(&s.out, "out", "runs/kda", "folder `DIR` of the run: checkpoints, metrics, the model")
	f.IntVar(&s.layers, "layers", 4, "layers of the model")
	f.IntVar(&s.attend, "attend", 4, "every layer whose number, from 1, is a multiple of this attends; 0: none does")
	f.IntVar(&s.dim, "dim", 256, "width of the model")
	f.IntVar(&s.heads, "heads", 4, "heads of every layer")
	f.IntVar(&s.experts, "experts", 0, "experts of a mixture in the place of gated units, 2 a token, 0: none")
	f.IntVar(&s.train.Steps, "steps", 1000, "steps of the run")
	f.IntVar(&s.train.Batch, "batch", s.train.Batch, "rows of a batch")
	f.IntVar(&s.train.Context, "context", s.train.Context, "tokens of a row")
	f.Float64Var(&s.train.LR, "lr", s.train.LR, "highest learning rate")
	f.IntVar(&s.train.Warmup, "warmup", s.train.Warmup, "steps of linear warm-up")
	f.IntVar(&s.train.EvalEvery, "eval-every", s.train.EvalEvery, "steps between evaluations on the last tenth of the text, 0: only at the end")
	f.Uint64Var(&s.train.Seed, "seed", 0, "seed of the weights, the order of the data and the text")
	f.StringVar(&s.prompt, "prompt", "The Rays of Light", "beginning of the text")
	f.IntVar(&s.n, "n", 2000, "bytes to write, 0: none; the first 400 are shown")
	f.Float64Var(&s.temperature, "temperature", 0.7, "0: always the likeliest byte")
	f.StringVar(&s.backend, "backend", "", "what writes the text: native or cuda; default: SEAFAN_BACKEND, else cuda where there is a device")
	f.StringVar(&s.dtype, "dtype", "bf16", "compute dtype on CUDA: bf16, f16 or f32")
	f.IntVar(&s.workers, "workers", 0, "goroutines that share the work, 0: one a core; never changes the result")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q: every value belongs to a flag (-h lists them)", f.Arg(0))
	}
	return s, s.check()
}

// computes are the compute dtypes of a device.
var computes = map[string]dtype.DType{"bf16": dtype.BFloat16, "f16": dtype.Float16, "f32": dtype.Float32}

func (s *settings) check() error {
	const most = 1 << 20
	for _, x := range []struct {
		flag           string
		v, least, most int
	}{
		{"layers", s.layers, 1, 1 << 16}, {"attend", s.attend, 0, most}, {"dim", s.dim, 1, most}, {"heads", s.heads, 1, most},
		{"experts", s.experts, 0, 1 << 16}, {"n", s.n, 0, most}, {"workers", s.workers, 0, native.MostWorkers},
	} {
		if x.v < x.least || x.v > x.most {
			return fmt.Errorf("-%s: must be %d to %d, got %d", x.flag, x.least, x.most, x.v)
		}
	}
	switch {
	case s.dim%s.heads != 0 || s.dim/s.heads%8 != 0:
		return fmt.Errorf("-dim: must be a multiple of 8 for each of the %d -heads, got %d", s.heads, s.dim)
	case s.experts == 1:
		return errors.New("-experts: must be 0 or 2 or more, got 1")
	case s.backend != "" && s.backend != backend.Native && s.backend != backend.CUDA:
		return fmt.Errorf("-backend: must be native or cuda, got %q", s.backend)
	case computes[s.dtype] == dtype.Invalid:
		return fmt.Errorf("-dtype: must be bf16, f16 or f32, got %q", s.dtype)
	case s.prompt == "":
		return errors.New("-prompt: must have a byte or more")
	}
	var pe *generate.ParamError
	if errors.As(generate.Sampling{Temperature: s.temperature}.Check(), &pe) {
		return fmt.Errorf("-%s: must be %s, got %v", pe.Name, pe.Want, pe.Got)
	}
	var oe *train.OptionError
	err := s.train.Check()
	if errors.As(err, &oe) {
		return fmt.Errorf("-%s: must be %s, got %s", strings.ReplaceAll(oe.Field, "_", "-"), oe.Need, oe.Got)
	}
	return err
}

// model is a new hybrid of bytes.
func (s settings) model() (*models.Transformer, error) {
	d := s.dim / s.heads
	c := models.Config{
		Vocab: 256, Hidden: s.dim, FFN: 4 * s.dim, Layers: s.layers, Heads: s.heads,
		Context: max(s.train.Context, len(s.prompt)+s.n+1),
		// A quarter of a head's key is shared by all heads.
		Latent: &models.Latent{KVRank: s.dim / 2, Nope: d - d/4, Rope: d / 4, V: d},
		Delta:  &models.Delta{Heads: s.heads, HeadDim: d, Width: 4},
	}
	for l := range s.layers {
		c.Delta.Layers = append(c.Delta.Layers, s.attend == 0 || (l+1)%s.attend != 0)
	}
	if s.experts > 0 {
		c.Experts = &models.Experts{
			Router: ops.Router{Experts: s.experts, TopK: 2, Sigmoid: true, Renormalize: true},
			FFN:    2 * s.dim, Bias: true, Dense: make([]bool, s.layers),
		}
	}
	m, err := models.KimiLinear(c)
	if err != nil {
		return nil, err
	}
	return m, m.Init(s.train.Seed)
}

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	s, err := parse(args, errOut)
	if err != nil {
		return err
	}
	native.SetWorkers(s.workers)
	chosen, err := backend.Choose(backend.Options{Name: s.backend, Compute: computes[s.dtype], Warn: errOut})
	if err != nil {
		return fmt.Errorf("-backend: %w", err)
	}
	if s.text == "" {
		if s.text, err = opticks.Path(ctx); err != nil {
			return err
		}
	}
	m, err := s.model()
	if err != nil {
		return err
	}
	if err := s.fit(ctx, m, out, errOut); err != nil || s.n == 0 {
		return err
	}
	return s.write(ctx, m, chosen, out)
}

// fit trains the model, from the newest checkpoint where there is one.
func (s settings) fit(ctx context.Context, m *models.Transformer, out, errOut io.Writer) error {
	tokens, err := train.Open(train.OpenOptions{}, s.text)
	if err != nil {
		return fmt.Errorf("-text: %w", err)
	}
	defer tokens.Close()
	data, err := train.NewWindows(tokens, m.Config.Vocab, train.WindowOptions{Context: s.train.Context, Seed: s.train.Seed, Order: train.Random, Validation: 0.1})
	if err != nil {
		return fmt.Errorf("-text: %w", err)
	}
	with := []train.Setting{train.Dir(s.out)}
	level := slog.LevelInfo
	if f, ok := errOut.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		with = append(with, train.Progress(errOut))
		level = slog.LevelWarn
	}
	t, err := train.New(m, data, s.train, append(with, train.Log(slog.New(slog.NewTextHandler(errOut, &slog.HandlerOptions{Level: level}))))...)
	if err != nil {
		return err
	}
	if err := t.Resume(); err != nil && !errors.Is(err, train.ErrNoCheckpoint) {
		return err
	}
	sum, err := t.Run(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d steps, loss %.4f", sum.Steps, sum.Loss)
	if sum.ValLoss != nil {
		fmt.Fprintf(out, ", held out %.4f", *sum.ValLoss)
	}
	_, err = fmt.Fprintf(out, ", model in %s\n", filepath.Join(s.out, train.LastName))
	return err
}

// shown is how many bytes of the text are printed.
const shown = 400

// write lets the model write n bytes and tells, at 100 and every time the text
// has grown about threefold, what it holds and what a byte took since then.
func (s settings) write(ctx context.Context, m *models.Transformer, b backend.Backend, out io.Writer) (err error) {
	session, err := generate.New(m, generate.Options{Compile: b.Compile})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	tok := tokenizer.Byte()
	prompt, err := tok.Encode(s.prompt, tokenizer.EncodeOptions{})
	if err != nil {
		return fmt.Errorf("-prompt: %w", err)
	}
	r, err := session.Add(prompt, generate.Sampling{Temperature: s.temperature, Seed: s.train.Seed})
	if err != nil {
		return err
	}
	defer session.Remove(r)
	var text []int32
	var table strings.Builder
	fmt.Fprintf(&table, "%8s  %14s  %14s  %10s\n", "bytes", "KDA states", "pages", "ms a byte")
	since, from, mark := time.Now(), 0, min(100, s.n)
	for n := 1; n <= s.n; n++ {
		id, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if n <= shown {
			text = append(text, id)
		}
		if n == mark {
			held := r.Memory()
			fmt.Fprintf(&table, "%8d  %14d  %14d  %10.2f\n", n, held.States, held.Pages, time.Since(since).Seconds()*1e3/float64(n-from))
			since, from = time.Now(), n
			mark = next(mark, s.n)
		}
	}
	_, err = fmt.Fprintf(out, "\n%s%s\n\nmemory in bytes, backend %s (%s)\n%s", s.prompt, tok.Decode(text, true), b.Name, b.Why, &table)
	return err
}

// next is the mark after m: 100, 300, 1000, 3000 ... and n as the last.
func next(m, n int) int {
	for mark := 100; ; mark *= 10 {
		for _, x := range []int{mark, 3 * mark} {
			if x > m {
				return min(x, n)
			}
		}
	}
}
