// The tokens of a model: their texts, and how they are found by text.

package tokenizer

import (
	"cmp"
	"hash/maphash"
	"math/bits"
	"slices"
	"sort"
	"strings"
)

// tokens are texts with ids, each at a place.
type tokens interface {
	text(place uint32) string
	id(place uint32) int32
}

// list is tokens whose ids are their places.
type list []string

func (l list) text(place uint32) string { return l[place] }
func (l list) id(place uint32) int32    { return int32(place) }

// blob is tokens one after the other, 2 or 3 bytes beside the text of most: the
// length, the text, the id. A place is where one begins.
type blob string

func (b blob) text(place uint32) string {
	n, at := b.number(place)
	return string(b[at : at+n])
}

func (b blob) id(place uint32) int32 {
	n, at := b.number(place)
	id, _ := b.number(at + n)
	return int32(id)
}

// next is where the token behind that of a place begins.
func (b blob) next(place uint32) uint32 {
	n, at := b.number(place)
	_, at = b.number(at + n)
	return at
}

// number reads a number of 7 bits a byte, the lowest first, and where it ends.
func (b blob) number(at uint32) (n, end uint32) {
	for shift := 0; ; shift += 7 {
		c := b[at]
		at++
		n |= uint32(c&0x7F) << shift
		if c < 0x80 {
			return n, at
		}
	}
}

func putNumber(to *strings.Builder, n uint32) {
	for ; n >= 0x80; n >>= 7 {
		to.WriteByte(byte(n) | 0x80)
	}
	to.WriteByte(byte(n))
}

// numberSize is how many bytes putNumber takes.
func numberSize(n int) int { return (bits.Len(uint(n|1)) + 6) / 7 }

// putToken appends a token to what becomes a blob.
func putToken(to *strings.Builder, text []byte, id int32) {
	putNumber(to, uint32(len(text)))
	to.Write(text)
	putNumber(to, uint32(id))
}

// growing is a blob in the making.
type growing struct{ strings.Builder }

func (g *growing) text(place uint32) string { return blob(g.String()).text(place) }
func (g *growing) id(place uint32) int32    { return blob(g.String()).id(place) }

// index finds tokens by their text: an open-addressing table of places, 5 bytes
// a token.
type index struct {
	tokens
	slots []uint32 // place + 1; 0: free
}

var indexSeed = maphash.MakeSeed()

// indexFor has room for n tokens.
func indexFor(t tokens, n int) *index { return &index{t, make([]uint32, n+n/4+1)} }

// newIndex has the tokens of a list, the last of equal ones.
func newIndex(l list) *index {
	x := indexFor(l, len(l))
	for place, text := range l {
		x.put(text, uint32(place))
	}
	return x
}

// put gives a text its place; there is room for it.
func (x *index) put(text string, place uint32) {
	*x.slot(maphash.String(indexSeed, text), text) = place + 1
}

// slot is the entry of text, or the free one where it goes.
func (x *index) slot(hash uint64, text string) *uint32 {
	n := uint64(len(x.slots))
	for i, _ := bits.Mul64(hash, n); ; i++ {
		if i == n {
			i = 0
		}
		if s := &x.slots[i]; *s == 0 || x.text(*s-1) == text {
			return s
		}
	}
}

// place finds a text.
func (x *index) place(text string) (place uint32, ok bool) {
	s := *x.slot(maphash.String(indexSeed, text), text)
	return s - 1, s != 0
}

// find is the id of a text.
func (x *index) find(text string) (int32, bool) {
	place, ok := x.place(text)
	if !ok {
		return 0, false
	}
	return x.id(place), true
}

// each calls yield for each text.
func (x *index) each(yield func(text string)) {
	for _, s := range x.slots {
		if s != 0 {
			yield(x.text(s - 1))
		}
	}
}

// len counts the texts.
func (x *index) len() int {
	n := 0
	for _, s := range x.slots {
		if s != 0 {
			n++
		}
	}
	return n
}

// sorted finds tokens by the beginnings of their texts: places in the order of
// texts, of equal ones the last, 4 bytes a token. Those that begin alike are a
// range; the empty text is not among them.
type sorted struct {
	tokens
	order []uint32
	first [257]uint32 // by first byte: where its range begins
}

// sortedOf puts places in order; it keeps the list.
func sortedOf(t tokens, places []uint32) *sorted {
	slices.SortFunc(places, func(x, y uint32) int {
		return cmp.Or(strings.Compare(t.text(x), t.text(y)), cmp.Compare(y, x))
	})
	s := &sorted{tokens: t, order: slices.CompactFunc(places, func(x, y uint32) bool { return t.text(x) == t.text(y) })}
	at := uint32(0)
	for c := range 256 {
		for at < uint32(len(s.order)) && int(t.text(s.order[at])[0]) < c {
			at++
		}
		s.first[c] = at
	}
	s.first[256] = uint32(len(s.order))
	return s
}

// narrow is the part of a range, of texts that agree in depth bytes, whose next
// byte is c.
func (s *sorted) narrow(from, to uint32, depth int, c byte) (uint32, uint32) {
	if depth == 0 {
		return s.first[c], s.first[int(c)+1]
	}
	next := func(i uint32) int { // -1 where the text ends
		if text := s.text(s.order[i]); len(text) > depth {
			return int(text[depth])
		}
		return -1
	}
	if from == to || next(from) == int(c) && next(to-1) == int(c) {
		return from, to
	}
	from += uint32(sort.Search(int(to-from), func(i int) bool { return next(from+uint32(i)) >= int(c) }))
	to = from + uint32(sort.Search(int(to-from), func(i int) bool { return next(from+uint32(i)) > int(c) }))
	return from, to
}

// place finds a text.
func (s *sorted) place(text string) (place uint32, ok bool) {
	i, ok := slices.BinarySearchFunc(s.order, text, func(place uint32, text string) int { return strings.Compare(s.text(place), text) })
	if !ok {
		return 0, false
	}
	return s.order[i], true
}

// find is the id of a text.
func (s *sorted) find(text string) (int32, bool) {
	place, ok := s.place(text)
	if !ok {
		return 0, false
	}
	return s.id(place), true
}
