// Byte-pair encoding of one word, as tokenizer.json's BPE model defines it.

package tokenizer

import (
	"fmt"
	"iter"
	"unicode/utf8"
)

// model encodes one word of the pre-tokenizer.
type model interface {
	appendWord(dst []int32, word string, s *scratch) ([]int32, error)
}

// bpe is a BPE model. Its words are text, or with rawBytes the bytes for which
// the vocabulary is spelled in the byte alphabet.
type bpe struct {
	merger
	rawBytes     bool
	byteID       [256]int32 // rawBytes: the symbol of each byte
	words        *index
	characters   *pairTable // (character, 0) -> (id, 0); nil: they are looked up in words
	ignoreMerges bool       // a word that is a token is that token
	unknown      int32      // -1: an unknown character vanishes
	fuseUnknown  bool
	byteFallback bool
	byteToken    [256]int32 // byteFallback: ids of <0x00> ..., -1 where missing
	prefix       string     // before every character of a word but the first
	suffix       string     // after the last character of a word

	// Where two characters stand side by side in no token, no merge can join
	// them: the word is cut there and its parts are encoded alone, with the
	// same ids. nil: no cutting.
	adjacent *pairTable
}

// bpeConfig is what the three file formats give a BPE model.
type bpeConfig struct {
	vocab        *index
	merges       mergeList
	mergeCount   int  // room for as many at first
	byteLevel    bool // the pre-tokenizer ends in the byte alphabet
	ignoreMerges bool
	unknown      string
	hasUnknown   bool
	fuseUnknown  bool
	byteFallback bool
	prefix       string
	suffix       string
}

// mergeList calls yield for each merge in the order of ranks.
type mergeList func(yield func(left, right []byte) error) error

