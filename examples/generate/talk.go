package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer/chat"
)

// talk reads messages and answers them until the input ends.
func talk(ctx context.Context, w *writer, m *models.Opened, in io.Reader) error {
	template, err := generate.Template(m)
	if err != nil {
		return fmt.Errorf("-chat: %w", err)
	}
	stop := slices.Clone(m.Config.EOS)
	for _, id := range m.Tokenizer.Special().Stop {
		if !slices.Contains(stop, id) {
			stop = append(stop, id)
		}
	}
	var turns []chat.Message
	if w.system != "" {
		turns = append(turns, chat.Message{Role: "system", Content: w.system})
	}
	lines := readLines(in)
	var failed error
	next := func() (string, bool) {
		if !w.json {
			fmt.Fprint(w.out, "> ")
		}
		select {
		case line, ok := <-lines:
			failed = line.err
			return line.text, ok && failed == nil
		case <-ctx.Done():
			return "", false
		}
	}
	said, ok := w.prompt, true
	if said == "" {
		said, ok = next()
	} else if !w.json {
		fmt.Fprintf(w.out, "> %s\n", said)
	}
	for ; ok; said, ok = next() {
		if strings.TrimSpace(said) == "" {
			continue
		}
		turns = append(turns, chat.Message{Role: "user", Content: said})
		ids, err := template.Encode(m.Tokenizer, turns, chat.Options{AddGenerationPrompt: true})
		if err != nil {
			return fmt.Errorf("-chat: %w", err)
		}
		giveBack()
		answer, err := w.write(ctx, ids, stop)
		if err != nil {
			return err
		}
		turns = append(turns, chat.Message{Role: "assistant", Content: answer})
	}
	if !w.json {
		fmt.Fprintln(w.out)
	}
	if failed != nil {
		return fmt.Errorf("-chat: the input: %w", failed)
	}
	return nil
}

// line is a line of the input, or why there are no more.
type line struct {
	text string
	err  error
}

const maxLine = 1 << 20

// readLines reads in the background, so that an interrupt ends a wait for
// input.
func readLines(in io.Reader) <-chan line {
	lines := make(chan line)
	go func() {
		defer close(lines)
		s := bufio.NewScanner(in)
		s.Buffer(nil, maxLine)
		for s.Scan() {
			lines <- line{text: s.Text()}
		}
		err := s.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("a line must be shorter than %d bytes", maxLine)
		}
		if err != nil {
			lines <- line{err: err}
		}
	}()
	return lines
}
