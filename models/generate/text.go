package generate

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/seafan/seafan/models/tokenizer"
)

// TextOptions say how a text is written and where it ends.
type TextOptions struct {
	Sampling
	Max        int      // most tokens; 0: until the context is full
	Stop       []string // the text ends before the one of these that is complete first; empty ones count for nothing
	StopTokens []int32  // the text ends before these tokens; nil: the model's end-of-sequence
	IgnoreEnd  bool     // StopTokens nil means none
}

// Token is a step of a text. Text is what became certain with it: whole
// characters only, and nothing that may be the beginning of a stop string.
type Token struct {
	ID      int32
	Text    string
	Logprob float64 // of the token by the model, where Options.Logprobs asks
	End     string  // why the text ends with this token: "stop", "length" or "context"; else empty
}

// Text continues a prompt and yields the tokens as they come. A full context
// ends the text with a last Token of End "context", not with an error; the
// caller's context ends it with its error. Leaving the loop ends the request.
func (s *Session) Text(ctx context.Context, t *tokenizer.Tokenizer, prompt []int32, o TextOptions) iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		talk := Talk{session: s}
		defer talk.Close()
		talk.Text(ctx, t, prompt, o)(yield)
	}
}

// Talk writes texts one after the other whose prompts begin alike, the turns of a
// chat: what was read for one is not read again for the next.
type Talk struct {
	session *Session
	request *Request // of the latest text; nil: none yet
}

// Talk starts one. It holds a request of the session until Close.
func (s *Session) Talk() *Talk { return &Talk{session: s} }

// Close ends the talk.
func (k *Talk) Close() {
	if k.request != nil {
		k.session.Remove(k.request)
		k.request = nil
	}
}

// Text is Session.Text with a prompt that follows what was read and written
// before. Texts of a talk are written one at a time.
func (k *Talk) Text(ctx context.Context, t *tokenizer.Tokenizer, prompt []int32, o TextOptions) iter.Seq2[Token, error] {
	s := k.session
	return func(yield func(Token, error) bool) {
		if o.Max < 0 {
			yield(Token{}, &ParamError{"Max", o.Max, "0 (no limit) or above"})
			return
		}
		if t == nil || t.VocabSize() == 0 {
			yield(Token{}, errors.New("generate: the tokenizer is missing (nil or empty)"))
			return
		}
		r, err := s.Follow(k.request, prompt, o.Sampling)
		if err != nil {
			yield(Token{}, err)
			return
		}
		k.request = r
		ends := o.StopTokens
		if ends == nil && !o.IgnoreEnd {
			ends = s.eos
		}
		w := writer{stream: t.Stream(true), stop: o.Stop}
		for n := 1; ; n++ {
			id, err := r.Next(ctx)
			switch {
			case errors.Is(err, ErrContextFull):
				yield(Token{ID: -1, Text: w.flush(), End: "context"}, nil)
				return
			case err != nil:
				yield(Token{}, err)
				return
			case slices.Contains(ends, id):
				yield(Token{ID: id, Text: w.flush(), Logprob: r.Logprob(), End: "stop"}, nil)
				return
			}
			text, stopped := w.push(id)
			switch {
			case stopped:
				yield(Token{ID: id, Text: text, Logprob: r.Logprob(), End: "stop"}, nil)
				return
			case n == o.Max:
				yield(Token{ID: id, Text: text + w.flush(), Logprob: r.Logprob(), End: "length"}, nil)
				return
			}
			if !yield(Token{ID: id, Text: text, Logprob: r.Logprob()}, nil) {
				return
			}
		}
	}
}

// writer turns tokens into text and holds back what may belong to a stop
// string.
type writer struct {
	stream *tokenizer.Stream
	stop   []string
	held   string
}

func (w *writer) push(id int32) (text string, stopped bool) {
	return w.add(w.stream.Push(id))
}

func (w *writer) add(more string) (text string, stopped bool) {
	w.held += more
	if at, found := w.find(); found {
		text = w.held[:at]
		w.held = ""
		return text, true
	}
	keep := 0
	for _, s := range w.stop {
		for n := min(len(s)-1, len(w.held)); n > keep; n-- {
			if strings.HasSuffix(w.held, s[:n]) {
				keep = n
			}
		}
	}
	text, w.held = w.held[:len(w.held)-keep], w.held[len(w.held)-keep:]
	return text, false
}

// find is the place of the stop string that is complete first, of several that
// end together the longest: however the tokens cut the text, it ends at one
// place.
func (w *writer) find() (at int, found bool) {
	end := 0
	for _, s := range w.stop {
		i := strings.Index(w.held, s)
		if s == "" || i < 0 {
			continue
		}
		if e := i + len(s); !found || e < end || e == end && i < at {
			at, end, found = i, e, true
		}
	}
	return at, found
}

// flush is what was held back, at the end of the text.
func (w *writer) flush() string {
	w.held += w.stream.Flush()
	text := w.held
	if at, found := w.find(); found {
		text = text[:at]
	}
	w.held = ""
	return text
}
