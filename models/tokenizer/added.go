// Added tokens: strings that are found in a text before anything else looks at
// it.

package tokenizer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is one entry of added_tokens.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only between characters that are no word
	LStrip     bool   `json:"lstrip"`      // takes the white space before it
	RStrip     bool   `json:"rstrip"`      // and after it
	Normalized bool   `json:"normalized"`  // is looked for in normalized text
	Special    bool   `json:"special"`
}

type addedFlags uint8

const (
	singleWord addedFlags = 1 << iota
	leftStrip
	rightStrip
	normalizedToken
	specialToken
	resolvedToken // its id is known
	someSpecial   // it is special, or another with its text is
)

func (a *addedToken) flags() (f addedFlags) {
	for flag, set := range map[addedFlags]bool{singleWord: a.SingleWord, leftStrip: a.LStrip, rightStrip: a.RStrip, normalizedToken: a.Normalized, specialToken: a.Special} {
		if set {
			f |= flag
		}
	}
	return f
}

// entries are texts with ids and flags; places are those in the list.
type entries struct {
	texts blob
	list  []addedEntry
}

type addedEntry struct {
	at    uint32 // of the text
	id    int32
	flags addedFlags
}

func (e *entries) text(place uint32) string      { return e.texts.text(e.list[place].at) }
func (e *entries) id(place uint32) int32         { return e.list[place].id }
func (e *entries) flags(place uint32) addedFlags { return e.list[place].flags }

// added are the tokens of added_tokens, as they are written and as they are
// looked for in normalized text.
type added struct {
	written, normal entries
	names           *sorted // of written; nil: there are none
	shown           []shownToken
	more            int // ids that the model has not
}

// shownToken is what an id is shown as.
type shownToken struct {
	id      int32
	place   uint32
	normal  bool // else written
	special bool
}

func (a *added) find(text string) (int32, bool) {
	if a.names == nil {
		return 0, false
	}
	return a.names.find(text)
}

// of is the added token of an id, nil for none.
func (a *added) of(id int32) *shownToken {
	if n := len(a.shown); n == 0 || id < a.shown[0].id || id > a.shown[n-1].id {
		return nil
	}
	i, ok := slices.BinarySearchFunc(a.shown, id, func(x shownToken, id int32) int { return cmp.Compare(x.id, id) })
	if !ok {
		return nil
	}
	return &a.shown[i]
}

func (a *added) text(t *shownToken) string {
	if t.normal {
		return a.normal.text(t.place)
	}
	return a.written.text(t.place)
}

// normalizedSlack is how many bytes more than their entries in the file the
// texts of added tokens may take once they are normalized.
const normalizedSlack = 1 << 14

// addTokens reads added_tokens into the vocabulary and the encoder. A token that
// the model has keeps the model's id; one that is there twice has its first one.
func (t *Tokenizer) addTokens(p *pipeline, raw []byte) error {
	if isNull(raw) {
		return nil
	}
	count, normalized, size := 0, 0, 0
	each := func(yield func(token *addedToken)) error {
		return elements(raw, func(value []byte) error {
			token, err := readAdded(value)
			if err != nil || token.Content == "" {
				return err
			}
			if token.ID < 0 || token.ID == math.MaxInt32 {
				return fmt.Errorf("%q: id %d is out of range", token.Content, token.ID)
			}
			yield(&token)
			return nil
		})
	}
	err := each(func(token *addedToken) {
		count++
		if token.Normalized {
			normalized++
		}
		size += len(token.Content) + numberSize(len(token.Content)) + 1
	})
	if err != nil || count == 0 {
		return err
	}
	a := &t.vocab.added
	var texts strings.Builder
	texts.Grow(size)
	a.written.list = make([]addedEntry, 0, count)
	if err := each(func(token *addedToken) {
		a.written.list = append(a.written.list, addedEntry{uint32(texts.Len()), token.ID, token.flags()})
		putToken(&texts, []byte(token.Content), 0)
	}); err != nil {
		return err
	}
	a.written.texts = blob(texts.String())
	a.names = sortedOf(&a.written, places(count, func(uint32) bool { return true }))
	for place := range a.written.list {
		e := &a.written.list[place]
		last, _ := a.names.place(a.written.text(uint32(place)))
		same := &a.written.list[last] // it speaks for all of this text
		if same.flags&resolvedToken == 0 {
			same.flags |= resolvedToken
			if id, ok := t.vocab.find(a.written.text(last)); ok {
				same.id = id
			} else {
				same.id = e.id
			}
		}
		e.id = same.id
		if e.flags&specialToken != 0 {
			same.flags |= someSpecial
		}
	}
	if err := t.showAdded(p, normalized, len(raw)+normalizedSlack); err != nil {
		return err
	}
	plain := func(place uint32) bool { return a.written.flags(place)&normalizedToken == 0 }
	p.added = newAddedMatcher(&a.written, places(count, plain))
	p.addedNormalized = newAddedMatcher(&a.normal, places(len(a.normal.list), func(place uint32) bool { return a.normal.text(place) != "" }))
	return nil
}

