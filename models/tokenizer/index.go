// The ids of a model's tokens by their text.

package tokenizer

import (
	"hash/maphash"
	"iter"
	"math/bits"
)

// index finds tokens of a list by their text: an open-addressing table of
// places in the list, 8 bytes a token where a map takes 30 to 60.
type index struct {
	tokens []string
	slots  []int32          // places in tokens, or freeSlot or goneSlot
	other  map[string]int32 // tokens that tokens[id] does not hold
}

const (
	freeSlot int32 = -1
	goneSlot int32 = -2
)

var indexSeed = maphash.MakeSeed()

// indexFor has room for n tokens.
func indexFor(n int) *index {
	x := &index{slots: make([]int32, 2*n+1), other: map[string]int32{}}
	for i := range x.slots {
		x.slots[i] = freeSlot
	}
	return x
}

// newIndex has the places of tokens, the last of equal ones.
func newIndex(tokens []string) *index {
	x := indexFor(len(tokens))
	x.tokens = tokens
	for id, token := range tokens {
		x.put(token, int32(id))
	}
	return x
}

// put gives a token of the list its place, the last of equal ones; there is
// room for it.
func (x *index) put(token string, id int32) { *x.slot([]byte(token)) = id }

// slot is the place of text in the table: its entry, or where it goes.
func (x *index) slot(text []byte) *int32 {
	n := uint64(len(x.slots))
	for i, _ := bits.Mul64(maphash.Bytes(indexSeed, text), n); ; i++ {
		if i == n {
			i = 0
		}
		s := &x.slots[i]
		if *s == freeSlot || *s >= 0 && x.tokens[*s] == string(text) {
			return s
		}
	}
}

func (x *index) find(text []byte) (int32, bool) {
	if id := *x.slot(text); id >= 0 {
		return id, true
	}
	id, ok := x.other[string(text)]
	return id, ok
}

func (x *index) id(text string) (int32, bool) { return x.find([]byte(text)) }

// add puts a token that is not there; there is room for it.
func (x *index) add(token string, id int32) {
	if int(id) < len(x.tokens) && x.tokens[id] == token {
		x.put(token, id)
		return
	}
	x.other[token] = id
}

// remove takes a token out, if it is there.
func (x *index) remove(token []byte) {
	if s := x.slot(token); *s >= 0 {
		*s = goneSlot
	}
	delete(x.other, string(token))
}

func (x *index) len() int {
	n := len(x.other)
	for _, id := range x.slots {
		if id >= 0 {
			n++
		}
	}
	return n
}

// all are the tokens that have an id.
func (x *index) all() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, id := range x.slots {
			if id >= 0 && !yield(x.tokens[id]) {
				return
			}
		}
		for token := range x.other {
			if !yield(token) {
				return
			}
		}
	}
}
