// The byte tokenizer: ids are the bytes of the text.

package tokenizer

// Byte returns the tokenizer whose 256 ids are the bytes of the text. It has
// no special tokens, and Decode gives back exactly the bytes, valid UTF-8 or
// not. Its Stream, like every Stream, emits whole characters.
func Byte() *Tokenizer {
	all := make(list, 256)
	for b := range all {
		all[b] = string([]byte{byte(b)})
	}
	return &Tokenizer{
		enc:     byteEncoder{},
		vocab:   listedTexts(all),
		special: noSpecialIDs(),
		decode: func(eager bool) []stage {
			if eager {
				return []stage{&byteStage{}}
			}
			return nil
		},
	}
}

type byteEncoder struct{}

func (byteEncoder) encode(dst []int32, text string, _ EncodeOptions) ([]int32, error) {
	for i := range len(text) {
		dst = append(dst, int32(text[i]))
	}
	return dst, nil
}

// byteStage takes each token's text as raw bytes.
type byteStage struct{ utf8 assembler }

func (s *byteStage) push(out []fragment, f fragment) []fragment {
	return append(out, fragment{text: s.utf8.push(f.text)})
}

func (s *byteStage) end(out []fragment) []fragment {
	return append(out, fragment{text: s.utf8.end()})
}
