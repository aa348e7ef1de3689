// Vocabulary: tokens by id and ids by token, for any set of ids.

package tokenizer

import "sync"

// vocabulary maps both ways. Ids may be anywhere: those near the others are
// kept in a list, a huge one costs one entry.
type vocabulary struct {
	ids     map[string]int32
	lazy    func() map[string]int32 // makes ids when first asked; nil: ids is there
	dense   []string
	present []uint64 // bits: ids of dense that are tokens
	sparse  map[int32]string
	count   int
	special map[int32]bool
}

// denseSlack is how far past twice the number of tokens the list may reach.
const denseSlack = 1024

// newVocabulary has room for n tokens.
func newVocabulary(n int) vocabulary {
	return vocabulary{
		ids: make(map[string]int32, n), dense: make([]string, 0, n), sparse: map[int32]string{}, special: map[int32]bool{},
	}
}

// listed is the vocabulary of tokens whose ids are their places; it keeps the
// list. Few callers ask for the id of a token, so that map is made for those.
func listed(tokens []string) vocabulary {
	v := newVocabulary(0)
	v.lazy = sync.OnceValue(func() map[string]int32 { return places(tokens) })
	v.dense, v.count = tokens, len(tokens)
	for n := len(tokens); n > 0; n -= 64 {
		v.present = append(v.present, ^uint64(0)>>max(64-n, 0))
	}
	return v
}

// places are the ids of tokens by their place in a list, the last of equal ones.
func places(tokens []string) map[string]int32 {
	ids := make(map[string]int32, len(tokens))
	for id, token := range tokens {
		ids[token] = int32(id)
	}
	return ids
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
	if _, far := v.sparse[id]; far || int(id) > 2*v.count+denseSlack {
		v.sparse[id] = token
		return
	}
	for len(v.dense) <= int(id) {
		v.dense = append(v.dense, "")
	}
	for len(v.present) <= int(id)/64 {
		v.present = append(v.present, 0)
	}
	v.dense[id] = token
	v.present[id/64] |= 1 << (id % 64)
}

func (v *vocabulary) size() int { return v.count }

func (v *vocabulary) id(token string) (int32, bool) {
	ids := v.ids
	if v.lazy != nil {
		ids = v.lazy()
	}
	id, ok := ids[token]
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
