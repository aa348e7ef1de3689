// Writing a tokenizer.json.

package tokenizer

import "encoding/json"

// trainedFile is the tokenizer.json of trained merges, in the form that the
// tokenizers library writes.
func trainedFile(merges [][2]int32, special []string) ([]byte, error) {
	tokens := make([]string, 256, 256+len(merges)+len(special))
	for b, symbol := range byteSymbols() {
		tokens[symbol] = byteChar[b]
	}
	spelled := make([][2]string, len(merges))
	for i, m := range merges {
		spelled[i] = [2]string{tokens[m[0]], tokens[m[1]]}
		tokens = append(tokens, tokens[m[0]]+tokens[m[1]])
	}
	added := []addedToken{}
	for i, token := range special {
		added = append(added, addedToken{ID: int32(len(tokens) + i), Content: token, Special: true})
	}
	bytesAsChars := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	return jsonFile{
		AddedTokens:  added,
		PreTokenizer: bytesAsChars,
		Decoder:      bytesAsChars,
		Model: object{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil,
			"end_of_word_suffix": nil, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
			"vocab": orderedVocab(tokens), "merges": spelled,
		},
	}.marshal()
}

// jsonFile is a tokenizer.json to be written.
type jsonFile struct {
	AddedTokens   []addedToken
	Normalizer    any
	PreTokenizer  any
	PostProcessor any
	Decoder       any
	Model         any
}

func (f jsonFile) marshal() ([]byte, error) {
	return indented(struct {
		Version       string       `json:"version"`
		Truncation    any          `json:"truncation"`
		Padding       any          `json:"padding"`
		AddedTokens   []addedToken `json:"added_tokens"`
		Normalizer    any          `json:"normalizer"`
		PreTokenizer  any          `json:"pre_tokenizer"`
		PostProcessor any          `json:"post_processor"`
		Decoder       any          `json:"decoder"`
		Model         any          `json:"model"`
	}{"1.0", nil, nil, f.AddedTokens, f.Normalizer, f.PreTokenizer, f.PostProcessor, f.Decoder, f.Model})
}

// orderedVocab writes tokens with their ids in the order of ids.
type orderedVocab []string

func (v orderedVocab) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for id, token := range v {
		key, err := json.Marshal(token)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(id)
		if err != nil {
			return nil, err
		}
		out = append(append(append(append(out, key...), ':'), value...), ',')
	}
	out[len(out)-1] = '}'
	return out, nil
}
