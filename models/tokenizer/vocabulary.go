// Vocabulary: tokens by id and ids by token, for any set of ids.

package tokenizer

// vocabulary maps both ways. Ids need not be dense: one huge id costs one
// entry.
type vocabulary struct {
	ids     map[string]int32
	tokens  map[int32]string
	special map[int32]bool
}

func newVocabulary() vocabulary {
	return vocabulary{ids: map[string]int32{}, tokens: map[int32]string{}, special: map[int32]bool{}}
}

func (v *vocabulary) add(token string, id int32) {
	v.ids[token] = id
	v.tokens[id] = token
}

func (v *vocabulary) size() int { return len(v.tokens) }

func (v *vocabulary) id(token string) (int32, bool) {
	id, ok := v.ids[token]
	return id, ok
}

func (v *vocabulary) token(id int32) (string, bool) {
	token, ok := v.tokens[id]
	return token, ok
}

// shown is token for an id that takes part in a decoding.
func (v *vocabulary) shown(id int32, skipSpecial bool) (string, bool) {
	if skipSpecial && v.special[id] {
		return "", false
	}
	return v.token(id)
}
