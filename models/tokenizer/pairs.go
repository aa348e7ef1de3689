// What was found for pairs of numbers, merge rules and steps in a trie, kept for
// the next time, and the filter of neighbours.

package tokenizer

// pairCache is a bounded cache by (a, b): one place for each, where the last
// that came stays. Keys with a = b = -1 do not occur.
type pairCache []pairSlot

type pairSlot struct {
	key  uint64 // of the pair, plus 1; 0: free
	x, y uint32
}

// pairBits is the binary logarithm of the number of slots: 512 kB for each call
// in flight hold what a text of a book needs.
const pairBits = 15

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

// slot is where a pair belongs: its entry, or that of another pair or of none,
// which becomes its own.
func (c *pairCache) slot(a, b int32) (s *pairSlot, known bool) {
	if *c == nil {
		*c = make(pairCache, 1<<pairBits)
	}
	key := pairKey(a, b) + 1
	s = &(*c)[key*0x9E3779B97F4A7C15>>(64-pairBits)]
	known = s.key == key
	s.key = key
	return s, known
}

// neighbours is a set of pairs of characters that may hold others too: 2 % of
// those that are not there after 10000 that are.
type neighbours [1 << 13]uint64

func newNeighbours() *neighbours { return new(neighbours) }

func (n *neighbours) bit(a, b rune) (*uint64, uint64) {
	h := (uint64(uint32(a))<<32 | uint64(uint32(b))) * 0x9E3779B97F4A7C15
	return &n[h>>51], 1 << (h >> 45 & 63)
}

// add puts all that stand side by side in text.
func (n *neighbours) add(text string) {
	last := rune(-1)
	for _, c := range text {
		if last >= 0 {
			word, bit := n.bit(last, c)
			*word |= bit
		}
		last = c
	}
}

func (n *neighbours) has(a, b rune) bool {
	word, bit := n.bit(a, b)
	return *word&bit != 0
}
