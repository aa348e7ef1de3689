// Byte-pair encoding of one word, as tokenizer.json's BPE model defines it.

package tokenizer

import (
	"fmt"
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
	vocab        *vocabulary
	words        *index
	ignoreMerges bool  // a word that is a token is that token
	unknown      int32 // -1: an unknown character vanishes
	fuseUnknown  bool
	byteFallback bool
	byteToken    [256]int32 // byteFallback: ids of <0x00> ..., -1 where missing
	prefix       string     // before every character of a word but the first
	suffix       string     // after the last character of a word

	// Where two characters stand side by side in no token, no merge can join
	// them: the word is cut there and its parts are encoded alone, with the
	// same ids. nil: no cutting.
	adjacent *neighbours
}

// bpeConfig is what the three file formats give a BPE model.
type bpeConfig struct {
	vocab        *vocabulary
	words        *index
	merges       mergeList
	mergeCount   int  // the most different ones
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
		vocab:        c.vocab,
		words:        c.words,
		ignoreMerges: c.ignoreMerges,
		unknown:      -1,
		fuseUnknown:  c.fuseUnknown,
		byteFallback: c.byteFallback,
		prefix:       c.prefix,
		suffix:       c.suffix,
	}
	list := newRuleList(c.mergeCount)
	m.merger = merger{&listedRules{list, m}}
	rank := 0
	err := c.merges(func(left, right []byte) error {
		err := m.addRule(list, rank, left, right)
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
		id, ok := c.words.find(c.unknown)
		if !ok {
			return nil, fmt.Errorf("BPE: unk_token %q is not in vocab", c.unknown)
		}
		m.unknown = id
	}
	allBytes := true
	for b := range 256 {
		m.byteToken[b] = idOr(c.words, byteToken(byte(b)), -1)
		allBytes = allBytes && m.byteToken[b] >= 0
	}
	if c.byteLevel && c.prefix == "" && c.suffix == "" {
		m.useRawBytes(c.words)
	}
	if !m.rawBytes && c.prefix == "" && c.suffix == "" && !c.ignoreMerges && c.byteFallback && allBytes {
		m.adjacent = newNeighbours()
		c.words.each(m.adjacent.add)
	}
	return m, nil
}

func (m *bpe) addRule(list *ruleList, rank int, left, right []byte) error {
	a, okA := m.words.find(view(left))
	b, okB := m.words.find(view(right))
	if !okA || !okB {
		return fmt.Errorf("merge %d (%q, %q): both must be in vocab", rank, left, right)
	}
	if len(right) < len(m.prefix) {
		return fmt.Errorf("merge %d (%q, %q): the second must start with continuing_subword_prefix %q", rank, left, right, m.prefix)
	}
	list.joined = append(append(list.joined[:0], left...), right[len(m.prefix):]...)
	if _, ok := m.words.find(view(list.joined)); !ok {
		return fmt.Errorf("merge %d (%q, %q): %q is not in vocab", rank, left, right, list.joined)
	}
	// The rule is kept by ids.
	for i, id := range [2]int32{a, b} {
		if own, _ := m.vocab.own(id); own != string([2][]byte{left, right}[i]) {
			return fmt.Errorf("merge %d (%q, %q): id %d is that of %q too", rank, left, right, id, own)
		}
	}
	return list.add(rulePair{a, b})
}

// useRawBytes rewrites the vocabulary in bytes, if every byte is a token.
func (m *bpe) useRawBytes(vocab *index) {
	for b := range 256 {
		id, ok := vocab.find(byteChar[b])
		if !ok {
			return
		}
		m.byteID[b] = id
	}
	m.rawBytes = true
}

func byteToken(b byte) string { return fmt.Sprintf("<0x%02X>", b) }

func idOr(vocab *index, token string, otherwise int32) int32 {
	if id, ok := vocab.find(token); ok {
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
			if !m.adjacent.has(last, c) {
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
		return m.words.find(word)
	}
	s.spelled = appendAlphabet(s.spelled[:0], word)
	return m.words.find(view(s.spelled))
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
		_, n := utf8.DecodeRuneInString(word[i:])
		char := word[i : i+n]
		if m.prefix != "" && i > 0 {
			char = m.prefix + char
		}
		i += n
		if m.suffix != "" && i == len(word) {
			char += m.suffix
		}
		if id, ok := m.words.find(char); ok {
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
