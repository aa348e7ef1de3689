// Settings: defaults, the run that is resumed, the config file and the flags,
// each over the one before.

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops/native"
)

// settings are a run: the form of -config and of the run.json that every run
// keeps in its folder.
type settings struct {
	Text       string        `json:"text"`
	Pack       bool          `json:"pack"`
	Separator  string        `json:"document_separator,omitempty"` // as it stands in the text
	Out        string        `json:"out,omitempty"`
	From       string        `json:"from,omitempty"` // checkpoint to start from, with its tokenizer
	LoRA       lora          `json:"lora,omitzero"`
	Merge      bool          `json:"merge,omitempty"`
	Model      shape         `json:"model"`
	Train      train.Options `json:"train"`
	Order      train.Order   `json:"order"`
	Validation float64       `json:"validation"`
	Workers    int           `json:"workers"`
	FP8        string        `json:"fp8,omitempty"` // recipe of FP8 linears: dynamic, delayed, or none
}

// shape is the size of a new model.
type shape struct {
	Vocab   int  `json:"vocab"`
	Layers  int  `json:"layers"`
	Dim     int  `json:"dim"`
	Heads   int  `json:"heads"`
	KVHeads int  `json:"kv_heads"`
	FFN     int  `json:"ffn"`
	Tied    bool `json:"tied"`

	NormEps   float64 `json:"norm_eps"`
	RopeTheta float64 `json:"rope_theta"`
}

// lora is models.LoRA as it is kept; with rank 0 the whole model is trained.
type lora struct {
	Rank    int      `json:"rank"`
	Alpha   float64  `json:"alpha"`
	Targets []string `json:"targets,omitempty"`
}

func defaults() settings {
	return settings{
		Model:      shape{Vocab: 256, Layers: 4, Dim: 256, Heads: 4, NormEps: 1e-5, RopeTheta: 1e4},
		Train:      train.Defaults(),
		Order:      train.Random,
		Validation: 0.1,
	}
}

// command is what the flags say beside the settings.
type command struct {
	config string
	resume bool
	json   bool
}

// define binds the flags to s and c; what stands in s is their default.
func define(f *flag.FlagSet, s *settings, c *command) {
	f.StringVar(&s.Text, "text", s.Text, "`PATH` of a text, of token ids (.u16 and .bin: uint16, .u32: uint32), or of a folder of them (required)")
	f.StringVar(&s.Out, "out", s.Out, "folder `DIR` of the run: checkpoints, metrics.jsonl, loss.csv, loss.png; not inside the folder of -text,\nwhose files are the data (required)")
	f.BoolVar(&s.Pack, "pack", s.Pack, "fill rows with documents that do not see each other, positions from 0 in each")
	f.Var((*escaped)(&s.Separator), "document-separator", "with -pack, the `TEXT` that ends a document, \\n being a newline, or the id in token ids;\nit stays in the text, and a special token of the tokenizer becomes that token\n(default: a file is a document in a folder, a blank line \\n\\n ends one in a single text)")
	f.StringVar(&c.config, "config", "", "JSON `FILE` with settings; flags go over it (run.json in -out is an example)")
	f.BoolVar(&c.resume, "resume", false, "go on from the newest checkpoint in -out, with the settings of that run; starts anew where there is none")
	f.BoolVar(&c.json, "json", false, "print a JSON line for each step, and a summary as the last line")
	f.StringVar((*string)(&s.Train.Compute), "compute", string(s.Train.Compute), "what linears and attention multiply, `TYPE` f32, bf16, or bf16x6, which is f32 by six products of bf16; weights and sums are f32\n(default: bf16x6 where the CPU has AMX, else f32)")
	f.StringVar(&s.FP8, "fp8", s.FP8, "multiply linears in 8-bit floats, by the `RECIPE` dynamic or delayed (history of 16 steps)")
	f.IntVar(&s.Workers, "workers", s.Workers, "goroutines that share the work, 0: one a core; never changes the result")

	f.StringVar(&s.From, "init", s.From, "fine-tune the checkpoint at `PATH`, a Hugging Face folder or a .gguf file, with its tokenizer;\nthe flags of sizes do not go with it")
	f.IntVar(&s.LoRA.Rank, "lora-rank", s.LoRA.Rank, "with -init, train adapters of that rank alone, saved as PEFT folders; 0: train the whole model")
	f.Float64Var(&s.LoRA.Alpha, "lora-alpha", s.LoRA.Alpha, "adapters are scaled by alpha/rank, 0: twice the rank")
	f.Var(&list{to: &s.LoRA.Targets}, "lora-targets", "`NAMES` of the layers with adapters, such as q_proj,v_proj, layers.0.* or all-linear, with commas between or given\nmore than once (default: every linear layer but the head)")
	f.BoolVar(&s.Merge, "merge", s.Merge, "at the end, write the checkpoint with the adapters added into the folder "+mergedName+" of -out")

	f.IntVar(&s.Model.Layers, "layers", s.Model.Layers, "layers of the model")
	f.IntVar(&s.Model.Dim, "dim", s.Model.Dim, "width of the model")
	f.IntVar(&s.Model.Heads, "heads", s.Model.Heads, "attention heads")
	f.IntVar(&s.Model.KVHeads, "kv-heads", s.Model.KVHeads, "heads of keys and values, 0: as many as -heads")
	f.IntVar(&s.Model.FFN, "ffn", s.Model.FFN, "width of the gated unit, 0: 4 times -dim")

	t := &s.Train
	f.IntVar(&t.Steps, "steps", t.Steps, "steps of the whole run")
	f.Uint64Var(&t.Seed, "seed", t.Seed, "seed of the weights, the order of the data and dropout")
	f.IntVar(&t.Batch, "batch", t.Batch, "rows of a micro-batch")
	f.IntVar(&t.Context, "context", t.Context, "tokens of a row")
	f.IntVar(&t.Accumulate, "accumulate", t.Accumulate, "micro-batches of a step")
	f.BoolVar(&t.Recompute, "recompute", t.Recompute, "compute the activations of a layer again for the gradient instead of keeping them: less memory, a third\nmore time, the same result")
	f.Float64Var(&t.Dropout, "dropout", t.Dropout, "probability of dropping an activation")
	f.Float64Var(&t.LR, "lr", t.LR, "highest learning rate")
	f.IntVar(&t.Warmup, "warmup", t.Warmup, "steps of linear warm-up before the cosine to a tenth of -lr;\na run of fewer ends below -lr")
	f.IntVar(&t.EvalEvery, "eval-every", t.EvalEvery, "steps between evaluations on the last tenth of the text, 0: only at the end;\neval_rows in train of -config evaluates on so many rows of it")
	f.IntVar(&t.SaveEvery, "save-every", t.SaveEvery, "steps between checkpoints, 0: only at the end")
	f.IntVar(&t.Keep, "keep", t.Keep, "newest checkpoints to keep, beside the best")
	f.IntVar(&t.EarlyStop, "early-stop", t.EarlyStop, "stop after `N` evaluations without a new best, 0: never")
}

