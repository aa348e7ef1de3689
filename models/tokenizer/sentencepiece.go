// Encoding and decoding as the SentencePiece library does it: on the whole
// text, with its own normalizer and without pre-tokenizer. Control tokens
// spelled out in a text are text.

package tokenizer

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// spaceMark stands for a space inside pieces.
const spaceMark = "▁"

// ranks matches the first line of a file of tiktoken: a token in base64 and its
// rank.
var ranks = regexp.MustCompile(`\A[A-Za-z0-9+/]+=* [0-9]+\n`)

// FromSentencePiece opens the contents of a SentencePiece model file, BPE or
// unigram. The tokenizer keeps data, which must not change.
func FromSentencePiece(data []byte) (*Tokenizer, error) {
	m, err := parseSPModel(data)
	if err != nil && ranks.Match(data[:min(len(data), 1<<10)]) {
		err = fmt.Errorf("a list of ranks (tiktoken) is not supported: required a SentencePiece model")
	}
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
	t := &Tokenizer{special: noSpecialIDs()}
	t.vocab = listed(m, m.count, func() func(string) (int32, bool) {
		x := indexFor(m, m.count)
		for place := range uint32(m.count) {
			x.put(m.text(place), place)
		}
		return x.find
	})
	t.vocab.special = places(m.count, func(place uint32) bool {
		kind := m.kind(place)
		return kind == controlPiece || kind == unknownPiece
	})
	t.special.Unknown = m.unknownID()
	inside := func(id int32) int32 {
		if _, ok := t.vocab.token(id); ok {
			return id
		}
		return -1
	}
	t.special.BOS, t.special.EOS, t.special.Pad = inside(m.bos), inside(m.eos), inside(m.pad)
	t.addStop(t.special.EOS)
	e := &spEncoder{spModel: m, unknown: t.special.Unknown, before: roleIDs(t.special.BOS, true)}
	e.user = newAddedMatcher(userPieces{m}, places(m.count, func(place uint32) bool { return m.kind(place) == userPiece }))
	if err := e.buildModel(); err != nil {
		return nil, err
	}
	t.enc = e
	t.decode = func(eager bool) []stage { return []stage{newSPStage(m)} }
	return t, nil
}

// userPieces are found in a text before anything else looks at it.
type userPieces struct{ *spModel }

func (userPieces) flags(uint32) addedFlags { return 0 }

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

func (e *spEncoder) buildUnigram() error {
	scores := spScores{e.spModel, make([]float32, e.count)}
	c := unigramConfig{
		scored:       scores,
		count:        e.count,
		unknown:      e.unknown,
		byteFallback: e.byteFallback,
		minScore:     math.MaxFloat32,
		float32Sums:  true,
		inTrie: func(place uint32) bool {
			switch e.kind(place) {
			case normalPiece, userPiece, unusedPiece:
				return true
			}
			return false
		},
	}
	for place := range uint32(e.count) {
		scores.weights[place] = e.weight(place)
		if e.kind(place) == normalPiece {
			c.minScore = min(c.minScore, float64(scores.weights[place]))
		}
	}
	m, err := newUnigram(c)
	e.model = m
	return err
}

// spScores are the pieces of a unigram model with their scores; user-defined
// ones have the score with which the library prefers them: the others are
// negative.
type spScores struct {
	*spModel
	weights []float32
}

func (s spScores) score(place uint32) float64 {
	if s.kind(place) == userPiece {
		return -0.1
	}
	return float64(s.weights[place])
}

func (s spScores) chosen(place uint32) bool { return s.kind(place) != unusedPiece }

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

// scoredBPE merges the neighbours whose joined piece has the best score: a piece
// is made of any two symbols that spell it. A character that is no piece is the
// symbol count + character.
type scoredBPE struct {
	merger
	*spModel
	unknown   int32
	ids       *index
	byteToken [256]int32
	adjacent  *neighbours
}

func newScoredBPE(m *spModel, unknown int32) *scoredBPE {
	whole := func(place uint32) bool {
		kind := m.kind(place)
		return kind == normalPiece || kind == userPiece
	}
	n := 0
	for place := range uint32(m.count) {
		if whole(place) {
			n++
		}
	}
	b := &scoredBPE{spModel: m, unknown: unknown, ids: indexFor(m, n), adjacent: newNeighbours()}
	b.merger = merger{b}
	for place := range uint32(m.count) {
		text := m.text(place)
		if whole(place) {
			b.ids.put(text, place)
			b.adjacent.add(text)
		} else if m.kind(place) == bytePiece {
			value, _ := byteOfToken(text)
			b.byteToken[value] = int32(place)
		}
	}
	return b
}

// rule finds the piece that two symbols spell.
func (b *scoredBPE) rule(left, right int32, s *scratch) (rank uint32, joined int32) {
	s.spelled = b.appendSpelling(b.appendSpelling(s.spelled[:0], left), right)
	place, ok := b.ids.place(view(s.spelled))
	if !ok {
		return noRank, 0
	}
	return rankOf(b.weight(place)), int32(place)
}

// rankOf orders scores, the best first, in the order of their bits where these
// are those of a number.
func rankOf(score float32) uint32 {
	if score != score {
		return noRank - 1
	}
	u := math.Float32bits(score + 0) // one zero
	if u>>31 == 0 {
		return 1<<31 - 1 - u
	}
	return u
}

func (b *scoredBPE) appendSpelling(dst []byte, symbol int32) []byte {
	if int(symbol) < b.count {
		return append(dst, b.text(uint32(symbol))...)
	}
	return utf8.AppendRune(dst, symbol-int32(b.count))
}

// symbol is that of a character.
func (b *scoredBPE) symbol(text string, r rune, s *scratch) int32 {
	p, known := s.pairs.slot(r, -1) // no symbol has that number
	if !known {
		id, ok := b.ids.find(text)
		if !ok {
			id = int32(b.count) + r
		}
		p.x = uint32(id)
	}
	return int32(p.x)
}

// appendWord cuts where no piece can span, and leaves one unknown id of each
// run. A byte that is no UTF-8 falls back alone.
func (b *scoredBPE) appendWord(dst []int32, word string, s *scratch) ([]int32, error) {
	first := len(dst)
	start, last := 0, rune(-1)
	for i, c := range word {
		broken := c == utf8.RuneError && !strings.HasPrefix(word[i:], replacement)
		if last >= 0 && (broken || !b.adjacent.has(last, c)) {
			dst = b.appendPart(dst, word[start:i], s)
			start = i
		}
		last = c
		if broken {
			dst = b.appendBytes(dst, word[i:i+1])
			start, last = i+1, -1
		}
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
		s.symbols = append(s.symbols, b.symbol(part[at:at+utf8.RuneLen(r)], r, s))
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
	if int(symbol) < b.count {
		return append(dst, symbol)
	}
	return b.appendBytes(dst, string(symbol-int32(b.count)))
}

// appendBytes appends the ids of a text that has none of its own.
func (b *scoredBPE) appendBytes(dst []int32, text string) []int32 {
	if !b.byteFallback {
		return append(dst, b.unknown)
	}
	for i := range len(text) {
		dst = append(dst, b.byteToken[text[i]])
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
	kind := s.kind(uint32(f.id))
	if kind == bytePiece {
		b, _ := byteOfToken(f.text)
		return s.emit(out, s.utf8.push(string([]byte{b})))
	}
	out = s.emit(out, s.utf8.end())
	switch kind {
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