// readAdded reads a token, its content in place.
func readAdded(raw []byte) (token addedToken, err error) {
	err = members(raw, func(key, value []byte) error {
		name, err := unquoted(key)
		if err != nil || isNull(value) {
			return err
		}
		for _, flag := range [...]struct {
			name string
			to   *bool
		}{
			{"single_word", &token.SingleWord}, {"lstrip", &token.LStrip}, {"rstrip", &token.RStrip},
			{"normalized", &token.Normalized}, {"special", &token.Special},
		} {
			if strings.EqualFold(view(name), flag.name) {
				if *flag.to = string(value) == "true"; !*flag.to && string(value) != "false" {
					return json.Unmarshal(value, new(bool)) // says what is wrong
				}
				return nil
			}
		}
		switch {
		case strings.EqualFold(view(name), "id"):
			token.ID, err = readID(value)
		case strings.EqualFold(view(name), "content"):
			var content []byte
			content, err = unquoted(value)
			token.Content = view(content)
		}
		return err
	})
	return token, err
}

// showAdded sets what the ids of added tokens are shown as, and normalizes those
// that are looked for in normalized text, into room bytes.
func (t *Tokenizer) showAdded(p *pipeline, normalized, room int) error {
	a := &t.vocab.added
	a.shown = make([]shownToken, 0, len(a.written.list)+normalized)
	a.normal.list = make([]addedEntry, 0, normalized)
	var texts strings.Builder
	for place, e := range a.written.list {
		special := e.flags&specialToken != 0
		a.shown = append(a.shown, shownToken{e.id, uint32(place), false, special})
		if e.flags&normalizedToken == 0 {
			continue
		}
		text := a.written.text(uint32(place))
		if p.normalizer != nil {
			normal, _, err := p.normalizer.normalize(text, true)
			if err != nil {
				return fmt.Errorf("%q: %w", text, err)
			}
			text = normal
			if room -= len(text); room < 0 {
				return fmt.Errorf("normalized they take more than the file: the last is %q", shortened([]byte(text)))
			}
			// It is left out by how it is shown.
			same, ok := a.names.place(text)
			special = ok && a.written.flags(same)&someSpecial != 0
			a.shown = append(a.shown, shownToken{e.id, uint32(len(a.normal.list)), true, special})
		}
		a.normal.list = append(a.normal.list, addedEntry{uint32(texts.Len()), e.id, e.flags})
		putToken(&texts, []byte(text), 0)
	}
	a.normal.texts = blob(texts.String())
	slices.SortStableFunc(a.shown, func(x, y shownToken) int { return cmp.Compare(x.id, y.id) })
	special := false
	kept := a.shown[:0]
	for i, x := range a.shown {
		if i == 0 || a.shown[i-1].id != x.id {
			special = false
		}
		special = x.special || !x.normal && special
		if i+1 == len(a.shown) || a.shown[i+1].id != x.id {
			x.special = special
			kept = append(kept, x)
		}
	}
	a.shown = kept
	for _, x := range a.shown {
		if _, ok := t.vocab.own(x.id); !ok {
			a.more++
		}
	}
	return nil
}

