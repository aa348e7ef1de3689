// Writing the tokenizer of a GGUF file as the files of a Hugging Face folder.

package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
)

type object = map[string]any

// JSON is the tokenizer.json that gives the same ids. SentencePiece scores
// become merges, as transformers converts them; a unigram tokenizer (t5) has
// no such form here.
func (g GGUF) JSON() ([]byte, error) {
	t, err := g.tokenizer() // tells what is wrong with it
	if err == nil && newIndex(g.Tokens).len() != len(g.Tokens) {
		err = fmt.Errorf("tokenizer.ggml.tokens: a tokenizer.json holds each token once, here one occurs twice")
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer: GGUF: %w", err)
	}
	model := object{
		"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
		"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": orderedVocab(g.Tokens),
	}
	f := jsonFile{AddedTokens: []addedToken{}, Model: model, PostProcessor: t.template()}
	for id, token := range g.Tokens {
		switch kind := g.typeOf(id); kind {
		case controlPiece, userPiece, unknownPiece:
			if token != "" {
				f.AddedTokens = append(f.AddedTokens, addedToken{ID: int32(id), Content: token, Special: kind != userPiece})
			}
		}
	}
	switch g.Model {
	case "gpt2":
		pre := ggufPres[g.Pre]
		var steps []object
		for _, p := range pre.patterns {
			steps = append(steps, object{"type": "Split", "pattern": object{"Regex": p}, "behavior": "Isolated", "invert": false})
		}
		bytesAsChars := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
		f.PreTokenizer = object{"type": "Sequence", "pretokenizers": append(steps, bytesAsChars)}
		f.Decoder = object{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}
		if pre.nfc {
			f.Normalizer = object{"type": "NFC"}
		}
		var merges [][2]string
		err := g.merges(func(left, right []byte) error {
			merges = append(merges, [2]string{string(left), string(right)})
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("tokenizer: GGUF: %w", err)
		}
		model["ignore_merges"], model["merges"] = pre.ignoreMerges, merges
	case "llama":
		spaces := object{"type": "Replace", "pattern": object{"String": " "}, "content": spaceMark}
		decoders := []object{{"type": "Replace", "pattern": object{"String": spaceMark}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}}
		f.Normalizer = spaces
		if orDefault(g.AddSpacePrefix, true) {
			f.Normalizer = object{"type": "Sequence", "normalizers": []object{{"type": "Prepend", "prepend": spaceMark}, spaces}}
			decoders = append(decoders, object{"type": "Strip", "content": " ", "start": 1, "stop": 0})
		}
		f.Decoder = object{"type": "Sequence", "decoders": decoders}
		if id := t.special.Unknown; id >= 0 {
			model["unk_token"] = g.Tokens[id]
		}
		_, bytesToo := t.TokenToID(byteToken(0))
		model["fuse_unk"], model["byte_fallback"], model["merges"] = true, bytesToo, g.scoredMerges()
	default:
		return nil, fmt.Errorf("tokenizer: GGUF: tokenizer.ggml.model %q has no form as a tokenizer.json here (gpt2 and llama have)", g.Model)
	}
	return f.marshal()
}

// scoredMerges are the ways to make each piece of two others, the best score
// first.
func (g GGUF) scoredMerges() [][2]string {
	ids := map[string]int32{}
	var order []int32
	for id, token := range g.Tokens {
		if kind := g.typeOf(id); kind == normalPiece || kind == userPiece {
			ids[token] = int32(id)
			order = append(order, int32(id))
		}
	}
	slices.SortStableFunc(order, func(x, y int32) int { return cmp.Compare(g.Scores[y], g.Scores[x]) })
	merges := [][2]string{}
	for _, id := range order {
		piece, first := g.Tokens[id], len(merges)
		for at := range piece {
			_, okLeft := ids[piece[:at]]
			_, okRight := ids[piece[at:]]
			if at > 0 && okLeft && okRight {
				merges = append(merges, [2]string{piece[:at], piece[at:]})
			}
		}
		slices.SortFunc(merges[first:], func(x, y [2]string) int {
			return cmp.Or(cmp.Compare(ids[x[0]], ids[y[0]]), cmp.Compare(ids[x[1]], ids[y[1]]))
		})
	}
	return merges
}

// template is the post-processor that puts the special tokens around a text,
// nil where there are none.
func (t *Tokenizer) template() any {
	p := t.enc.(*pipeline)
	if len(p.before)+len(p.after) == 0 {
		return nil
	}
	single, tokens := []object{}, object{}
	add := func(ids []int32) {
		for _, id := range ids {
			token, _ := t.vocab.token(id)
			single = append(single, object{"SpecialToken": object{"id": token, "type_id": 0}})
			tokens[token] = object{"id": token, "ids": []int32{id}, "tokens": []string{token}}
		}
	}
	add(p.before)
	single = append(single, object{"Sequence": object{"id": "A", "type_id": 0}})
	add(p.after)
	pair := append(slices.Clone(single), object{"Sequence": object{"id": "B", "type_id": 1}})
	return object{"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}
}

// Config is the tokenizer_config.json that goes with JSON: the tokens with a
// role, and the chat template, if there is one.
func (g GGUF) Config(chatTemplate string) ([]byte, error) {
	t, err := FromGGUF(g)
	if err != nil {
		return nil, err
	}
	c := object{"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false}
	for name, id := range map[string]int32{"bos_token": t.special.BOS, "eos_token": t.special.EOS, "unk_token": t.special.Unknown, "pad_token": t.special.Pad} {
		if token, ok := t.vocab.token(id); ok {
			c[name] = token
		}
	}
	if chatTemplate != "" {
		c["chat_template"] = chatTemplate
	}
	return indented(c)
}

func indented(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(v)
	return out.Bytes(), err
}
