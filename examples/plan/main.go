// Command plan prints the plan of a model: every step with its op, shape,
// place in memory and work, and the totals.
//
//	go run ./examples/plan -model DIR                        one step of generation
//	go run ./examples/plan -model DIR -train -batch 8 -context 128
//
// With -backend cuda (built with -tags gpu) it prints as well which step runs
// where and by which kernels. With -dot it prints the graph for graphviz instead.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/backend"
	"github.com/seafan/seafan/ops/native"
)

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "plan:", err)
		os.Exit(1)
	}
}

func run(args []string, out, errOut io.Writer) error {
	f := flag.NewFlagSet("plan", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprint(errOut, "plan prints the plan of a step of generation of a model, or of training.\n\n")
		f.PrintDefaults()
	}
	dir := f.String("model", "", "model folder; only its config.json is read (required)")
	train := f.Bool("train", false, "plan a training step instead of a step of generation")
	batch := f.Int("batch", 8, "sequences of a training step, or requests of a step of generation")
	context := f.Int("context", 128, "tokens of a sequence")
	tokens := f.Int("tokens", 0, "packed tokens of a step of generation; 0: one for each request")
	dot := f.Bool("dot", false, "print the graph in DOT, the same for every -backend")
	name := f.String("backend", backend.Native, "what computes: native, or cuda, which also shows where each step runs and why")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q: every value belongs to a flag (-h lists them)", f.Arg(0))
	}
	if *dir == "" {
		return errors.New("-model must name a model folder")
	}
	for _, x := range []struct {
		name     string
		v, least int
	}{{"batch", *batch, 1}, {"context", *context, 1}, {"tokens", *tokens, 0}} {
		if x.v < x.least || x.v > 1<<24 {
			return fmt.Errorf("-%s must be %d to 2^24, got %d", x.name, x.least, x.v)
		}
	}
	if *batch > 1<<31 / *context {
		return fmt.Errorf("-batch times -context must be at most 2^31, got %d times %d", *batch, *context)
	}
	if *train && *tokens > 0 {
		return errors.New("-tokens must be left out with -train, whose step has -batch times -context")
	}
	if *dot && *name != backend.Native {
		return errors.New("-dot must be without -backend: the graph is one for every backend")
	}
	if *tokens > 0 && *tokens < *batch {
		return fmt.Errorf("-tokens must be 0 or at least -batch %d, got %d", *batch, *tokens)
	}
	c, err := models.ReadConfig(*dir)
	if err != nil {
		return fmt.Errorf("-model: %w", err)
	}
	m, err := models.New(c)
	if err != nil {
		return fmt.Errorf("-model: %w", err)
	}
	plan, err := planOf(m, *train, *batch, *context, *tokens)
	if err != nil {
		return err
	}
	if *dot {
		_, err = io.WriteString(out, plan.DOT())
		return err
	}
	if *name != backend.Native {
		return onDevice(out, m, plan, *name)
	}
	_, err = fmt.Fprintf(out, "backend native, matrix kernel %s\n%s", native.GemmKernel(), plan)
	return err
}

// onDevice prints what a device makes of the plan, with weights of its own.
func onDevice(out io.Writer, m *models.Transformer, plan *graph.Plan, name string) error {
	b, err := backend.Choose(backend.Options{Name: name, Random: true})
	if err != nil {
		return fmt.Errorf("-backend: %w", err)
	}
	for _, p := range m.Params().All() {
		p.Touch()
	}
	e, err := b.Compile(plan)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "backend %s: %s\n%v%s", b.Name, b.Why, e, plan)
	if c, ok := e.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}

func planOf(m *models.Transformer, train bool, batch, context, tokens int) (*graph.Plan, error) {
	b := graph.New(graph.Share(m.Params()))
	if !train {
		const page = 16
		pages := batch * ((context + page - 1) / page)
		return b.Plan(m.Packed(b, models.Packed{Tokens: max(tokens, batch), Requests: batch, Pages: pages, PageSize: page, Indices: pages}))
	}
	loss, _ := m.Loss(b, batch, context, 0, 0)
	grads, err := b.Grad(loss, b.Params()...)
	if err != nil {
		return nil, err
	}
	return b.Plan(append([]*graph.Node{loss}, grads...)...)
}
