// Pre-tokenizers of tokenizer.json: they cut normalized text into the words
// that the model encodes one by one.

package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
)

// pieceFunc takes a piece of text; atStart: it starts where the input does.
type pieceFunc func(text string, atStart bool) error

// preTokenizer cuts text, which is not empty, and emits the pieces, none of
// them empty.
type preTokenizer interface {
	cut(text string, atStart bool, emit pieceFunc) error
}

// scanned cuts by a hand-written pattern.
type scanned struct{ next scanner }

func (p scanned) cut(text string, atStart bool, emit pieceFunc) error {
	t := lowClasses()
	for len(text) > 0 {
		n := p.next(t, text)
		if err := emit(text[:n], atStart); err != nil {
			return err
		}
		text, atStart = text[n:], false
	}
	return nil
}

// behavior says what becomes of the matches of a pattern.
type behavior string

const (
	isolated           behavior = "Isolated"           // a piece each
	removed            behavior = "Removed"            // dropped
	contiguous         behavior = "Contiguous"         // neighbours are one piece
	mergedWithPrevious behavior = "MergedWithPrevious" // end the piece before
	mergedWithNext     behavior = "MergedWithNext"     // start the piece after
)

func (b behavior) valid() error {
	switch b {
	case isolated, removed, contiguous, mergedWithPrevious, mergedWithNext:
		return nil
	}
	return fmt.Errorf("behavior %q is unknown: required Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext", string(b))
}

// matched cuts at the matches of a pattern, or with invert at what lies
// between them.
type matched struct {
	pattern  matcher
	behavior behavior
	invert   bool
}

func (p matched) cut(text string, atStart bool, emit pieceFunc) error {
	j := joiner{behavior: p.behavior, text: text, atStart: atStart, emit: emit}
	end := 0
	err := p.pattern.matches(text, func(from, to int) error {
		if from > end {
			if err := j.add(end, from, p.invert); err != nil {
				return err
			}
		}
		end = to
		return j.add(from, to, !p.invert)
	})
	if err == nil && end < len(text) {
		err = j.add(end, len(text), p.invert)
	}
	if err != nil {
		return err
	}
	return j.flush()
}

// joiner makes pieces of matches and of the stretches between them. It holds
// one piece back that the next stretch may extend.
type joiner struct {
	behavior  behavior
	text      string
	atStart   bool
	emit      pieceFunc
	from, to  int  // the held piece
	held      bool // there is one
	lastMatch bool // the last stretch was a match
}

func (j *joiner) add(from, to int, match bool) error {
	extends := false
	switch j.behavior {
	case removed:
		if match {
			return j.flush()
		}
	case contiguous:
		extends = match == j.lastMatch
	case mergedWithPrevious:
		extends = match && !j.lastMatch
	case mergedWithNext:
		extends = !match && j.lastMatch
	}
	j.lastMatch = match
	if j.held && extends {
		j.to = to
		return nil
	}
	err := j.flush()
	j.from, j.to, j.held = from, to, true
	return err
}

func (j *joiner) flush() error {
	if !j.held || j.from == j.to {
		return nil
	}
	j.held = false
	return j.emit(j.text[j.from:j.to], j.atStart && j.from == 0)
}

// byteLevel cuts by the GPT-2 pattern and spells bytes in the byte alphabet;
// raw leaves the spelling out, for a model that reads bytes.
type byteLevel struct {
	prefixSpace bool
	useRegex    bool
	raw         bool
}

func (p byteLevel) cut(text string, atStart bool, emit pieceFunc) error {
	if p.prefixSpace && text[0] != ' ' {
		text = " " + text
	}
	spell := emit
	if !p.raw {
		spell = func(text string, atStart bool) error { return emit(toAlphabet(text), atStart) }
	}
	if !p.useRegex {
		return spell(text, atStart)
	}
	return scanned{scanGPT2}.cut(text, atStart, spell)
}

type prependScheme string

const (
	prependAlways prependScheme = "always"
	prependFirst  prependScheme = "first"
	prependNever  prependScheme = "never"
)

// metaspace writes spaces as a mark, puts one in front, and cuts before each.
type metaspace struct {
	mark   string
	scheme prependScheme
	split  bool
}

func (p metaspace) cut(text string, atStart bool, emit pieceFunc) error {
	text = strings.ReplaceAll(text, " ", p.mark)
	if !strings.HasPrefix(text, p.mark) && (p.scheme == prependAlways || p.scheme == prependFirst && atStart) {
		text = p.mark + text
	}
	if !p.split {
		return emit(text, atStart)
	}
	return matched{literal(p.mark), mergedWithNext, false}.cut(text, atStart, emit)
}

// whitespaceSplit, digits and punctuation cut at single characters.
func whitespaceSplit() preTokenizer {
	return matched{pattern: charMatcher(unicode.IsSpace), behavior: removed}
}

func digits(individual bool) preTokenizer {
	b := contiguous
	if individual {
		b = isolated
	}
	return matched{pattern: charMatcher(unicode.IsNumber), behavior: b}
}
