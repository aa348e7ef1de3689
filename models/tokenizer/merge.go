// The merging of byte-pair encoding: repeatedly join the adjacent pair of
// lowest rank, the leftmost of equal ones (Sennrich et al. 2016).

package tokenizer

// merger joins by rules.
type merger struct{ rules }

// rules say what two symbols become and at what rank; noRank: nothing.
type rules interface {
	rule(left, right int32, s *scratch) (rank uint32, joined int32)
}

// scratch is the working memory of one Encode call.
type scratch struct {
	symbols []int32
	ranks   []uint32
	prev    []int32
	next    []int32
	heap    []uint64
	nodes   []pathNode
	cache   []cachedWord
	pairs   pairCache
	spelled []byte
}

// noRank is above every rank: the pair has no rule.
const noRank = ^uint32(0)

// shortWord is the number of symbols up to which scanning all ranks again
// after each merge is faster than a heap.
const shortWord = 48

// merge joins symbols in place and returns what is left of them.
func (m merger) merge(symbols []int32, s *scratch) []int32 {
	if len(symbols) <= shortWord {
		return m.mergeShort(symbols, s)
	}
	return m.mergeLong(symbols, s)
}

// known is the rule of a pair, from the cache where it is there.
func (m merger) known(a, b int32, s *scratch) (rank uint32, joined int32) {
	p, known := s.pairs.slot(a, b)
	if !known {
		p.x, joined = m.rule(a, b, s)
		p.y = uint32(joined)
	}
	return p.x, int32(p.y)
}

func (m merger) rank(a, b int32, s *scratch) uint32 {
	rank, _ := m.known(a, b, s)
	return rank
}

func (m merger) mergeShort(symbols []int32, s *scratch) []int32 {
	ranks := s.ranks[:0]
	for i := 1; i < len(symbols); i++ {
		ranks = append(ranks, m.rank(symbols[i-1], symbols[i], s))
	}
	s.ranks = ranks
	for len(ranks) > 0 {
		best := 0
		for i, r := range ranks {
			if r < ranks[best] {
				best = i
			}
		}
		if ranks[best] == noRank {
			break
		}
		_, symbols[best] = m.known(symbols[best], symbols[best+1], s)
		symbols = append(symbols[:best+1], symbols[best+2:]...)
		ranks = append(ranks[:best], ranks[best+1:]...)
		if best > 0 {
			ranks[best-1] = m.rank(symbols[best-1], symbols[best], s)
		}
		if best < len(ranks) {
			ranks[best] = m.rank(symbols[best], symbols[best+1], s)
		}
	}
	return symbols
}

// mergeLong keeps the symbols in a linked list and the candidate pairs in a
// heap of rank and position: n log n for any text. An entry is stale when its
// pair no longer has its rank.
func (m merger) mergeLong(symbols []int32, s *scratch) []int32 {
	n := int32(len(symbols))
	prev, next := resize(&s.prev, int(n)), resize(&s.next, int(n))
	heap := s.heap[:0]
	for i := range n {
		prev[i], next[i] = i-1, i+1
		if i+1 < n {
			if rank := m.rank(symbols[i], symbols[i+1], s); rank != noRank {
				heap = append(heap, uint64(rank)<<32|uint64(i))
			}
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		siftDown(heap, i)
	}
	push := func(i int32) {
		if rank := m.rank(symbols[i], symbols[next[i]], s); rank != noRank {
			heap = append(heap, uint64(rank)<<32|uint64(i))
			siftUp(heap)
		}
	}
	const gone = int32(-1 << 31)
	for len(heap) > 0 {
		rank, i := uint32(heap[0]>>32), int32(uint32(heap[0]))
		heap[0] = heap[len(heap)-1]
		heap = heap[:len(heap)-1]
		siftDown(heap, 0)
		if symbols[i] == gone || next[i] == n {
			continue
		}
		j := next[i]
		now, joined := m.known(symbols[i], symbols[j], s)
		if now != rank {
			continue
		}
		symbols[i], symbols[j] = joined, gone
		next[i] = next[j]
		if next[i] < n {
			prev[next[i]] = i
			push(i)
		}
		if prev[i] >= 0 {
			push(prev[i])
		}
	}
	s.heap = heap
	kept := symbols[:0]
	for _, id := range symbols {
		if id != gone {
			kept = append(kept, id)
		}
	}
	return kept
}

func resize(s *[]int32, n int) []int32 {
	if cap(*s) < n {
		*s = make([]int32, n)
	}
	return (*s)[:n]
}

func siftDown(heap []uint64, i int) {
	for {
		child := 2*i + 1
		if child >= len(heap) {
			return
		}
		if child+1 < len(heap) && heap[child+1] < heap[child] {
			child++
		}
		if heap[i] <= heap[child] {
			return
		}
		heap[i], heap[child] = heap[child], heap[i]
		i = child
	}
}

func siftUp(heap []uint64) {
	for i := len(heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if heap[parent] <= heap[i] {
			return
		}
		heap[i], heap[parent] = heap[parent], heap[i]
		i = parent
	}
}
