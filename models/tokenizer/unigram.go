// The unigram model: of all ways to cut a text into tokens, the one with the
// highest sum of scores (Kudo 2018), found by Viterbi's algorithm.

package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// unknownPenalty is how far an unknown character scores below the worst token.
const unknownPenalty = 10

type unigram struct {
	scored
	tokens       *sorted
	unknown      int32 // -1: an unknown character is an error
	unknownToken string
	unknownScore float64
	byteFallback bool
	byteToken    [256]int32
	float32Sums  bool // sums are rounded as SentencePiece rounds them
}

// scored are the tokens of a unigram model; places are ids.
type scored interface {
	tokens
	score(place uint32) float64
	chosen(place uint32) bool // else it is never part of a path
}

// pathNode is the best path that ends at one byte.
type pathNode struct {
	score float64
	start int32 // of its last token; -1: not reached
	id    int32
}

type unigramConfig struct {
	scored
	count        int
	unknown      int32
	byteFallback bool
	inTrie       func(place uint32) bool // nil: every token that is not empty
	minScore     float64
	float32Sums  bool
}

func newUnigram(c unigramConfig) (*unigram, error) {
	if int(c.unknown) >= c.count {
		return nil, fmt.Errorf("Unigram: unk_id %d is past the vocabulary of %d", c.unknown, c.count)
	}
	m := &unigram{
		scored:       c.scored,
		unknown:      c.unknown,
		unknownScore: c.minScore - unknownPenalty,
		byteFallback: c.byteFallback,
		float32Sums:  c.float32Sums,
	}
	if c.float32Sums {
		m.unknownScore = float64(float32(c.minScore) - unknownPenalty)
	}
	for b := range m.byteToken {
		m.byteToken[b] = -1
	}
	found := func(place uint32) bool {
		return (c.inTrie == nil || c.inTrie(place)) && c.text(place) != ""
	}
	if c.unknown >= 0 && (c.inTrie == nil || c.inTrie(uint32(c.unknown))) {
		m.unknownToken = c.text(uint32(c.unknown))
	}
	for place := range uint32(c.count) {
		if b, ok := byteOfToken(c.text(place)); ok && c.text(place) == byteToken(b) {
			m.byteToken[b] = int32(place)
		}
	}
	m.tokens = sortedOf(c.scored, places(c.count, found))
	return m, nil
}

func (m *unigram) appendWord(dst []int32, word string, s *scratch) ([]int32, error) {
	entry := s.cached(word)
	if entry != nil && entry.count > 0 && entry.holds(word) {
		return append(dst, entry.ids[:entry.count]...), nil
	}
	start := len(dst)
	dst, err := m.best(dst, word, s)
	if err == nil && entry != nil {
		entry.put(word, dst[start:])
	}
	return dst, err
}

// best appends the ids of the best path.
func (m *unigram) best(dst []int32, text string, s *scratch) ([]int32, error) {
	if cap(s.nodes) < len(text)+1 {
		s.nodes = make([]pathNode, len(text)+1)
	}
	nodes := s.nodes[:len(text)+1]
	for i := range nodes {
		nodes[i] = pathNode{start: -1}
	}
	for at := 0; at < len(text); {
		_, size := utf8.DecodeRuneInString(text[at:])
		single := false // a token is exactly this character
		from, to := uint32(0), uint32(len(m.tokens.order))
		for i := at; i < len(text); i++ {
			whole := false
			if from, to, whole = m.step(from, to, i-at, text[i], s); from == to {
				break
			}
			if !whole {
				continue
			}
			place := m.tokens.order[from]
			if !m.chosen(place) {
				continue
			}
			m.offer(&nodes[i+1], nodes[at].score+m.score(place), int32(at), int32(place))
			single = single || i+1-at == size
		}
		if !single {
			if m.unknown < 0 {
				return dst, fmt.Errorf("Unigram: %q has no token and the file no unk_id", text[at:at+size])
			}
			m.offer(&nodes[at+size], m.round(nodes[at].score+m.unknownScore), int32(at), m.unknown)
		}
		at += size
	}
	return m.trace(dst, text, nodes), nil
}

// step is narrow, and tells whether the first token of the range is all that the
// range has in common, from the cache where that is there: the tokens from from on
// that begin alike are one range for each depth.
func (m *unigram) step(from, to uint32, depth int, c byte, s *scratch) (_, _ uint32, whole bool) {
	const wholeBit = 1 << 31
	p := &pairSlot{}
	known := false
	if depth < 1<<22 {
		p, known = s.pairs.slot(int32(from), int32(depth<<8|int(c)))
	}
	if !known {
		p.x, p.y = m.tokens.narrow(from, to, depth, c)
		if p.x < p.y && len(m.text(m.tokens.order[p.x])) == depth+1 {
			p.y |= wholeBit
		}
	}
	return p.x, p.y &^ wholeBit, p.y&wholeBit != 0
}

func (m *unigram) round(score float64) float64 {
	if m.float32Sums {
		return float64(float32(score))
	}
	return score
}

func (m *unigram) offer(n *pathNode, score float64, start, id int32) {
	if n.start < 0 || score > n.score {
		*n = pathNode{score: m.round(score), start: start, id: id}
	}
}

// trace walks the best path backwards and appends its ids, a run of unknown
// characters as one, or as all its bytes.
func (m *unigram) trace(dst []int32, text string, nodes []pathNode) []int32 {
	first := len(dst)
	for end := len(text); end > 0; {
		start := int(nodes[end].start)
		if id := nodes[end].id; id != m.unknown {
			dst = append(dst, id)
			end = start
			continue
		}
		for start > 0 && nodes[start].id == m.unknown {
			start = int(nodes[start].start)
		}
		run := text[start:end]
		if fallen, ok := m.appendBytesReversed(dst, run); ok && run != m.unknownToken {
			dst = fallen
		} else {
			dst = append(dst, m.unknown)
		}
		end = start
	}
	for i, j := first, len(dst)-1; i < j; i, j = i+1, j-1 {
		dst[i], dst[j] = dst[j], dst[i]
	}
	return dst
}

func (m *unigram) appendBytesReversed(dst []int32, text string) (_ []int32, ok bool) {
	if !m.byteFallback {
		return dst, false
	}
	start := len(dst)
	for i := len(text) - 1; i >= 0; i-- {
		id := m.byteToken[text[i]]
		if id < 0 {
			return dst[:start], false
		}
		dst = append(dst, id)
	}
	return dst, true
}
