package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
)

// writer writes texts as they come, plain or as lines of JSON.
type writer struct {
	settings
	talk        *generate.Talk // of which the texts are turns
	tok         *tokenizer.Tokenizer
	out, errOut io.Writer
}

// timing counts the tokens of one text.
type timing struct {
	start       time.Time
	prompt, n   int
	first, last time.Duration // until the first token, until the latest
}

func (t *timing) tick() {
	t.n++
	t.last = time.Since(t.start)
	if t.n == 1 {
		t.first = t.last
	}
}

// promptRate is the prompt's tokens a second, the first token's draw included.
func (t *timing) promptRate() float64 { return rate(t.prompt, t.first) }

// decodeRate counts from the first token, after the prompt.
func (t *timing) decodeRate() float64 { return rate(t.n-1, t.last-t.first) }

func rate(n int, d time.Duration) float64 {
	if n < 1 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// write continues a prompt and returns the text. Besides the model's own, the
// text ends before the stop tokens.
func (w *writer) write(ctx context.Context, ids, stop []int32) (string, error) {
	t := timing{start: time.Now(), prompt: len(ids)}
	var text strings.Builder
	end := ""
	for token, err := range w.talk.Text(ctx, w.tok, ids, generate.TextOptions{Sampling: w.sampling, Max: w.n, Stop: w.stops, StopTokens: stop}) {
		if errors.Is(err, generate.ErrContextFull) {
			err = fmt.Errorf("-context: %w", err)
		}
		if err != nil {
			end = "error"
			if ctx.Err() != nil {
				end = "interrupted"
			}
			return text.String(), w.finish(&t, end, err)
		}
		if token.ID >= 0 {
			t.tick()
		}
		text.WriteString(token.Text)
		if w.json {
			line := map[string]any{"token": token.ID, "text": token.Text, "tokens_per_s": t.decodeRate()}
			if w.logprobs {
				line["logprob"] = token.Logprob
			}
			err = w.line(line)
		} else {
			_, err = io.WriteString(w.out, token.Text)
		}
		if err != nil {
			return text.String(), err
		}
		end = token.End
	}
	return text.String(), w.finish(&t, end, nil)
}

// finish ends a text with its summary and gives err back.
func (w *writer) finish(t *timing, end string, err error) error {
	if w.json {
		summary := map[string]any{
			"summary": true, "tokens": t.n, "prompt_tokens": t.prompt, "prompt_ms": t.first.Seconds() * 1e3,
			"prompt_tokens_per_s": t.promptRate(), "tokens_per_s": t.decodeRate(), "end": end,
		}
		if lineErr := w.line(summary); err == nil {
			err = lineErr
		}
		return err
	}
	fmt.Fprintln(w.out)
	if t.n > 0 {
		fmt.Fprintf(w.errOut, "[prompt %d tokens, %.0f tokens/s; %d tokens, %.1f tokens/s; %s]\n", t.prompt, t.promptRate(), t.n, t.decodeRate(), end)
	}
	return err
}

func (w *writer) line(v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		_, err = fmt.Fprintf(w.out, "%s\n", b)
	}
	return err
}
