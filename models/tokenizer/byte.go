// The byte tokenizer: ids are the bytes of the text.

package tokenizer

// Byte returns the tokenizer whose 256 ids are the bytes of the text. It has
// no special tokens, and Decode gives back exactly the bytes, valid UTF-8 or
// not. Its Stream, like every Stream, emits whole characters.
func Byte() *Tokenizer {
	t := &Tokenizer{
		enc:     byteEncoder{},
		vocab:   newVocabulary(),
		special: noSpecialIDs(),
		decode: func(eager bool) []stage {
			if eager {
				return []stage{&byteStage{}}
			}
			return nil
		},
	}
	for b := range 256 {
		t.vocab.add(string([]byte{byte(b)}), int32(b))
	}
	return t
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
