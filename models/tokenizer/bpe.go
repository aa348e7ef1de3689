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
	byteID       [256]int32       // rawBytes: the symbol of each byte
	words        map[string]int32 // tokens as words are written
	ignoreMerges bool             // a word that is a token is that token
	unknown      int32            // -1: an unknown character vanishes
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
	vocab        map[string]int32
	merges       [][2]string
	byteLevel    bool // the pre-tokenizer ends in the byte alphabet
	ignoreMerges bool
	unknown      string
	hasUnknown   bool
	fuseUnknown  bool
	byteFallback bool
	prefix       string
	suffix       string
}

func newBPE(c bpeConfig) (*bpe, error) {
	if len(c.merges) == 0 {
		return nil, fmt.Errorf("BPE: merges: at least one is required, got none")
	}
	m := &bpe{
		merger:       merger{newPairTable()},
		words:        c.vocab,
		ignoreMerges: c.ignoreMerges,
		unknown:      -1,
		fuseUnknown:  c.fuseUnknown,
		byteFallback: c.byteFallback,
		prefix:       c.prefix,
		suffix:       c.suffix,
	}
	for rank, pair := range c.merges {
		if err := m.addRule(int32(rank), pair[0], pair[1], c.vocab); err != nil {
			return nil, err
		}
	}
	if c.hasUnknown {
		id, ok := c.vocab[c.unknown]
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
		m.adjacent = adjacentCharacters(c.vocab)
	}
	if !m.rawBytes && c.prefix == "" && c.suffix == "" && !c.ignoreMerges {
		// Characters alone are looked up; the whole map need not stay in memory.
		m.words = map[string]int32{}
		for token, id := range c.vocab {
			if utf8.RuneCountInString(token) == 1 {
				m.words[token] = id
			}
		}
	}
	return m, nil
}

func (m *bpe) addRule(rank int32, left, right string, vocab map[string]int32) error {
	a, okA := vocab[left]
	b, okB := vocab[right]
	if !okA || !okB {
		return fmt.Errorf("BPE: merge %d (%q, %q): both must be in vocab", rank, left, right)
	}
	if len(right) < len(m.prefix) {
		return fmt.Errorf("BPE: merge %d (%q, %q): the second must start with continuing_subword_prefix %q", rank, left, right, m.prefix)
	}
	joined := left + right[len(m.prefix):]
	id, ok := vocab[joined]
	if !ok {
		return fmt.Errorf("BPE: merge %d (%q, %q): %q is not in vocab", rank, left, right, joined)
	}
	m.rules.set(a, b, rank, id)
	return nil
}

// useRawBytes rewrites the vocabulary in bytes, if every byte is a token.
func (m *bpe) useRawBytes(vocab map[string]int32) {
	for b := range 256 {
		id, ok := vocab[byteChar[b]]
		if !ok {
			return
		}
		m.byteID[b] = id
	}
	m.rawBytes, m.words = true, nil
	if !m.ignoreMerges {
		return
	}
	m.words = make(map[string]int32, len(vocab))
	var raw []byte
	for token, id := range vocab {
		if b, ok := appendFromAlphabet(raw[:0], token); ok {
			m.words[string(b)] = id
			raw = b
		}
	}
}

func adjacentCharacters(vocab map[string]int32) *pairTable {
	t := newPairTable()
	for token := range vocab {
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

func idOr(vocab map[string]int32, token string, otherwise int32) int32 {
	if id, ok := vocab[token]; ok {
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
	if id, ok := m.whole(word); ok {
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

func (m *bpe) whole(word string) (int32, bool) {
	if !m.ignoreMerges {
		return 0, false
	}
	id, ok := m.words[word]
	return id, ok
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
		if id, ok := m.words[char]; ok {
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