// fixed are the flags that a resumed run cannot change; the first are the sizes
// of the model.
var fixed = []string{
	"layers", "dim", "heads", "kv-heads", "ffn",
	"init", "lora-rank", "lora-alpha", "lora-targets",
	"seed", "batch", "context", "accumulate", "dropout", "lr", "warmup", "compute", "fp8", "pack", "document-separator",
}

const sizes = 5

// usage opens the text of -h.
const usage = `train trains a language model on a text.

  go run ./examples/train -text book.txt -out runs/book
  go run ./examples/train -text book.txt -out runs/book -resume
  go run ./examples/train -text folder -out runs/folder -pack
  go run ./examples/train -init model -text book.txt -out runs/tuned -lr 1e-5
  go run ./examples/train -init model.gguf -text book.txt -out runs/lora -lora-rank 8 -merge

The model, or the adapter, is in DIR/last and DIR/best, folders that
examples/generate and Hugging Face transformers or PEFT open. Ctrl-C saves and says how to resume; a second
one ends at once. A run that was killed resumes from its newest checkpoint with
the result it would have had.

`

// parse reads the command line and the files it names.
func parse(args []string, errOut io.Writer) (settings, command, error) {
	s, c := defaults(), command{}
	first := flags(errOut, &s, &c)
	if err := first.Parse(args); err != nil {
		return s, c, err
	}
	if first.NArg() > 0 {
		return s, c, fmt.Errorf("unexpected argument %q: every value belongs to a flag (-h lists them)", first.Arg(0))
	}
	out, config := s.Out, c.config
	s = defaults()
	if config != "" && out == "" {
		// -out may stand in the config alone, and -resume needs it.
		var named settings
		if err := readJSON(config, &named); err != nil {
			return s, c, fmt.Errorf("-config: %w", err)
		}
		out = named.Out
	}
	resumed := false
	if c.resume && out != "" {
		err := readJSON(filepath.Join(out, runName), &s)
		if resumed = err == nil; !resumed && !errors.Is(err, fs.ErrNotExist) {
			return s, c, fmt.Errorf("-resume: %w", err)
		}
		if dir, err := train.Latest(out); err == nil && !resumed && config == "" {
			return s, c, fmt.Errorf("-resume: %s is missing, the settings of the run with checkpoint %s: put it back, or give them with -config", filepath.Join(out, runName), filepath.Base(dir))
		}
	}
	// A second set of flags, with what stands in the run as its defaults.
	f := flags(errOut, &s, &c)
	if config != "" {
		if err := readJSON(config, &s); err != nil {
			return s, c, fmt.Errorf("-config: %w", err)
		}
	}
	if err := f.Parse(args); err != nil {
		return s, c, err
	}
	s.Out = filepath.Clean(s.Out)
	if s.Out == "." && out == "" {
		return s, c, errors.New("-out: a folder for the run is required")
	}
	var err error
	if s.From != "" {
		f.Visit(func(is *flag.Flag) {
			if err == nil && slices.Contains(fixed[:sizes], is.Name) {
				err = fmt.Errorf("-%s: cannot be given for the model of %s, which has its size", is.Name, s.From)
			}
		})
	}
	if err == nil {
		err = s.complete()
	}
	if err == nil {
		err = s.apart()
	}
	if err == nil && resumed {
		for _, name := range fixed {
			if is := f.Lookup(name); is.Value.String() != is.DefValue {
				return s, c, fmt.Errorf("-%s: must be %s as in the run so far, got %s (leave it out with -resume)", name, shown(is.DefValue), shown(is.Value.String()))
			}
		}
	}
	return s, c, err
}

