// Package tokenizer turns text into token ids and back, exactly as the files
// that ship with a model say: a tokenizer.json, a SentencePiece
// tokenizer.model, or the fields of a GGUF header. Byte is the tokenizer that
// needs no file.
//
// The one idea: a Tokenizer is an encoder (text to ids) beside a chain of
// decode stages (ids to text). Decode and Stream run the same chain, Stream
// one id at a time.
package tokenizer

import (
	"errors"
	"fmt"
	"slices"
)

// Tokenizer is one loaded tokenizer. It never changes after it was opened and
// is safe for concurrent use.
type Tokenizer struct {
	enc     encoder
	decode  func(eager bool) []stage // fresh stages of one decoding; eager: a Stream
	vocab   vocabulary
	special SpecialIDs
}

// encoder appends the ids of text to dst.
type encoder interface {
	encode(dst []int32, text string, o EncodeOptions) ([]int32, error)
}

// EncodeOptions changes what Encode does; the zero value encodes the text
// alone, with added tokens inside it recognised.
type EncodeOptions struct {
	// AddSpecial puts the special tokens of the file's template (or its BOS
	// and EOS) around the text.
	AddSpecial bool
	// Literal takes special tokens spelled out in the text as plain text:
	// for text that comes from someone else.
	Literal bool
}

// SpecialIDs are the ids with a role; -1 where the files name none.
type SpecialIDs struct {
	BOS, EOS, Unknown, Pad int32
	// Stop are the ids that end a generated text, EOS among them.
	Stop []int32
}

// noSpecialIDs is SpecialIDs with no role filled.
func noSpecialIDs() SpecialIDs { return SpecialIDs{BOS: -1, EOS: -1, Unknown: -1, Pad: -1} }

// some is t, and a tokenizer without tokens for one that Open did not make: a
// model whose files have none has a nil one.
func (t *Tokenizer) some() *Tokenizer {
	if t == nil || t.enc == nil {
		return &noTokenizer
	}
	return t
}

var noTokenizer = Tokenizer{
	decode:  func(bool) []stage { return nil },
	vocab:   vocabulary{find: func(string) (int32, bool) { return 0, false }},
	special: noSpecialIDs(),
}

// Encode returns the ids of text.
func (t *Tokenizer) Encode(text string, o EncodeOptions) ([]int32, error) {
	return t.AppendEncode(nil, text, o)
}

// AppendEncode appends the ids of text to dst; Encode without the allocation.
func (t *Tokenizer) AppendEncode(dst []int32, text string, o EncodeOptions) ([]int32, error) {
	if t == nil || t.enc == nil {
		return dst, errors.New("tokenizer: encode: the tokenizer is missing: Open makes one")
	}
	ids, err := t.enc.encode(dst, text, o)
	if err != nil {
		return dst, fmt.Errorf("tokenizer: encode: %w", err)
	}
	return ids, nil
}

// Decode returns the text of ids. Ids outside the vocabulary are skipped, as
// are special tokens when skipSpecial is set. Bytes that are no UTF-8 become
// U+FFFD; the tokenizer of Byte alone keeps them.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	t = t.some()
	c := newChain(t.decode(false))
	for _, id := range ids {
		if token, ok := t.vocab.shown(id, skipSpecial); ok {
			c.push(fragment{id: id, text: token})
		}
	}
	c.end()
	return string(c.out)
}

// VocabSize is the number of tokens, added tokens included.
func (t *Tokenizer) VocabSize() int { return t.some().vocab.size() }

// TokenToID returns the id of a token as it is written in the file.
func (t *Tokenizer) TokenToID(token string) (int32, bool) { return t.some().vocab.id(token) }

// IDToToken returns a token as it is written in the file.
func (t *Tokenizer) IDToToken(id int32) (string, bool) { return t.some().vocab.token(id) }

// IsSpecial tells whether id is a special token, which Decode can leave out.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.some().vocab.isSpecial(id) }

// Special returns the ids with a role.
func (t *Tokenizer) Special() SpecialIDs {
	s := t.some().special
	s.Stop = slices.Clone(s.Stop)
	return s
}
