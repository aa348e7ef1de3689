// Encoding and decoding as the SentencePiece library does it: on the whole
// text, with its own normalizer and without pre-tokenizer. Control tokens
// spelled out in a text are text.

package tokenizer

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// spaceMark stands for a space inside pieces.
const spaceMark = "▁"

// FromSentencePiece opens the contents of a SentencePiece model file, BPE or
// unigram.
func FromSentencePiece(data []byte) (*Tokenizer, error) {
	m, err := parseSPModel(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.model: %w", err)
	}
	t, err := m.tokenizer()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.model: %w", err)
	}
	return t, nil
}

func (m *spModel) tokenizer() (*Tokenizer, error) {
	t := &Tokenizer{vocab: listed(m.pieces), special: noSpecialIDs()}
	for i := range m.pieces {
		switch m.types[i] {
		case controlPiece:
			t.vocab.special[int32(i)] = true
		case unknownPiece:
			t.special.Unknown = int32(i)
			t.vocab.special[int32(i)] = true
		}
	}
	inside := func(id int32) int32 {
		if _, ok := t.vocab.token(id); ok {
			return id
		}
		return -1
	}
	t.special.BOS, t.special.EOS, t.special.Pad = inside(m.bos), inside(m.eos), inside(m.pad)
	t.addStop(t.special.EOS)
	e := &spEncoder{spModel: m, unknown: t.special.Unknown, before: roleIDs(t.special.BOS, true)}
	var user []addedToken
	for i, piece := range m.pieces {
		if m.types[i] == userPiece {
			user = append(user, addedToken{ID: int32(i), Content: piece})
		}
	}
	e.user = newAddedMatcher(user)
	if err := e.buildModel(); err != nil {
		return nil, err
	}
	t.enc = e
	t.decode = func(eager bool) []stage { return []stage{newSPStage(m)} }
	return t, nil
}

// spEncoder encodes a text as one word.
type spEncoder struct {
	*spModel
	unknown       int32
	user          *addedMatcher // user-defined pieces; nil: none
	model         model
	before, after []int32 // ids around the text with AddSpecial
	scratch       sync.Pool
}

func (e *spEncoder) surround(before, after []int32) { e.before, e.after = before, after }

func (e *spEncoder) buildModel() error {
	if e.unigram {
		return e.buildUnigram()
	}
	e.model = newScoredBPE(e.spModel, e.unknown)
	return nil
}

// buildUnigram gives user-defined pieces the score with which the library
// prefers them; the other scores are negative.
func (e *spEncoder) buildUnigram() error {
	c := unigramConfig{
		tokens:       e.pieces,
		scores:       make([]float64, len(e.pieces)),
		unknown:      e.unknown,
		byteFallback: e.byteFallback,
		skip:         make([]bool, len(e.pieces)),
		minScore:     math.MaxFloat32,
		float32Sums:  true,
		inTrie: func(id int) bool {
			switch e.types[id] {
			case normalPiece, userPiece, unusedPiece:
				return true
			}
			return false
		},
	}
	for i, score := range e.scores {
		c.scores[i] = float64(score)
		switch e.types[i] {
		case normalPiece:
			c.minScore = min(c.minScore, float64(score))
		case userPiece:
			c.scores[i] = -0.1
		case unusedPiece:
			c.skip[i] = true
		}
	}
	m, err := newUnigram(c)
	e.model = m
	return err
}

func (e *spEncoder) encode(dst []int32, text string, o EncodeOptions) ([]int32, error) {
	s, ok := e.scratch.Get().(*scratch)
	if !ok {
		s = &scratch{}
	}
	defer func() {
		s.trim()
		e.scratch.Put(s)
	}()
	if o.AddSpecial {
		dst = append(dst, e.before...)
	}
	user := e.user
	if e.unigram { // its user-defined pieces are in the model
		user = nil
	}
	text = e.normalize(text)
	err := user.walk(text, false, func(from, to int) (err error) {
		dst, err = e.model.appendWord(dst, text[from:to], s)
		return err
	}, func(id int32) { dst = append(dst, id) })
	if o.AddSpecial {
		dst = append(dst, e.after...)
	}
	return dst, err
}

// normalize maps characters, trims and escapes spaces, and adds the dummy
// prefix.
func (e *spEncoder) normalize(text string) string {
	if e.removeExtraSpace {
		for text != "" {
			mapped, n := e.normalizedPrefix(text)
			if mapped != " " {
				break
			}
			text = text[n:]
		}
	}
	if text == "" {
		return ""
	}
	space := " "
	if e.escapeSpace {
		space = spaceMark
	}
	var out strings.Builder
	out.Grow(len(text) + len(text)/2)
	if e.dummyPrefix && !e.whitespaceAsSuffix {
		out.WriteString(space)
	}
	afterSpace := e.removeExtraSpace
	for text != "" {
		mapped, n := e.normalizedPrefix(text)
		text = text[n:]
		if afterSpace {
			mapped = strings.TrimLeft(mapped, " ")
		}
		if mapped != "" {
			afterSpace = strings.HasSuffix(mapped, " ")
			if e.escapeSpace {
				mapped = strings.ReplaceAll(mapped, " ", space)
			}
			out.WriteString(mapped)
		}
		afterSpace = afterSpace && e.removeExtraSpace
	}
	normalized := out.String()
	if e.removeExtraSpace {
		for strings.HasSuffix(normalized, space) {
			normalized = strings.TrimSuffix(normalized, space)
		}
	}
	if e.dummyPrefix && e.whitespaceAsSuffix {
		normalized += space
	}
	return normalized
}

