// Vocabulary: tokens by id and ids by token, for any set of ids.

package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// vocabulary maps both ways. Ids may be anywhere: those near the others are
// kept in a list, a huge one costs one entry.
type vocabulary struct {
	model   func() *index    // the ids of the model's tokens; nil: all are in ids
	ids     map[string]int32 // the others, which go first
	dense   []string
	shared  bool     // the model has dense too, so what it holds stays
	room    int      // how many tokens are to come
	present []uint64 // bits: ids of dense that are tokens
	sparse  map[int32]string
	count   int
	special map[int32]bool
}

// denseSlack is how far past twice the number of tokens the list may reach.
const denseSlack = 1024

func newVocabulary() vocabulary {
	return vocabulary{ids: map[string]int32{}, sparse: map[int32]string{}, special: map[int32]bool{}}
}

// listed is the vocabulary of tokens whose ids are their places; it keeps the
// list. Few callers ask for the id of a token, so that index is made for those.
func listed(tokens []string) vocabulary {
	v := newVocabulary()
	v.model = sync.OnceValue(func() *index { return newIndex(tokens) })
	v.dense, v.shared, v.count = tokens, true, len(tokens)
	for n := len(tokens); n > 0; n -= 64 {
		v.present = append(v.present, ^uint64(0)>>max(64-n, 0))
	}
	return v
}

// readModel reads the vocab of a BPE model, which becomes the model's part of
// an empty vocabulary. Of two ids for a token the last counts; of two tokens
// with an id the last is shown.
func (v *vocabulary) readModel(raw []byte) (*index, error) {
	count, size := 0, 0
	if err := members(raw, func(key, _ []byte) error {
		count++
		size += len(key)
		return nil
	}); err != nil {
		return nil, err
	}
	x := indexFor(count)
	v.dense, v.present, v.room = make([]string, 0, count), make([]uint64, 0, count/64+1), count
	var text strings.Builder // of all tokens, one after the other
	text.Grow(size)
	err := members(raw, func(key, value []byte) error {
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
		if earlier, ok := x.find(token); ok {
			x.remove(token)
			if shown, _ := v.token(earlier); shown == string(token) {
				v.drop(earlier)
			}
		}
		if shown, ok := v.token(id); ok {
			x.remove([]byte(shown))
			x.other[shown] = id
		}
		from := text.Len()
		text.Write(token)
		v.rename(id, text.String()[from:])
		x.tokens = v.dense
		x.add(text.String()[from:], id)
		return nil
	})
	v.shared = true
	v.model = func() *index { return x }
	return x, err
}

// drop takes an id out.
func (v *vocabulary) drop(id int32) {
	if _, far := v.sparse[id]; far {
		delete(v.sparse, id)
	} else {
		v.dense[id] = ""
		v.present[id/64] &^= 1 << (id % 64)
	}
	v.count--
}

// readID reads a number as encoding/json reads an int32.
func readID(raw []byte) (id int32, err error) {
	if n, err := strconv.ParseInt(string(raw), 10, 32); err == nil {
		return int32(n), nil
	}
	err = json.Unmarshal(raw, &id)
	return id, err
}

// add puts a token at id, which is not negative.
func (v *vocabulary) add(token string, id int32) {
	v.ids[token] = id
	v.rename(id, token)
}

// rename sets what id is shown as.
func (v *vocabulary) rename(id int32, token string) {
	if _, ok := v.token(id); !ok {
		v.count++
	}
	if _, far := v.sparse[id]; far || int(id) > 2*max(v.count, v.room)+denseSlack {
		v.sparse[id] = token
		return
	}
	for len(v.dense) <= int(id) {
		v.dense = append(v.dense, "")
	}
	for len(v.present) <= int(id)/64 {
		v.present = append(v.present, 0)
	}
	if v.shared && v.dense[id] != token && v.present[id/64]>>(id%64)&1 == 1 {
		v.dense, v.shared = slices.Clone(v.dense), false
	}
	v.dense[id] = token
	v.present[id/64] |= 1 << (id % 64)
}

func (v *vocabulary) size() int { return v.count }

func (v *vocabulary) id(token string) (int32, bool) {
	id, ok := v.ids[token]
	if !ok && v.model != nil {
		return v.model().id(token)
	}
	return id, ok
}

func (v *vocabulary) token(id int32) (string, bool) {
	if id >= 0 && int(id) < len(v.dense) && v.present[id/64]>>(id%64)&1 == 1 {
		return v.dense[id], true
	}
	token, ok := v.sparse[id]
	return token, ok
}

// shown is token for an id that takes part in a decoding.
func (v *vocabulary) shown(id int32, skipSpecial bool) (string, bool) {
	if skipSpecial && v.special[id] {
		return "", false
	}
	return v.token(id)
}
