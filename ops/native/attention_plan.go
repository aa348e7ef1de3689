// Plans of attention made on the host: which tile of which request a block
// works on, and into how many parts long caches are cut.

package native

// RaggedTiles is the work map of packed queries: tile i holds queries
// [Index[i]*tile, (Index[i]+1)*tile) of request Request[i]. There is no tile
// without work.
type RaggedTiles struct {
	Request, Index []int32
}

// RaggedWorkMap cuts the queries of each request into tiles, counted from the
// request's first query. Lengths 70, 10, 130 and tile 64 give the requests
// 0,0,1,2,2,2 and the indices 0,1,0,0,1,2.
func RaggedWorkMap(qIndptr []int32, tile int) RaggedTiles {
	var m RaggedTiles
	for r := range max(len(qIndptr)-1, 0) {
		for i := range ceilDiv(int(qIndptr[r+1]-qIndptr[r]), tile) {
			m.Request = append(m.Request, int32(r))
			m.Index = append(m.Index, int32(i))
		}
	}
	return m
}

// Indptr returns the prefix sums of lengths, [len+1].
func Indptr(lengths []int32) []int32 {
	p := make([]int32, len(lengths)+1)
	for i, n := range lengths {
		p[i+1] = p[i] + n
	}
	return p
}

// KVSplits says how the keys of each request are cut for decode: request r
// owns the splits Indptr[r]:Indptr[r+1], the i-th of which holds the keys
// [i*Keys, (i+1)*Keys) that the request has. A request of one split needs no
// merge; one without keys still has a split, which writes its empty result.
type KVSplits struct {
	Keys   int
	Indptr []int32
}

// Most returns the largest number of splits of a request.
func (s KVSplits) Most() int {
	n := 0
	for r := range len(s.Indptr) - 1 {
		n = max(n, int(s.Indptr[r+1]-s.Indptr[r]))
	}
	return n
}

// PlanKVSplits cuts the keys so that a decode step fills the machine: Keys is
// the smallest multiple of unit (the keys of a tile) for which the splits of all
// requests times heads (key heads) are at most slots, the blocks that run at
// once: multiprocessors times blocks on each. Where even whole requests are
// more than that, nothing is cut. A grid of max(slots, requests*heads) blocks
// therefore serves every step of a captured graph.
func PlanKVSplits(lengths []int32, heads, slots, unit int) KVSplits {
	longest := 0
	for _, n := range lengths {
		longest = max(longest, int(n))
	}
	splits := func(keys int) int {
		n := 0
		for _, l := range lengths {
			n += max(1, ceilDiv(int(l), keys))
		}
		return n * heads
	}
	// The number of splits falls as Keys grows, so halve the range.
	low, high := 1, max(1, ceilDiv(longest, unit))
	for low < high {
		if mid := (low + high) / 2; splits(mid*unit) <= slots {
			high = mid
		} else {
			low = mid + 1
		}
	}
	s := KVSplits{Keys: low * unit, Indptr: make([]int32, len(lengths)+1)}
	for r, l := range lengths {
		s.Indptr[r+1] = s.Indptr[r] + int32(max(1, ceilDiv(int(l), s.Keys)))
	}
	return s
}