// normalizedPrefix returns what the first n bytes of text become.
func (e *spEncoder) normalizedPrefix(text string) (mapped string, n int) {
	if e.user != nil {
		if _, n := e.user.longest(text); n > 0 {
			return text[:n], n
		}
	}
	if e.charsMap != nil {
		if mapped, n := e.charsMap.lookup(text); n > 0 {
			return mapped, n
		}
	}
	r, n := utf8.DecodeRuneInString(text)
	if r == utf8.RuneError && n <= 1 {
		return replacement, 1
	}
	return text[:n], n
}

// scoredBPE merges the neighbours whose joined piece has the best score.
type scoredBPE struct {
	merger
	*spModel
	unknown   int32
	ids       *index
	single    *pairTable // the pieces of one character
	byteToken [256]int32
	adjacent  *pairTable
}

// newScoredBPE writes the scores as merge rules: a piece can be made of any
// two symbols that spell it, at the rank of its score. A character that is no
// piece is the symbol len(pieces) + character.
func newScoredBPE(m *spModel, unknown int32) *scoredBPE {
	b := &scoredBPE{merger: merger{newPairTable()}, spModel: m, unknown: unknown, ids: indexFor(len(m.pieces))}
	b.ids.tokens = m.pieces
	order := make([]int32, 0, len(m.pieces))
	for i, piece := range m.pieces {
		switch m.types[i] {
		case normalPiece, userPiece:
			b.ids.put(piece, int32(i))
			order = append(order, int32(i))
		case bytePiece:
			value, _ := byteOfToken(piece)
			b.byteToken[value] = int32(i)
		}
	}
	slices.SortStableFunc(order, func(x, y int32) int { return cmp.Compare(m.scores[y], m.scores[x]) })
	rank := int32(-1)
	for i, id := range order {
		if i == 0 || m.scores[id] != m.scores[order[i-1]] {
			rank++
		}
		piece := m.pieces[id]
		for at := range piece {
			left, okLeft := b.symbol(piece[:at])
			right, okRight := b.symbol(piece[at:])
			if okLeft && okRight {
				b.rules.set(left, right, rank, id)
			}
		}
	}
	b.single = charactersOf(b.ids)
	b.adjacent = adjacentCharacters(b.ids.all())
	return b
}

// symbol returns the symbol of a piece or of one character.
func (b *scoredBPE) symbol(text string) (int32, bool) {
	if id, ok := b.ids.id(text); ok {
		return id, true
	}
	r, n := utf8.DecodeRuneInString(text)
	return int32(len(b.pieces)) + r, n > 0 && n == len(text)
}

// appendWord cuts where no piece can span, and leaves one unknown id of each
// run.
func (b *scoredBPE) appendWord(dst []int32, word string, s *scratch) ([]int32, error) {
	first := len(dst)
	start, last := 0, rune(-1)
	for i, c := range word {
		if last >= 0 {
			if _, _, ok := b.adjacent.get(last, c); !ok {
				dst = b.appendPart(dst, word[start:i], s)
				start = i
			}
		}
		last = c
	}
	dst = b.appendPart(dst, word[start:], s)
	if b.byteFallback {
		return dst, nil
	}
	return append(dst[:first], slices.CompactFunc(dst[first:], func(x, y int32) bool {
		return x == b.unknown && y == b.unknown
	})...), nil
}

func (b *scoredBPE) appendPart(dst []int32, part string, s *scratch) []int32 {
	if part == "" {
		return dst
	}
	entry := s.cached(part)
	if entry != nil && entry.count > 0 && entry.holds(part) {
		return append(dst, entry.ids[:entry.count]...)
	}
	start := len(dst)
	s.symbols = s.symbols[:0]
	for at, r := range part {
		symbol, _, ok := b.single.get(r, 0)
		if !ok {
			symbol, _ = b.symbol(part[at : at+utf8.RuneLen(r)])
		}
		s.symbols = append(s.symbols, symbol)
	}
	for _, symbol := range b.merge(s.symbols, s) {
		dst = b.appendSymbol(dst, symbol)
	}
	if entry != nil {
		entry.put(part, dst[start:])
	}
	return dst
}

func (b *scoredBPE) appendSymbol(dst []int32, symbol int32) []int32 {
	if symbol < int32(len(b.pieces)) {
		return append(dst, symbol)
	}
	if !b.byteFallback {
		return append(dst, b.unknown)
	}
	for _, value := range []byte(string(rune(symbol - int32(len(b.pieces))))) {
		dst = append(dst, b.byteToken[value])
	}
	return dst
}

// spStage decodes pieces: marks become spaces, the first of the text goes,
// control pieces are invisible, bytes join to characters.
type spStage struct {
	*spModel
	utf8    assembler
	started bool // some text has left, or the first space has been dropped
}

func newSPStage(m *spModel) *spStage {
	return &spStage{spModel: m, utf8: assembler{perByte: true}}
}

func (s *spStage) push(out []fragment, f fragment) []fragment {
	if s.types[f.id] == bytePiece {
		b, _ := byteOfToken(f.text)
		return s.emit(out, s.utf8.push(string([]byte{b})))
	}
	out = s.emit(out, s.utf8.end())
	switch s.types[f.id] {
	case controlPiece:
		return out
	case unknownPiece:
		return s.emit(out, s.unknownSurface)
	}
	text := f.text
	if !s.started && (s.dummyPrefix || s.removeExtraSpace) {
		rest, cut := strings.CutPrefix(text, spaceMark)
		text = rest
		if cut && !s.removeExtraSpace {
			s.started = true
		}
	}
	return s.emit(out, strings.ReplaceAll(text, spaceMark, " "))
}

func (s *spStage) emit(out []fragment, text string) []fragment {
	if text != "" {
		s.started = true
		out = append(out, fragment{text: text})
	}
	return out
}

func (s *spStage) end(out []fragment) []fragment {
	out = s.emit(out, s.utf8.end())
	s.started = false
	return out
}
