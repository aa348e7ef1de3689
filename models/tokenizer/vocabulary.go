// Vocabulary: tokens by id and ids by token, for any set of ids.

package tokenizer

// vocabulary maps both ways. Ids may be anywhere: those near the others are
// kept in a list, a huge one costs one entry.
type vocabulary struct {
	ids     map[string]int32
	dense   []entry
	sparse  map[int32]string
	count   int
	special map[int32]bool
}

type entry struct {
	token   string
	present bool
}

// denseSlack is how far past twice the number of tokens the list may reach.
const denseSlack = 1024

func newVocabulary() vocabulary {
	return vocabulary{ids: map[string]int32{}, sparse: map[int32]string{}, special: map[int32]bool{}}
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
		v.dense = append(v.dense, entry{})
	}
	v.dense[id] = entry{token, true}
}

func (v *vocabulary) size() int { return v.count }

func (v *vocabulary) id(token string) (int32, bool) {
	id, ok := v.ids[token]
	return id, ok
}

func (v *vocabulary) token(id int32) (string, bool) {
	if id >= 0 && int(id) < len(v.dense) && v.dense[id].present {
		return v.dense[id].token, true
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
