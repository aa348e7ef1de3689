// Command cpubench measures the native bodies on this machine's cores and, beside
// them, PyTorch, in turns of one run, and prints both with their ratio.
//
//	go run ./examples/cpubench
//	go run ./examples/cpubench -python python3 -steps cpu_train.py -rounds 3
//	go run ./examples/cpubench -python python3 -only infer
//
// Without -python, or where that has no torch, it prints ours alone. The time
// of a thing is that of its fastest run over all rounds, which a busy machine
// disturbs least; a token beside its floor, and our steps beside our step in
// f32, are the middle of turns. Ratios of a busy machine are no record.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seafan/seafan/examples/opticks"
	"github.com/seafan/seafan/ops/native"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "cpubench:", err)
		os.Exit(1)
	}
}

// command is what the flags say.
type command struct {
	python, steps, text string
	only                string
	compile             bool
	rounds, workers     int
}

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	var c command
	f := flag.NewFlagSet("cpubench", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprint(errOut, "cpubench measures native code on this machine's cores, beside PyTorch where -python has it.\n\n")
		f.PrintDefaults()
	}
	f.StringVar(&c.python, "python", "", "Python with torch, to compare with; none: ours alone")
	f.StringVar(&c.steps, "steps", "", "cpu_train.py, the training step in PyTorch; none: no step of the peer's")
	f.BoolVar(&c.compile, "compile", false, "time torch.compile's training steps too, which needs a C++ compiler (a minute each the first time)")
	f.StringVar(&c.only, "only", "", "train: products and training steps alone; infer: prefill and decode alone")
	f.IntVar(&c.rounds, "rounds", 2, "turns of ours and theirs")
	f.IntVar(&c.workers, "workers", 0, "goroutines, and threads of the peer's; 0: one a core. One is least disturbed by a busy machine")
	f.StringVar(&c.text, "text", "", "text to train on; none: Newton's Opticks, which is in every Go install")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: every value belongs to a flag (-h lists them)", f.Arg(0))
	}
	if c.rounds < 1 || c.rounds > 100 {
		return fmt.Errorf("-rounds: must be 1 to 100, got %d", c.rounds)
	}
	if c.only != "" && c.only != "train" && c.only != "infer" {
		return fmt.Errorf("-only: must be train or infer, got %q", c.only)
	}
	if c.workers < 0 || c.workers > native.MostWorkers {
		return fmt.Errorf("-workers: must be 0 to %d, got %d", native.MostWorkers, c.workers)
	}
	if c.python == "" && (c.steps != "" || c.compile) {
		return errors.New("-steps and -compile: need -python, whose they are")
	}
	if _, err := os.Stat(c.text); err != nil && c.text != "" {
		return fmt.Errorf("-text: %w", err)
	}
	native.SetWorkers(c.workers)
	if c.text == "" && c.only != "infer" {
		var err error
		if c.text, err = opticks.Path(ctx); err != nil {
			return err
		}
	}
	p, why := newPeer(ctx, c)
	if p == nil {
		fmt.Fprintln(errOut, "cpubench: ours alone:", why)
	}
	var model string
	if c.only != "train" {
		var err error
		if model, err = inferModel(); err != nil {
			return err
		}
		defer os.RemoveAll(model)
	}
	ours, theirs := times{}, times{}
	beside := turns{}
	for r := range c.rounds {
		fmt.Fprintf(errOut, "cpubench: round %d of %d\n", r+1, c.rounds)
		if model != "" {
			if err := infer(ctx, model, ours, beside); err != nil {
				return err
			}
			if p != nil {
				if err := p.infer(ctx, model, theirs); err != nil {
					return err
				}
			}
		}
		if c.only == "infer" {
			continue
		}
		if err := measure(ctx, c.text, ours, beside); err != nil {
			return err
		}
		if p != nil {
			if err := p.measure(ctx, theirs); err != nil {
				return err
			}
		}
	}
	if model != "" {
		p := beside.middle("decode, floor")
		ours["decode, floor"], theirs["decode, floor"] = p.ours, p.other
	}
	header := fmt.Sprintf("%s/%s, %d workers, kernels %s", runtime.GOOS, runtime.GOARCH, native.Workers(), native.GemmKernel())
	if p != nil {
		header += ", torch " + p.version
	}
	fmt.Fprintln(out, header+load())
	return table(out, ours, theirs, beside)
}

// load is the load of the machine where it can be read.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return ", load " + strings.Join(strings.Fields(string(raw))[:3], " ")
}

// times are the seconds of the fastest run of each work.
type times map[string]float64

func (t times) add(work string, seconds float64) {
	if old, ok := t[work]; !ok || seconds < old {
		t[work] = seconds
	}
}

// pair is two times of one moment, as nearly as can be: what memory gives, and how
// far the cores are from each other, can change within seconds.
type pair struct{ ours, other float64 }

func (p pair) ratio() float64 { return p.ours / p.other }

// turns are the pairs of a work: of a token beside its floor, of a step beside that
// in f32.
type turns map[string][]pair

func (t turns) add(work string, ours, other float64) {
	t[work] = append(t[work], pair{ours, other})
}

