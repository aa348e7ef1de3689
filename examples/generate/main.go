// Command generate continues a prompt with a model, or chats with it.
//
//	go run ./examples/generate -model runs/demo/best -prompt "The light" -n 200
//	go run ./examples/generate -model model.gguf -chat -system "Be brief."
//
// The model is a folder with config.json and safetensors, as training saves it
// and as Hugging Face publishes it, or a GGUF file. Text streams to standard
// output; with -json every token is a line, and the last line of a text is a
// summary. A chat reads one message a line, until the input ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/backend"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "generate: interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "generate:", strings.TrimPrefix(err.Error(), "generate: "))
		os.Exit(1)
	}
}

// list is a flag that may be given several times.
type list []string

func (l *list) String() string     { return strings.Join(*l, ",") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// settings are the flags.
type settings struct {
	model, adapter, prompt, system, backend, dtype, cache string
	chat, json, logprobs, inPlace                         bool
	n, context, workers                                   int
	sampling                                              generate.Sampling
	stops                                                 list
}

func parse(args []string, errOut io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("generate", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprint(errOut, "generate continues a prompt with a model, or chats with it.\n\n")
		f.PrintDefaults()
	}
	f.StringVar(&s.model, "model", "", "model folder or .gguf file (required)")
	f.StringVar(&s.adapter, "adapter", "", "folder of a LoRA adapter (PEFT) on the model")
	f.StringVar(&s.prompt, "prompt", "", "text to continue, or the first message of a chat (required without -chat)")
	f.BoolVar(&s.chat, "chat", false, "talk, with the model's chat template: one message a line")
	f.StringVar(&s.system, "system", "", "what the chat's system message says")
	f.StringVar(&s.backend, "backend", "", "what computes: native or cuda; default: SEAFAN_BACKEND, else cuda where there is a device")
	f.StringVar(&s.dtype, "dtype", "", "what the linears multiply: bf16, f16 (on CUDA alone) or f32; default: bf16 on CUDA, f32 natively")
	f.StringVar(&s.cache, "cache", "", "how native code keeps keys and values: f32, f16 or bf16; default: f16 where the weights are packed in blocks, else f32")
	f.BoolVar(&s.inPlace, "in-place", false, "native code reads weights of 16 bits from their file, without a copy in the order of the read, which makes a token faster")
	f.IntVar(&s.n, "n", 200, "most tokens to write at a time; 0: until the context is full")
	f.IntVar(&s.context, "context", 0, "most tokens of prompt and text; 0: what the prompt and -n need, in a chat the model's, at most 4096")
	f.Uint64Var(&s.sampling.Seed, "seed", 0, "seed of the draws")
	f.Float64Var(&s.sampling.Temperature, "temperature", 0.8, "divides the logits; 0 takes the likeliest token")
	f.IntVar(&s.sampling.TopK, "top-k", 0, "keep the K likeliest tokens; 0: all")
	f.Float64Var(&s.sampling.TopP, "top-p", 1, "keep the fewest tokens with this much probability; 0 or 1: all")
	f.Float64Var(&s.sampling.MinP, "min-p", 0, "keep tokens with this part of the likeliest one's probability")
	f.Float64Var(&s.sampling.RepetitionPenalty, "repetition-penalty", 1, "divides the logits of tokens that are in the text; 1: off")
	f.Var(&s.stops, "stop", "end the text before this string; may be given several times")
	f.IntVar(&s.workers, "workers", 0, "goroutines that share the work; 0: one for each core")
	f.BoolVar(&s.json, "json", false, "print machine-readable lines")
	f.BoolVar(&s.logprobs, "logprobs", false, "with -json, the log-probability of every token")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q: every value belongs to a flag (-h lists them)", f.Arg(0))
	}
	return s, s.check()
}

// computes are the dtypes by the values of -dtype and -cache.
var computes = map[string]dtype.DType{"bf16": dtype.BFloat16, "f16": dtype.Float16, "f32": dtype.Float32}

func (s *settings) check() error {
	switch {
	case s.model == "":
		return errors.New("-model must name a model folder or a .gguf file")
	case s.prompt == "" && !s.chat:
		return errors.New("-prompt must hold some text")
	case s.system != "" && !s.chat:
		return errors.New("-system is for a chat: it needs -chat")
	case s.backend != "" && s.backend != backend.Native && s.backend != backend.CUDA:
		return fmt.Errorf("-backend must be native or cuda, got %q", s.backend)
	case s.dtype != "" && computes[s.dtype] == dtype.Invalid:
		return fmt.Errorf("-dtype must be bf16, f16 or f32, got %q", s.dtype)
	case s.cache != "" && computes[s.cache] == dtype.Invalid:
		return fmt.Errorf("-cache must be f32, f16 or bf16, got %q", s.cache)
	case s.logprobs && !s.json:
		return errors.New("-logprobs needs -json")
	case s.n < 0:
		return fmt.Errorf("-n must be 0 or above, got %d", s.n)
	case s.context < 0:
		return fmt.Errorf("-context must be 0 or above, got %d", s.context)
	case slices.Contains(s.stops, ""):
		return errors.New("-stop must hold some text")
	case s.workers < 0 || s.workers > native.MostWorkers:
		return fmt.Errorf("-workers must be 0 to %d, got %d", native.MostWorkers, s.workers)
	}
	return flagError(s.sampling.Check())
}

