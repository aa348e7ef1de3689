// Command train trains a language model on a text.
//
//	go run ./examples/train -text book.txt -out runs/book
//	go run ./examples/train -text book.txt -out runs/book -resume
//	go run ./examples/train -init DIR -text book.txt -out runs/tuned -lora-rank 8
//
// A new model reads bytes, so that any text will do; it is written as a Hugging
// Face folder of type llama. -init goes on from a checkpoint, as a whole or with
// adapters. -h lists the flags.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops/native"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop() // a second signal ends the process
		fmt.Fprintln(os.Stderr, "\ntrain: stopping after this step; again to end at once")
	})
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var interrupted *train.Interrupted
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &interrupted):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "train:", strings.TrimPrefix(err.Error(), "train: "))
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer, errOut *os.File) error {
	s, c, err := parse(args, errOut)
	if err != nil {
		return err
	}
	native.SetWorkers(s.Workers)
	folder, err := s.claim(c)
	if err != nil {
		return err
	}
	defer folder.Close() // it only lets go
	from, err := s.start()
	if err != nil {
		return err
	}
	defer from.Close() // only read
	tokens, data, err := s.data(from.encoder, from.Config.Vocab)
	if err != nil {
		if f := flagged(err); f != err {
			return f
		}
		return fmt.Errorf("-text: %w", err)
	}
	defer tokens.Close()
	trained := from.trained
	if s.FP8 != "" {
		trained = autocast.Train(trained, autocast.Options{Recipe: recipes[s.FP8]})
	}
	t, err := train.New(trained, data, s.Train, report(c, folder, out, errOut)...)
	if err != nil {
		return err
	}
	if m, ok := trained.(*autocast.Model); ok && !c.json {
		fmt.Fprint(errOut, m.Report().Explain())
	}
	if c.resume {
		switch err := t.Resume(); {
		case errors.Is(err, train.ErrNoCheckpoint):
			// Its run.json, if any, was read as the settings of a run that did
			// not come far.
			if err := folder.Fresh(); err != nil {
				return fmt.Errorf("-out: %w", err)
			}
			fmt.Fprintf(errOut, "train: %s has no checkpoint yet: starting\n", s.Out)
		case err != nil:
			return err
		}
	}
	if err := s.keep(); err != nil {
		return fmt.Errorf("-out: must be a folder that can be written to: %w", err)
	}
	if from.unsaved != nil {
		fmt.Fprintf(errOut, "train: the tokenizer of %s is not written into the folders of models, put a tokenizer.json there: %v\n", s.From, from.unsaved)
	}
	if from.sight > 0 {
		fmt.Fprintf(errOut, "train: -init %s: text alone, %d tensors of the part that sees images are left out\n", s.From, from.sight)
	}
	if !c.json {
		fmt.Fprintf(errOut, "train: products %s, matrix kernel %s\n", t.Compute(), native.GemmKernel())
	}
	begin := t.Step()
	sum, err := t.Run(ctx)
	if err := finish(c, s, begin, sum, err, out); err != nil || !s.Merge {
		return err
	}
	merged, err := s.merge(result(sum))
	if err != nil {
		return fmt.Errorf("-merge: %w", err)
	}
	if !c.json {
		_, err = fmt.Fprintf(out, "merged model in %s\n", merged)
	}
	return err
}

// claim holds the folder of the run. A new run must not write over another, or
// over anything else.
func (s settings) claim(c command) (*train.Folder, error) {
	if info, err := os.Stat(s.Out); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("-out: must be a folder, %s is a file", s.Out)
	}
	folder, err := train.Claim(s.Out)
	if err != nil {
		return nil, fmt.Errorf("-out: %w", err)
	}
	if c.resume {
		return folder, nil
	}
	dir, err := train.Latest(s.Out)
	switch {
	case err == nil:
		err = fmt.Errorf("%s holds a run, with checkpoint %s: add -resume to go on, or choose another folder", s.Out, filepath.Base(dir))
	case errors.Is(err, train.ErrNoCheckpoint):
		err = folder.Fresh()
		path := filepath.Join(s.Out, runName)
		if _, is := os.Lstat(path); err == nil && !errors.Is(is, fs.ErrNotExist) {
			err = fmt.Errorf("%s is there, but no checkpoint: add -resume if it is of a run that ended before its first, or choose another folder", path)
		}
		path = filepath.Join(s.Out, mergedName)
		if _, is := os.Lstat(path); err == nil && s.LoRA.Rank != 0 && !errors.Is(is, fs.ErrNotExist) {
			err = fmt.Errorf("%s is there, but no checkpoint of a run: a new run needs a folder without it", path)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("-out: %w", err), folder.Close())
	}
	return folder, nil
}