// places are those of n for which keep holds.
func places(n int, keep func(place uint32) bool) []uint32 {
	kept := 0
	for place := range uint32(n) {
		if keep(place) {
			kept++
		}
	}
	all := make([]uint32, 0, kept)
	for place := range uint32(n) {
		if keep(place) {
			all = append(all, place)
		}
	}
	return all
}

// addedMatcher finds added tokens: the leftmost, and of those the longest.
type addedMatcher struct {
	tokens addedTexts
	sorted *sorted
	only   int // the one byte that starts every token, or -1
}

type addedTexts interface {
	tokens
	flags(place uint32) addedFlags
}

// newAddedMatcher is nil for no tokens; it keeps the list.
func newAddedMatcher(t addedTexts, places []uint32) *addedMatcher {
	if len(places) == 0 {
		return nil
	}
	m := &addedMatcher{tokens: t, sorted: sortedOf(t, places), only: -1}
	if c := t.text(m.sorted.order[0])[0]; m.starts(c) == len(m.sorted.order) {
		m.only = int(c)
	}
	return m
}

// starts counts the tokens that start with a byte.
func (m *addedMatcher) starts(c byte) int { return int(m.sorted.first[int(c)+1] - m.sorted.first[c]) }

// find returns the next token at or after from; !ok: none.
func (m *addedMatcher) find(text string, from int) (place uint32, start, end int, ok bool) {
	for i := from; i < len(text); i++ {
		if m.only >= 0 {
			n := strings.IndexByte(text[i:], byte(m.only))
			if n < 0 {
				break
			}
			i += n
		} else if m.starts(text[i]) == 0 {
			continue
		}
		if place, n := m.longest(text[i:]); n > 0 {
			return place, i, i + n, true
		}
	}
	return 0, 0, 0, false
}

// longest returns the longest token that text starts with; n 0: none.
func (m *addedMatcher) longest(text string) (place uint32, n int) {
	from, to := uint32(0), uint32(len(m.sorted.order))
	for i := range len(text) {
		if from, to = m.sorted.narrow(from, to, i, text[i]); from == to {
			break
		}
		// The token that is all that the range has in common is its first.
		if first := m.sorted.order[from]; len(m.tokens.text(first)) == i+1 {
			place, n = first, i+1
		}
	}
	return place, n
}

// walk calls token for each added token of text and plain for each stretch
// between them that is not empty. skipSpecial leaves special tokens in the
// plain text. A nil matcher finds nothing.
func (m *addedMatcher) walk(text string, skipSpecial bool, plain func(from, to int) error, token func(id int32)) error {
	done := 0
	for from := 0; m != nil; {
		place, start, end, ok := m.find(text, from)
		if !ok {
			break
		}
		from = end
		flags := m.tokens.flags(place)
		if skipSpecial && flags&specialToken != 0 || flags&singleWord != 0 && !standsAlone(text, start, end) {
			continue
		}
		if flags&leftStrip != 0 {
			start = done + len(strings.TrimRightFunc(text[min(done, start):start], unicode.IsSpace))
		}
		if flags&rightStrip != 0 {
			end = len(text) - len(strings.TrimLeftFunc(text[max(done, end):], unicode.IsSpace))
		}
		if done < start {
			if err := plain(done, start); err != nil {
				return err
			}
		}
		if start < end { // else the white space that it is went to the one before it
			token(m.tokens.id(place))
		}
		done = end
	}
	if done < len(text) {
		return plain(done, len(text))
	}
	return nil
}

func standsAlone(text string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[end:])
	return (start == 0 || !isWord(before)) && (end == len(text) || !isWord(after))
}
