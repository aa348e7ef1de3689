// A hash table from pairs of numbers to pairs of numbers: merge rules, cut
// points and tries all live in one.

package tokenizer

import "math/bits"

// pairTable is an open-addressing table keyed by (a, b). It is built once and
// then only read. Keys with a = b = -1 do not occur.
type pairTable struct {
	slots []pairSlot
	used  int
}

type pairSlot struct {
	key  uint64
	x, y int32
}

const emptySlot = ^uint64(0)

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

func newPairTable() *pairTable { return pairTableFor(0) }

// pairTableFor has room for n pairs.
func pairTableFor(n int) *pairTable {
	t := &pairTable{}
	t.resize(max(16, n+2*n/3+1))
	return t
}

func (t *pairTable) resize(n int) {
	old := t.slots
	t.slots = make([]pairSlot, n)
	for i := range t.slots {
		t.slots[i].key = emptySlot
	}
	for _, s := range old {
		if s.key != emptySlot {
			*t.slot(s.key) = s
		}
	}
}

// slot returns the place of key: its entry or the empty slot where it goes.
func (t *pairTable) slot(key uint64) *pairSlot {
	n := uint64(len(t.slots))
	for i, _ := bits.Mul64(key*0x9E3779B97F4A7C15, n); ; i++ {
		if i == n {
			i = 0
		}
		if s := &t.slots[i]; s.key == key || s.key == emptySlot {
			return s
		}
	}
}

// set stores a value, replacing an earlier one.
func (t *pairTable) set(a, b, x, y int32) {
	if 4*(t.used+1) > 3*len(t.slots) {
		t.resize(2 * len(t.slots))
	}
	s := t.slot(pairKey(a, b))
	if s.key == emptySlot {
		t.used++
	}
	*s = pairSlot{pairKey(a, b), x, y}
}

func (t *pairTable) get(a, b int32) (x, y int32, ok bool) {
	s := t.slot(pairKey(a, b))
	return s.x, s.y, s.key != emptySlot
}