// middle is the pair of the median ratio of a work that has pairs.
func (t turns) middle(work string) pair {
	s := slices.Clone(t[work])
	slices.SortFunc(s, func(a, b pair) int { return cmp.Compare(a.ratio(), b.ratio()) })
	return s[len(s)/2]
}

// works are the rows of the table; flops turns a time into a rate, 0: none.
var works = []struct {
	name, peer string
	flops      float64
}{
	{"step f32", "eager", 0},
	{"step f32 compiled", "torch.compile", 0},
	{"step f32 by bf16x6", "eager", 0},
	{"step bf16", "autocast", 0},
	{"step bf16 compiled", "autocast, torch.compile", 0},
	{"step fp8", "", 0},
	{"sgemm 1024^3", "mm", 2 << 30},
	{"sgemm 1024^3 by bf16x6", "mm", 2 << 30},
	{"bf16 gemm 1024^3", "mm of bf16", 2 << 30},
	{"bf16 gemm 1024^3, B stored", "mm of bf16", 2 << 30},
	{"bf16 gemm 1024^3, both stored", "mm of bf16", 2 << 30},
	{"attention forward", "SDPA", 0},
	{"attention forward and backward", "SDPA", 0},
	{"attention forward by bf16x6", "SDPA", 0},
	{"attention forward and backward by bf16x6", "SDPA", 0},
	{"prefill 512 f32", "transformers", 0},
	{"prefill 512 bf16", "transformers", 0},
	{"decode", "transformers, bf16", 0},
	{"decode, floor", "read of the weights", 0},
}

// table prints ours, theirs and how much of their time we take.
func table(out io.Writer, ours, theirs times, beside turns) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "work\tours ms\tpeer ms\tours/peer\tGFLOP/s\tpeer")
	for _, x := range works {
		o, ok := ours[strings.TrimSuffix(x.name, " compiled")]
		p, known := theirs[strings.TrimSuffix(x.name, " by bf16x6")]
		if !ok || strings.HasSuffix(x.name, " compiled") && !known {
			continue
		}
		peer, ratio, rate := "", "", ""
		if known {
			peer, ratio = fmt.Sprintf("%.2f", 1e3*p), fmt.Sprintf("%.2f", o/p)
		}
		if x.flops > 0 {
			rate = fmt.Sprintf("%.0f", x.flops/o/1e9)
			if known {
				rate += fmt.Sprintf(" / %.0f", x.flops/p/1e9)
			}
		}
		fmt.Fprintf(w, "%s\t%.2f\t%s\t%s\t%s\t%s\n", x.name, 1e3*o, peer, ratio, rate, x.peer)
	}
	var steps []string
	for _, x := range works {
		if kind, ok := strings.CutPrefix(x.name, "step "); ok && beside[x.name] != nil {
			steps = append(steps, fmt.Sprintf("%s %.2f", kind, beside.middle(x.name).ratio()))
		}
	}
	if steps != nil {
		fmt.Fprintf(w, "\nour steps of our f32, in turns: %s\n", strings.Join(steps, ", "))
	}
	return w.Flush()
}

// peer is a Python with torch.
type peer struct {
	command
	version string
}

//go:embed peer.py
var peerProgram string

// newPeer is nil, with the reason, where there is none.
func newPeer(ctx context.Context, c command) (*peer, string) {
	if c.python == "" {
		return nil, "no -python"
	}
	version, err := exec.CommandContext(ctx, c.python, "-c", "import torch; print(torch.__version__)").Output()
	if err != nil {
		return nil, fmt.Sprintf("%s has no torch (%v)", c.python, err)
	}
	return &peer{c, strings.TrimSpace(string(version))}, ""
}

func (p *peer) measure(ctx context.Context, t times) error {
	threads := fmt.Sprint(native.Workers())
	raw, err := p.run(ctx, "-c", peerProgram, threads)
	if err != nil {
		return err
	}
	if err := t.read(p.python, raw); err != nil {
		return err
	}
	if p.steps == "" {
		return nil
	}
	for _, x := range []struct {
		work  string
		flags []string
	}{{"step f32", nil}, {"step bf16", []string{"--bf16"}}, {"step f32 compiled", []string{"--compile"}}, {"step bf16 compiled", []string{"--bf16", "--compile"}}} {
		if strings.HasSuffix(x.work, " compiled") && !p.compile {
			continue
		}
		raw, err := p.run(ctx, append([]string{p.steps, p.text, "--time-only", "--threads", threads}, x.flags...)...)
		if err != nil {
			return err
		}
		var median, least float64
		if _, err := fmt.Sscanf(string(raw), "step median %f ms, min %f ms", &median, &least); err != nil {
			return fmt.Errorf("%s: must print \"step median X ms, min Y ms\", got %q", p.steps, raw)
		}
		t.add(x.work, least/1e3)
	}
	return nil
}

func (p *peer) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.python, args...)
	var said strings.Builder
	cmd.Stderr = &said
	raw, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmp.Or(p.steps, p.python), err, said.String())
	}
	return raw, nil
}

// fastest is the time of the fastest of n runs after one for warmth.
func fastest(n int, f func()) float64 {
	f()
	best := math.Inf(1)
	for range n {
		start := time.Now()
		f()
		best = min(best, time.Since(start).Seconds())
	}
	return best
}