// flagError names the flag behind a parameter.
func flagError(err error) error {
	var p *generate.ParamError
	if errors.As(err, &p) {
		return fmt.Errorf("-%s must be %s, got %v", strings.ToLower(strings.ReplaceAll(p.Name, " ", "-")), p.Want, p.Got)
	}
	return err
}

// standardContext keeps the memory of a model with a very long context small.
const standardContext = 4096

// nativeChunk is how much of a prompt is read at a time: 256 is 1 % faster and
// takes 5 MB more of a model of 135 million weights.
const nativeChunk = 128

// packed reports that weights are stored in blocks of fewer than 16 bits each.
func packed(m *models.Opened) bool {
	return slices.ContainsFunc(m.Params().All(), func(p *graph.Param) bool { return ops.CodingOf(p) != 0 })
}

// giveBack gives the system the memory that reading the files, or the template of
// a chat, left behind.
func giveBack() {
	debug.FreeOSMemory()
	forgetStartup()
}

func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) (err error) {
	s, err := parse(args, errOut)
	if err != nil {
		return err
	}
	native.SetWorkers(s.workers)
	chosen, err := backend.Choose(backend.Options{Name: s.backend, Compute: computes[s.dtype], Warn: errOut})
	if err != nil {
		return fmt.Errorf("-backend: %w", err)
	}
	var o generate.Options
	switch {
	case chosen.Name != backend.Native: // a device has been told, and keeps what it computes with
		if s.cache != "" {
			return errors.New("-cache is for native code: a device keeps keys and values as it computes them")
		}
	case s.dtype == "f16":
		return errors.New("-dtype must be bf16 or f32 where the native code computes, got \"f16\"")
	default:
		o.Chunk, o.Compute, o.Cache = nativeChunk, computes[s.dtype], computes[s.cache]
	}
	m, err := models.Open(s.model)
	if err != nil && models.IsAdapter(s.model) {
		return fmt.Errorf("-model: %w (-adapter %s beside the -model)", err, s.model)
	}
	if err != nil {
		return fmt.Errorf("-model: %w", err)
	}
	defer m.Close() // only read
	if n := len(m.Report.Sight); n > 0 {
		fmt.Fprintf(errOut, "generate: -model %s: text alone, %d tensors of the part that sees images are left out\n", s.model, n)
	}
	if m.Tokenizer == nil {
		if m.Metadata == nil { // a folder: tells what is there in its place
			if _, err := tokenizer.Open(s.model); err != nil {
				return fmt.Errorf("-model: %w", err)
			}
		}
		return fmt.Errorf("-model: %s has no tokenizer", s.model)
	}
	var ids []int32 // of a prompt to continue
	if !s.chat {
		if ids, err = m.Tokenizer.Encode(s.prompt, tokenizer.EncodeOptions{AddSpecial: true}); err != nil {
			return fmt.Errorf("-prompt: %w", err)
		}
	}
	if s.context == 0 {
		s.context = min(m.Config.Context, standardContext)
		if !s.chat && s.n > 0 {
			s.context = min(s.context, max(len(ids), 1)+s.n)
		}
	}
	var model generate.Model = m
	if s.adapter != "" {
		if model, err = m.OpenAdapter(s.adapter); err != nil {
			return fmt.Errorf("-adapter: %w", err)
		}
	}
	if chosen.Name == backend.Native && s.cache == "" && packed(m) {
		o.Cache = dtype.Float16
	}
	o.Context, o.Logprobs, o.InPlace = s.context, s.logprobs, s.inPlace
	if chosen.Name != backend.Native {
		o.Compile = chosen.Compile
	}
	session, err := generate.New(model, o)
	if err != nil {
		return flagError(err)
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	// The pools of the session are nearly all of the heap, hold no pointers and are
	// hardly touched: by their size alone garbage could grow to as much.
	debug.SetGCPercent(2)
	giveBack()
	w := &writer{settings: s, talk: session.Talk(), tok: m.Tokenizer, out: out, errOut: errOut}
	if s.chat {
		return talk(ctx, w, m, in)
	}
	if !s.json {
		fmt.Fprint(out, s.prompt)
	}
	_, err = w.write(ctx, ids, nil)
	return err
}