// shown is the value of a flag in a message.
func shown(v string) string {
	if v == "" {
		return `""`
	}
	return v
}

// apart keeps the files of a run out of its data: they would be other data at
// every start.
func (s settings) apart() error {
	text, err := os.Stat(s.Text)
	if err != nil || !text.IsDir() {
		return nil // train.Open tells what is wrong
	}
	dir, err := filepath.Abs(s.Out)
	if err != nil {
		return fmt.Errorf("-out: %w", err)
	}
	// Links are followed as far as there are folders.
	below := ""
	for real, err := filepath.EvalSymlinks(dir); ; real, err = filepath.EvalSymlinks(dir) {
		if err == nil {
			dir = filepath.Join(real, below)
			break
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}
		below, dir = filepath.Join(filepath.Base(dir), below), parent
	}
	for {
		if info, err := os.Stat(dir); err == nil && os.SameFile(info, text) {
			return fmt.Errorf("-out: must not be inside the folder of -text, %s, whose files are the data, got %s", s.Text, s.Out)
		}
		parent := filepath.Dir(dir)
		if parent == dir || strings.HasPrefix(filepath.Base(dir), ".") { // hidden folders are not data
			return nil
		}
		dir = parent
	}
}

// escaped is a text that is spelled with Go's escapes on the command line.
type escaped string

func (e *escaped) String() string {
	q := strconv.Quote(string(*e))
	return q[1 : len(q)-1]
}

func (e *escaped) Set(text string) error {
	var b []byte
	for text != "" {
		r, multibyte, tail, err := strconv.UnquoteChar(text, 0)
		switch {
		case err != nil:
			return errors.New(`must be a text in which \ begins an escape such as \n, \t or \\`)
		case multibyte:
			b = utf8.AppendRune(b, r)
		default:
			b = append(b, byte(r))
		}
		text = tail
	}
	*e = escaped(b)
	return nil
}

// list is a flag with commas between its values, or given more than once.
type list struct {
	to    *[]string
	given bool
}

func (l *list) String() string {
	if l.to == nil { // package flag asks an empty one
		return ""
	}
	return strings.Join(*l.to, ",")
}

func (l *list) Set(text string) error {
	if !l.given { // in the place of what the settings have
		*l.to, l.given = nil, true
	}
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" {
			return errors.New("must be names with commas between")
		}
		*l.to = append(*l.to, name)
	}
	return nil
}

func flags(errOut io.Writer, s *settings, c *command) *flag.FlagSet {
	f := flag.NewFlagSet("train", flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		fmt.Fprint(errOut, usage)
		f.PrintDefaults()
	}
	define(f, s, c)
	return f
}

