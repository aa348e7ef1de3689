// Training a byte-level BPE from text.

package tokenizer

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// TrainOptions are the choices of Train.
type TrainOptions struct {
	VocabSize int      // tokens in all: 256 bytes, merges, special tokens
	Special   []string // special tokens; they get the last ids
	MinCount  int      // a pair seen less often is not merged; 0: 2
}

// Train learns a byte-level BPE and returns it as the contents of a
// tokenizer.json: give them to FromJSON, or save them.
//
// Words are cut by the GPT-2 pattern; no merge crosses two texts. Each step
// joins the pair of symbols that is most frequent, of equal ones the one with
// the smallest ids, so that one input gives one result. Ids are the bytes in
// the order of their alphabet, then the merges in theirs, then the special
// tokens. If the text runs out of pairs the vocabulary is smaller than asked.
//
// Memory grows with the number of different words, not with the text.
func Train(texts iter.Seq[string], o TrainOptions) ([]byte, error) {
	if least := 256 + len(o.Special) + 1; o.VocabSize < least {
		return nil, fmt.Errorf("tokenizer: train: vocabulary: required at least %d (256 bytes, %d special tokens and one merge), got %d",
			least, len(o.Special), o.VocabSize)
	}
	if texts == nil {
		return nil, errors.New("tokenizer: train: the texts are missing (nil)")
	}
	for i, token := range o.Special {
		if token == "" || slices.Contains(o.Special[:i], token) {
			return nil, fmt.Errorf("tokenizer: train: special token %d: required a new text, got %q", i, token)
		}
	}
	if o.MinCount <= 0 {
		o.MinCount = 2
	}
	t := newTrainer(texts)
	merges := t.run(o.VocabSize-256-len(o.Special), int64(o.MinCount))
	if len(merges) == 0 {
		return nil, fmt.Errorf("tokenizer: train: no pair of bytes occurs %d times in %d different words", o.MinCount, len(t.words))
	}
	return trainedFile(merges, o.Special)
}

// trainer holds the different words of the text as symbols.
type trainer struct {
	words  [][]int32
	counts []int64 // how often each word occurs
	pairs  map[uint64]*pairCount
	queue  []candidate // a heap; each pair has an entry of at least its count
}

// pairCount is one pair of neighbours.
type pairCount struct {
	key    uint64 // pairKey of the symbols
	count  int64
	queued int64   // count of its newest entry in the queue
	words  []int32 // words in which it may occur
}

// candidate is a pair with the count it had when it was put in the queue.
type candidate struct {
	count int64
	pair  *pairCount
}

// newTrainer counts the words and their pairs.
func newTrainer(texts iter.Seq[string]) *trainer {
	symbol := byteSymbols()
	t := &trainer{pairs: map[uint64]*pairCount{}}
	index := map[string]int32{}
	cut := scanned{scanGPT2}
	for text := range texts {
		if text == "" {
			continue
		}
		// The callback returns no error, so cut cannot.
		_ = cut.cut(text, true, func(word string, _ bool) error {
			i, ok := index[word]
			if !ok {
				i = int32(len(t.words))
				symbols := make([]int32, len(word))
				for j := range len(word) {
					symbols[j] = symbol[word[j]]
				}
				index[strings.Clone(word)] = i
				t.words = append(t.words, symbols)
				t.counts = append(t.counts, 0)
			}
			t.counts[i]++
			return nil
		})
	}
	for i, word := range t.words {
		for j := 1; j < len(word); j++ {
			t.add(word[j-1], word[j], int32(i), t.counts[i])
		}
	}
	for _, p := range t.pairs {
		t.push(p)
	}
	return t
}

// byteSymbols numbers the bytes in the order of their alphabet.
func byteSymbols() [256]int32 {
	order := make([]int, 256)
	for b := range order {
		order[b] = b
	}
	slices.SortFunc(order, func(a, b int) int {
		return int([]rune(byteChar[a])[0]) - int([]rune(byteChar[b])[0])
	})
	var symbols [256]int32
	for i, b := range order {
		symbols[b] = int32(i)
	}
	return symbols
}

// add counts one occurrence of a pair in a word.
func (t *trainer) add(a, b, word int32, count int64) *pairCount {
	key := pairKey(a, b)
	p := t.pairs[key]
	if p == nil {
		p = &pairCount{key: key}
		t.pairs[key] = p
	}
	p.count += count
	if n := len(p.words); count > 0 && (n == 0 || p.words[n-1] != word) {
		p.words = append(p.words, word)
	}
	return p
}

// run returns up to n merges of symbols.
func (t *trainer) run(n int, least int64) [][2]int32 {
	var merges [][2]int32
	for len(merges) < n {
		p := t.top()
		if p == nil || p.count < least {
			break
		}
		a, b := int32(p.key>>32), int32(uint32(p.key))
		t.merge(a, b, int32(256+len(merges)), p)
		merges = append(merges, [2]int32{a, b})
	}
	return merges
}

// top takes the best pair out of the queue; nil: there is none.
func (t *trainer) top() *pairCount {
	for len(t.queue) > 0 {
		c := t.pop()
		switch p := c.pair; {
		case c.count == p.count:
			return p
		case c.count == p.queued && p.count > 0:
			t.push(p)
		}
	}
	return nil
}

// merge joins a and b to symbol c in every word.
func (t *trainer) merge(a, b, c int32, p *pairCount) {
	delete(t.pairs, p.key)
	p.count = 0
	grown := map[*pairCount]bool{}
	last := int32(-1)
	slices.Sort(p.words)
	for _, i := range p.words {
		if i == last {
			continue
		}
		last = i
		t.mergeWord(a, b, c, i, grown)
	}
	for q := range grown {
		if q.count > q.queued {
			t.push(q)
		}
	}
}

func (t *trainer) mergeWord(a, b, c, i int32, grown map[*pairCount]bool) {
	word, count := t.words[i], t.counts[i]
	out := word[:0]
	for j := 0; j < len(word); j++ {
		if word[j] != a || j+1 == len(word) || word[j+1] != b {
			out = append(out, word[j])
			continue
		}
		if n := len(out); n > 0 {
			t.lose(out[n-1], a, count)
			grown[t.add(out[n-1], c, i, count)] = true
		}
		if j+2 < len(word) {
			t.lose(b, word[j+2], count)
			grown[t.add(c, word[j+2], i, count)] = true
		}
		out = append(out, c)
		j++
	}
	t.words[i] = out
}

// lose takes occurrences from a pair. The pair being merged is gone already.
func (t *trainer) lose(a, b int32, count int64) {
	if p := t.pairs[pairKey(a, b)]; p != nil {
		p.count -= count
	}
}

// before orders the queue: by count, then by the smaller pair.
func (c candidate) before(d candidate) bool {
	if c.count != d.count {
		return c.count > d.count
	}
	return c.pair.key < d.pair.key
}

func (t *trainer) push(p *pairCount) {
	p.queued = p.count
	q := append(t.queue, candidate{p.count, p})
	for i := len(q) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q[i].before(q[parent]) {
			break
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
	t.queue = q
}

func (t *trainer) pop() candidate {
	q := t.queue
	top := q[0]
	q[0] = q[len(q)-1]
	q = q[:len(q)-1]
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if !q[child].before(q[i]) {
			break
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
	t.queue = q
	return top
}
