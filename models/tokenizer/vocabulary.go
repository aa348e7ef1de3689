// Vocabulary: tokens by id and ids by token, for any set of ids.

package tokenizer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
)

// vocabulary maps both ways: what the model has, and the added tokens, which go
// first. Ids may be anywhere: those near the others are in a list, one far away
// costs one entry.
type vocabulary struct {
	tokens
	find  func(text string) (int32, bool) // of the model
	count int                             // ids that are tokens
	near  []uint32                        // by id, place + 1; nil: places are ids
	limit int                             // without near: how many
	far   []idPlace                       // in the order of ids

	added   added
	special []uint32 // ids of the model's, in order
}

type idPlace struct {
	id    int32
	place uint32
}

// nearSlack is how far past twice the number of tokens the list may reach.
const nearSlack = 1024

// listed is the vocabulary of n tokens whose ids are their places. Few callers
// ask for the id of a token, so what finds it is made for those.
func listed(t tokens, n int, finder func() func(string) (int32, bool)) vocabulary {
	make := sync.OnceValue(finder)
	return vocabulary{tokens: t, count: n, limit: n, find: func(text string) (int32, bool) { return make()(text) }}
}

// listedTexts is listed for a list of texts.
func listedTexts(l list) vocabulary {
	return listed(l, len(l), func() func(string) (int32, bool) { return newIndex(l).find })
}

// readModel reads the vocab of a BPE model. Of two ids for a token the last
// counts; of two tokens with an id the last is shown.
func readModel(raw []byte) (vocabulary, *index, error) {
	count, size := 0, 0
	if err := members(raw, func(key, value []byte) error {
		count++
		size += len(key) + numberSize(len(key)) + idSize(len(value))
		return nil
	}); err != nil {
		return vocabulary{}, nil, err
	}
	var out growing
	out.Grow(size)
	x := indexFor(&out, count)
	most := int32(-1)
	if err := members(raw, func(key, value []byte) error {
		token, err := unquoted(key)
		if err != nil {
			return err
		}
		id, err := readID(value)
		if err != nil {
			return err
		}
		if id < 0 {
			return fmt.Errorf("token %q has the negative id %d", token, id)
		}
		place := uint32(out.Len())
		putToken(&out.Builder, token, id)
		x.put(out.text(place), place)
		if int(id) < 2*count+nearSlack {
			most = max(most, id)
		}
		return nil
	}); err != nil {
		return vocabulary{}, nil, err
	}
	all := blob(out.String())
	x.tokens = all
	v := vocabulary{tokens: all, find: x.find, near: make([]uint32, most+1)}
	far := 0
	for place := uint32(0); place < uint32(len(all)); place = all.next(place) {
		id := all.id(place)
		switch now, _ := x.place(all.text(place)); {
		case now != place: // it has another id
		case int(id) < len(v.near):
			v.near[id] = place + 1
		default:
			far++
		}
	}
	v.far = make([]idPlace, 0, far)
	for place := uint32(0); far > 0 && place < uint32(len(all)); place = all.next(place) {
		id := all.id(place)
		if now, _ := x.place(all.text(place)); now == place && int(id) >= len(v.near) {
			v.far = append(v.far, idPlace{id, place})
		}
	}
	v.far = lastOfEach(v.far, func(x idPlace) int32 { return x.id })
	v.count = len(v.far)
	for _, place := range v.near {
		if place > 0 {
			v.count++
		}
	}
	return v, x, nil
}

// lastOfEach sorts a list by id and keeps the last of those with one id.
func lastOfEach[E any](l []E, id func(E) int32) []E {
	slices.SortStableFunc(l, func(x, y E) int { return cmp.Compare(id(x), id(y)) })
	kept := l[:0]
	for i, x := range l {
		if i+1 == len(l) || id(l[i+1]) != id(x) {
			kept = append(kept, x)
		}
	}
	return kept
}

// idSize bounds the bytes of a number in a blob by its digits.
func idSize(digits int) int { return (digits*10/3 + 7) / 7 }

// readID reads a number as encoding/json reads an int32.
func readID(raw []byte) (int32, error) {
	if n, err := strconv.ParseInt(string(raw), 10, 32); err == nil {
		return int32(n), nil
	}
	var id int32
	err := json.Unmarshal(raw, &id)
	return id, err
}

func (v *vocabulary) size() int { return v.count + v.added.more }

// id is that of a token.
func (v *vocabulary) id(token string) (int32, bool) {
	if id, ok := v.added.find(token); ok {
		return id, true
	}
	return v.find(token)
}

// own is the token that the model has at an id.
func (v *vocabulary) own(id int32) (string, bool) {
	switch {
	case id < 0:
	case v.near == nil && int(id) < v.limit:
		return v.text(uint32(id)), true
	case int(id) < len(v.near):
		if place := v.near[id]; place > 0 {
			return v.text(place - 1), true
		}
	default:
		if i, ok := slices.BinarySearchFunc(v.far, id, func(x idPlace, id int32) int { return cmp.Compare(x.id, id) }); ok {
			return v.text(v.far[i].place), true
		}
	}
	return "", false
}

// token is what an id is shown as.
func (v *vocabulary) token(id int32) (string, bool) {
	if t := v.added.of(id); t != nil {
		return v.added.text(t), true
	}
	return v.own(id)
}

func (v *vocabulary) isSpecial(id int32) bool {
	if t := v.added.of(id); t != nil {
		return t.special
	}
	_, ok := slices.BinarySearch(v.special, uint32(id))
	return ok
}

// shown is token for an id that takes part in a decoding.
func (v *vocabulary) shown(id int32, skipSpecial bool) (string, bool) {
	if skipSpecial && v.isSpecial(id) {
		return "", false
	}
	return v.token(id)
}