// data opens the text and cuts it into rows.
func (s settings) data(encoder train.Encoder, vocab int) (*train.Tokens, train.Data, error) {
	o := train.OpenOptions{Encoder: encoder, Cache: s.Out}
	if s.Pack {
		o.Separator = s.Separator
		info, err := os.Stat(s.Text)
		if err != nil {
			return nil, nil, err
		}
		if o.Separator == "" && !info.IsDir() {
			o.Separator = blankLine
		}
	}
	tokens, err := train.Open(o, s.Text)
	if err != nil {
		return nil, nil, err
	}
	w := train.WindowOptions{Context: s.Train.Context, Seed: s.Train.Seed, Order: s.Order, Validation: s.Validation}
	var data train.Data
	if s.Pack {
		data, err = train.NewDocuments(tokens, vocab, w)
	} else {
		data, err = train.NewWindows(tokens, vocab, w)
	}
	if err != nil {
		return nil, nil, errors.Join(err, tokens.Close())
	}
	return tokens, data, nil
}

// blankLine ends the documents of a single text, unless a flag says what does.
const blankLine = "\n\n"

// report says where the progress of a run is shown: as JSON lines, as a bar on
// a terminal, else in a log.
func report(c command, folder *train.Folder, out io.Writer, errOut *os.File) []train.Setting {
	rs := []train.Setting{train.In(folder)}
	level := slog.LevelInfo
	if c.json {
		enc := json.NewEncoder(out)
		rs = append(rs, train.Each(func(m train.Metric) { _ = enc.Encode(m) })) // nobody reads: the files have it too
		level = slog.LevelWarn
	} else if term.IsTerminal(int(errOut.Fd())) {
		rs = append(rs, train.Progress(errOut))
		level = slog.LevelWarn
	}
	return append(rs, train.Log(slog.New(slog.NewTextHandler(errOut, &slog.HandlerOptions{Level: level}))))
}

// finish tells the outcome of a run that began after step begin.
func finish(c command, s settings, begin int, sum train.Summary, err error, out io.Writer) error {
	var interrupted *train.Interrupted
	stopped := errors.As(err, &interrupted)
	if err != nil && !stopped {
		return err
	}
	if c.json {
		if err := json.NewEncoder(out).Encode(sum); err != nil {
			return err
		}
	}
	switch {
	case stopped:
		return fmt.Errorf("%w; resume with\n  go run ./examples/train -out %s -resume", err, s.Out)
	case c.json:
		return nil
	}
	if fmt.Fprintf(out, "%d steps, %d tokens, ", sum.Steps, sum.Tokens); sum.Steps == begin {
		fmt.Fprint(out, "nothing was left to do")
	} else {
		fmt.Fprintf(out, "%.0f tokens/s, %s", sum.TokensPerS, time.Duration(sum.Seconds*float64(time.Second)).Round(time.Second))
	}
	fmt.Fprintf(out, "\nloss %.4f", sum.Loss)
	if sum.ValLoss != nil {
		fmt.Fprintf(out, ", held out %.4f, best %.4f at step %d", *sum.ValLoss, *sum.BestLoss, sum.BestStep)
	}
	link, kind := train.LastName, "model"
	if sum.BestLoss != nil {
		link = train.BestName
	}
	if s.LoRA.Rank > 0 {
		kind = "adapter"
	}
	_, err = fmt.Fprintf(out, "\n%s in %s\n", kind, linked(filepath.Join(s.Out, link), result(sum)))
	return err
}

// result is the checkpoint that a run is for.
func result(sum train.Summary) string {
	if sum.BestLoss != nil {
		return sum.Best
	}
	return sum.Checkpoint
}

// linked is the link if it leads to the folder dir, which it may not where the
// system has no links or something else is in its place; else it is dir.
func linked(link, dir string) string {
	at, err := os.Stat(link)
	if err != nil {
		return dir
	}
	if to, err := os.Stat(dir); err != nil || !os.SameFile(at, to) {
		return dir
	}
	return link
}