// complete fills in what follows from other values, and checks the rest.
func (s *settings) complete() error {
	m := &s.Model
	if m.KVHeads == 0 {
		m.KVHeads = m.Heads
	}
	if m.FFN == 0 {
		m.FFN = 4 * m.Dim
	}
	if s.LoRA.Alpha == 0 {
		s.LoRA.Alpha = 2 * float64(s.LoRA.Rank)
	}
	const most = 1 << 20
	for _, x := range []struct {
		flag           string
		v, least, most int
	}{
		{"layers", m.Layers, 1, 1 << 16}, {"dim", m.Dim, 1, most}, {"heads", m.Heads, 1, most}, {"kv-heads", m.KVHeads, 1, most}, {"ffn", m.FFN, 1, most},
		{"config: model.vocab", m.Vocab, 1, most}, {"workers", s.Workers, 0, native.MostWorkers},
	} {
		if x.v < x.least || x.v > x.most {
			return fmt.Errorf("-%s: must be %d to %d, got %d", x.flag, x.least, x.most, x.v)
		}
	}
	switch {
	case s.Train.EarlyStop > 0 && s.Validation == 0:
		return errors.New("-early-stop: needs evaluations, a validation above 0")
	case s.Separator != "" && !s.Pack:
		return errors.New("-document-separator: needs -pack")
	case s.Text == "":
		return errors.New("-text: a text, a file of token ids, or a folder of them is required")
	case m.Dim%m.Heads != 0:
		return fmt.Errorf("-dim: must be a multiple of -heads %d, got %d", m.Heads, m.Dim)
	case m.Dim/m.Heads%2 != 0:
		return fmt.Errorf("-dim: must be an even number for each of the %d -heads, got %d", m.Heads, m.Dim/m.Heads)
	case m.Heads%m.KVHeads != 0:
		return fmt.Errorf("-kv-heads: must divide -heads %d, got %d", m.Heads, m.KVHeads)
	case !(m.NormEps > 0):
		return fmt.Errorf("-config: model.norm_eps: must be above 0, got %g", m.NormEps)
	case !(m.RopeTheta > 0):
		return fmt.Errorf("-config: model.rope_theta: must be above 0, got %g", m.RopeTheta)
	case s.FP8 != "" && recipes[s.FP8] == nil:
		return fmt.Errorf("-fp8: must be dynamic or delayed, got %q", s.FP8)
	case s.LoRA.Rank < 0 || s.LoRA.Rank > 1<<16:
		return fmt.Errorf("-lora-rank: must be 0 to 65536, got %d", s.LoRA.Rank)
	case !(s.LoRA.Alpha >= 0) || math.IsInf(s.LoRA.Alpha, 0):
		return fmt.Errorf("-lora-alpha: must be 0 or more, got %g", s.LoRA.Alpha)
	case s.LoRA.Rank > 0 && s.From == "":
		return errors.New("-lora-rank: needs -init")
	case s.LoRA.Rank > 0 && s.FP8 != "":
		return errors.New("-fp8: cannot be given with -lora-rank")
	case s.LoRA.Rank == 0 && s.LoRA.Alpha != 0:
		return errors.New("-lora-alpha: needs -lora-rank")
	case s.LoRA.Rank == 0 && s.LoRA.Targets != nil:
		return errors.New("-lora-targets: needs -lora-rank")
	case s.LoRA.Rank == 0 && s.Merge:
		return errors.New("-merge: needs -lora-rank")
	}
	return flagged(s.Train.Check())
}

// recipes are the values of -fp8.
var recipes = map[string]autocast.Recipe{"dynamic": autocast.Dynamic{}, "delayed": autocast.Delayed{History: 16}}

// flagOf names the flags of options; the others stand in the config alone.
var flagOf = map[string]string{
	"steps": "steps", "batch": "batch", "context": "context", "accumulate": "accumulate", "compute": "compute", "dropout": "dropout",
	"lr": "lr", "warmup": "warmup", "eval_every": "eval-every", "early_stop": "early-stop", "save_every": "save-every", "keep": "keep",
	"separator": "document-separator",
}

// flagged turns the name of an option into that of its flag.
func flagged(err error) error {
	var oe *train.OptionError
	if !errors.As(err, &oe) {
		return err
	}
	name, ok := flagOf[oe.Field]
	if !ok {
		name = "config: " + oe.Field
	}
	return fmt.Errorf("-%s: must be %s, got %s", name, oe.Need, oe.Got)
}

const runName = "run.json"

// keep writes the settings into the folder of the run.
func (s settings) keep() error {
	path := filepath.Join(s.Out, runName)
	s.Out = "" // the folder may move
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return train.ReplaceFile(path, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

func readJSON(path string, v any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if string(bytes.TrimSpace(raw)) == "null" { // which the decoder takes for nothing said
		return fmt.Errorf("%s: must be an object, got null", path)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: must end after one object", path)
	}
	return nil
}

// config is the model of a new run.
func (s settings) config() models.Config {
	m := s.Model
	return models.Config{
		Type: "llama", Vocab: m.Vocab, Hidden: m.Dim, FFN: m.FFN, Layers: m.Layers,
		Heads: m.Heads, KVHeads: m.KVHeads, HeadDim: m.Dim / m.Heads,
		Context: s.Train.Context, NormEps: m.NormEps, RopeTheta: m.RopeTheta, Tied: m.Tied,
	}
}
