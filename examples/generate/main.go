// Command generate continues a prompt with a model.
//
//	go run ./examples/generate -model runs/demo -prompt "The light" -n 200
//
// The model is a folder with config.json and model.safetensors, as training
// saves it and as Hugging Face publishes it. Text streams to standard output;
// with -json every token is a line, and the last line is a summary.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/ops/native"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "generate:", strings.TrimPrefix(err.Error(), "generate: "))
		os.Exit(1)
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	f := flag.NewFlagSet("generate", flag.ContinueOnError)
	f.SetOutput(errOut)
	model := f.String("model", "", "model folder (required)")
	prompt := f.String("prompt", "", "text to continue (required)")
	n := f.Int("n", 200, "most tokens to write; 0: until the context is full")
	length := f.Int("context", 0, "most tokens of prompt and text; 0: the model's")
	var s generate.Sampling
	f.Uint64Var(&s.Seed, "seed", 0, "seed of the draws")
	f.Float64Var(&s.Temperature, "temperature", 0.8, "divides the logits; 0 takes the likeliest token")
	f.IntVar(&s.TopK, "top-k", 0, "keep the K likeliest tokens; 0: all")
	f.Float64Var(&s.TopP, "top-p", 1, "keep the fewest tokens with this much probability; 0 or 1: all")
	f.Float64Var(&s.MinP, "min-p", 0, "keep tokens with this part of the likeliest one's probability")
	f.Float64Var(&s.RepetitionPenalty, "repetition-penalty", 1, "divides the logits of tokens that are in the text; 1: off")
	var stops list
	f.Var(&stops, "stop", "end the text before this string; may be given several times")
	workers := f.Int("workers", 0, "goroutines that share the work; 0: one for each core")
	asJSON := f.Bool("json", false, "print machine-readable lines")
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q: every value belongs to a flag (-h lists them)", f.Arg(0))
	case *model == "":
		return errors.New("-model must name a model folder")
	case *prompt == "":
		return errors.New("-prompt must hold some text")
	case *n < 0:
		return fmt.Errorf("-n must be 0 or above, got %d", *n)
	case *length < 0:
		return fmt.Errorf("-context must be 0 or above, got %d", *length)
	case *workers < 0:
		return fmt.Errorf("-workers must be 0 or above, got %d", *workers)
	}
	if err := s.Check(); err != nil {
		var p *generate.ParamError
		if errors.As(err, &p) {
			return fmt.Errorf("-%s must be %s, got %v", strings.ReplaceAll(p.Name, " ", "-"), p.Want, p.Got)
		}
		return err
	}
	native.SetWorkers(*workers)
	m, _, err := models.Load(*model)
	if err != nil {
		return err
	}
	tok, err := models.Tokenizer(*model, m.Config)
	if err != nil {
		return err
	}
	ids, err := tok.Encode(*prompt, tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		return err
	}
	session, err := generate.New(m, generate.Options{Context: *length})
	if err != nil {
		return err
	}
	w := printer{out: out, json: *asJSON, prompt: len(ids), start: time.Now()}
	if !*asJSON {
		fmt.Fprint(out, *prompt)
	}
	for token, err := range session.Text(ctx, tok, ids, generate.TextOptions{Sampling: s, Max: *n, Stop: stops}) {
		if err != nil {
			w.end("error")
			return err
		}
		if err := w.token(token); err != nil {
			return err
		}
		if token.End != "" {
			w.end(token.End)
		}
	}
	if !*asJSON {
		fmt.Fprintf(errOut, "%d tokens, prompt in %.0f ms, then %.1f tokens/s\n", w.n, w.first.Seconds()*1e3, w.rate())
	}
	return nil
}

// printer writes the tokens as text or as lines of JSON.
type printer struct {
	out    io.Writer
	json   bool
	prompt int
	start  time.Time
	first  time.Duration // until the first token
	n      int
}

func (w *printer) token(t generate.Token) error {
	if t.ID >= 0 {
		w.n++
	}
	if w.n == 1 && w.first == 0 {
		w.first = time.Since(w.start)
	}
	if !w.json {
		_, err := io.WriteString(w.out, t.Text)
		return err
	}
	return w.line(map[string]any{"token": t.ID, "text": t.Text, "tokens_per_s": w.rate()})
}

// rate counts from the first token, after the prompt.
func (w *printer) rate() float64 {
	if w.n < 2 {
		return 0
	}
	return float64(w.n-1) / (time.Since(w.start) - w.first).Seconds()
}

func (w *printer) end(why string) {
	if !w.json {
		fmt.Fprintln(w.out)
		return
	}
	w.line(map[string]any{"summary": true, "tokens": w.n, "prompt_tokens": w.prompt, "prompt_ms": w.first.Seconds() * 1e3, "tokens_per_s": w.rate(), "end": why}) // the run is over
}

func (w *printer) line(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Fprintf(w.out, "%s\n", b)
	}
	return err
}
