// The unigram model: of all ways to cut a text into tokens, the one with the
// highest sum of scores (Kudo 2018), found by Viterbi's algorithm.

package tokenizer

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// unknownPenalty is how far an unknown character scores below the worst token.
const unknownPenalty = 10

type unigram struct {
	tokens       *pairTable // trie: (node, byte) -> (child, token or -1)
	scores       []float64
	skip         []bool // tokens that are never chosen; nil: none
	unknown      int32  // -1: an unknown character is an error
	unknownToken string
	unknownScore float64
	byteFallback bool
	byteToken    [256]int32
	float32Sums  bool // sums are rounded as SentencePiece rounds them
}

// pathNode is the best path that ends at one byte.
type pathNode struct {
	score float64
	start int32 // of its last token; -1: not reached
	id    int32
}

type unigramConfig struct {
	tokens       []string
	scores       []float64
	unknown      int32
	byteFallback bool
	inTrie       func(id int) bool // nil: every token
	skip         []bool
	minScore     float64
	float32Sums  bool
}

func newUnigram(c unigramConfig) (*unigram, error) {
	if int(c.unknown) >= len(c.tokens) {
		return nil, fmt.Errorf("Unigram: unk_id %d is past the vocabulary of %d", c.unknown, len(c.tokens))
	}
	m := &unigram{
		tokens:       newPairTable(),
		scores:       c.scores,
		skip:         c.skip,
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
	if c.unknown >= 0 && (c.inTrie == nil || c.inTrie(int(c.unknown))) {
		m.unknownToken = c.tokens[c.unknown]
	}
	nodes := int32(1)
	for id, token := range c.tokens {
		if len(token) == 6 && token[:3] == "<0x" {
			for b := range 256 {
				if token == byteToken(byte(b)) {
					m.byteToken[b] = int32(id)
				}
			}
		}
		if c.inTrie == nil || c.inTrie(id) {
			nodes = m.insert(token, int32(id), nodes)
		}
	}
	return m, nil
}

func (m *unigram) insert(token string, id, nodes int32) int32 {
	node := int32(0)
	for i := range len(token) {
		child, leaf, ok := m.tokens.get(node, int32(token[i]))
		if !ok {
			child, leaf = nodes, -1
			nodes++
		}
		if i == len(token)-1 {
			leaf = id
		}
		m.tokens.set(node, int32(token[i]), child, leaf)
		node = child
	}
	return nodes
}

// lowestScore of scores, +Inf if there are none.
func lowestScore(scores []float64) float64 {
	low := math.Inf(1)
	for _, s := range scores {
		low = min(low, s)
	}
	return low
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
		node := int32(0)
		for i := at; i < len(text); i++ {
			child, id, ok := m.tokens.get(node, int32(text[i]))
			if !ok {
				break
			}
			node = child
			if id < 0 || m.skip != nil && m.skip[id] {
				continue
			}
			m.offer(&nodes[i+1], nodes[at].score+m.scores[id], int32(at), id)
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