func newBPE(c bpeConfig) (*bpe, error) {
	m := &bpe{
		merger:       merger{pairTableFor(c.mergeCount)},
		words:        c.vocab,
		ignoreMerges: c.ignoreMerges,
		unknown:      -1,
		fuseUnknown:  c.fuseUnknown,
		byteFallback: c.byteFallback,
		prefix:       c.prefix,
		suffix:       c.suffix,
	}
	rank := int32(0)
	var joined []byte
	err := c.merges(func(left, right []byte) (err error) {
		joined, err = m.addRule(rank, left, right, joined, c.vocab)
		rank++
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("BPE: %w", err)
	}
	if rank == 0 {
		return nil, fmt.Errorf("BPE: merges: at least one is required, got none")
	}
	if c.hasUnknown {
		id, ok := c.vocab.id(c.unknown)
		if !ok {
			return nil, fmt.Errorf("BPE: unk_token %q is not in vocab", c.unknown)
		}
		m.unknown = id
	}
	allBytes := true
	for b := range 256 {
		m.byteToken[b] = idOr(c.vocab, byteToken(byte(b)), -1)
		allBytes = allBytes && m.byteToken[b] >= 0
	}
	if c.byteLevel && c.prefix == "" && c.suffix == "" {
		m.useRawBytes(c.vocab)
	}
	if !m.rawBytes && c.prefix == "" && c.suffix == "" && !c.ignoreMerges && c.byteFallback && allBytes {
		m.adjacent = adjacentCharacters(c.vocab.all())
	}
	if !m.rawBytes && c.prefix == "" && c.suffix == "" {
		m.characters = charactersOf(m.words)
	}
	return m, nil
}

// addRule uses the memory of joined, and returns it for the next rule.
func (m *bpe) addRule(rank int32, left, right, joined []byte, vocab *index) ([]byte, error) {
	a, okA := vocab.find(left)
	b, okB := vocab.find(right)
	if !okA || !okB {
		return joined, fmt.Errorf("merge %d (%q, %q): both must be in vocab", rank, left, right)
	}
	if len(right) < len(m.prefix) {
		return joined, fmt.Errorf("merge %d (%q, %q): the second must start with continuing_subword_prefix %q", rank, left, right, m.prefix)
	}
	joined = append(append(joined[:0], left...), right[len(m.prefix):]...)
	id, ok := vocab.find(joined)
	if !ok {
		return joined, fmt.Errorf("merge %d (%q, %q): %q is not in vocab", rank, left, right, joined)
	}
	m.rules.set(a, b, rank, id)
	return joined, nil
}

// useRawBytes rewrites the vocabulary in bytes, if every byte is a token.
func (m *bpe) useRawBytes(vocab *index) {
	for b := range 256 {
		id, ok := vocab.id(byteChar[b])
		if !ok {
			return
		}
		m.byteID[b] = id
	}
	m.rawBytes = true
}

// charactersOf lists the tokens of one character: (character, 0) -> (id, 0).
func charactersOf(vocab *index) *pairTable {
	t := newPairTable()
	for token := range vocab.all() {
		if r, n := utf8.DecodeRuneInString(token); n > 0 && n == len(token) && r != utf8.RuneError {
			id, _ := vocab.id(token)
			t.set(r, 0, id, 0)
		}
	}
	return t
}

func adjacentCharacters(tokens iter.Seq[string]) *pairTable {
	t := newPairTable()
	for token := range tokens {
		last := rune(-1)
		for _, c := range token {
			if last >= 0 {
				t.set(last, c, 0, 0)
			}
			last = c
		}
	}
	return t
}

func byteToken(b byte) string { return fmt.Sprintf("<0x%02X>", b) }

func idOr(vocab *index, token string, otherwise int32) int32 {
	if id, ok := vocab.id(token); ok {
		return id
	}
	return otherwise
}

func (m *bpe) appendWord(dst []int32, word string, s *scratch) ([]int32, error) {
	if m.adjacent == nil {
		return m.appendPart(dst, word, s), nil
	}
	start, last := 0, rune(-1)
	for i, c := range word {
		if last >= 0 {
			if _, _, ok := m.adjacent.get(last, c); !ok {
				dst = m.appendPart(dst, word[start:i], s)
				start = i
			}
		}
		last = c
	}
	return m.appendPart(dst, word[start:], s), nil
}

func (m *bpe) appendPart(dst []int32, word string, s *scratch) []int32 {
	entry := s.cached(word)
	if entry != nil && entry.count > 0 && entry.holds(word) {
		return append(dst, entry.ids[:entry.count]...)
	}
	start := len(dst)
	var id int32
	known := false
	if m.ignoreMerges {
		id, known = m.whole(word, s)
	}
	if known {
		dst = append(dst, id)
	} else {
		s.symbols = m.split(s.symbols[:0], word)
		dst = append(dst, m.merge(s.symbols, s)...)
	}
	if entry != nil {
		entry.put(word, dst[start:])
	}
	return dst
}

// whole is the token that a word is, if it is one.
func (m *bpe) whole(word string, s *scratch) (int32, bool) {
	if !m.rawBytes {
		return m.words.id(word)
	}
	s.spelled = appendAlphabet(s.spelled[:0], word)
	return m.words.find(s.spelled)
}

// split gives the symbols that merging starts from.
func (m *bpe) split(symbols []int32, word string) []int32 {
	if m.rawBytes {
		for i := range len(word) {
			symbols = append(symbols, m.byteID[word[i]])
		}
		return symbols
	}
	pending := false // an unknown symbol not yet written
	for i := 0; i < len(word); {
		r, n := utf8.DecodeRuneInString(word[i:])
		char := word[i : i+n]
		if m.prefix != "" && i > 0 {
			char = m.prefix + char
		}
		i += n
		if m.suffix != "" && i == len(word) {
			char += m.suffix
		}
		if id, ok := m.symbol(char, r); ok {
			if pending {
				symbols, pending = append(symbols, m.unknown), false
			}
			symbols = append(symbols, id)
			continue
		}
		if fallen, ok := m.appendBytes(symbols, char); ok {
			symbols = fallen
			continue
		}
		if m.unknown >= 0 {
			if pending && !m.fuseUnknown {
				symbols = append(symbols, m.unknown)
			}
			pending = true
		}
	}
	if pending {
		symbols = append(symbols, m.unknown)
	}
	return symbols
}

// symbol is the token of a character, r, as the vocabulary spells it.
func (m *bpe) symbol(char string, r rune) (int32, bool) {
	if m.characters == nil || r == utf8.RuneError {
		return m.words.id(char)
	}
	id, _, ok := m.characters.get(r, 0)
	return id, ok
}

// appendBytes appends a character as byte tokens; !ok if one is missing.
func (m *bpe) appendBytes(symbols []int32, char string) (_ []int32, ok bool) {
	if !m.byteFallback {
		return symbols, false
	}
	start := len(symbols)
	for i := range len(char) {
		id := m.byteToken[char[i]]
		if id < 0 {
			return symbols[:start], false
		}
		symbols = append(symbols, id)
	}
	return symbols, true
}
