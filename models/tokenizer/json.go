// tokenizer.json: the file's structure.

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// fileJSON is a tokenizer.json, its values as they stand there. truncation and padding are left out: they
// shape batches, not ids.
type fileJSON struct {
	AddedTokens, Normalizer, PreTokenizer, PostProcessor, Decoder, Model json.RawMessage
}

// FromJSON opens the contents of a tokenizer.json. A component of an unknown
// kind is an error that names it.
func FromJSON(data []byte) (*Tokenizer, error) {
	t, err := fromJSON(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

func fromJSON(data []byte) (*Tokenizer, error) {
	if len(data) > maxFile {
		return nil, fmt.Errorf("at most %d bytes are read, got %d", maxFile, len(data))
	}
	if !json.Valid(data) {
		return nil, json.Unmarshal(data, new(any)) // tells where
	}
	var f fileJSON
	if err := readFields(data, map[string]any{
		"added_tokens": &f.AddedTokens, "normalizer": &f.Normalizer, "pre_tokenizer": &f.PreTokenizer,
		"post_processor": &f.PostProcessor, "decoder": &f.Decoder, "model": &f.Model,
	}); err != nil {
		return nil, err
	}
	return f.build()
}

func (f *fileJSON) build() (*Tokenizer, error) {
	p := &pipeline{}
	t := &Tokenizer{enc: p, special: noSpecialIDs()}
	var err error
	for name, raw := range map[string]json.RawMessage{
		"normalizer": f.Normalizer, "pre_tokenizer": f.PreTokenizer,
		"post_processor": f.PostProcessor, "decoder": f.Decoder,
	} {
		if err := checkComponent(raw); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	encoding, decoding := growth(1), growth(1)
	if p.normalizer, err = parseNormalizer(f.Normalizer, &encoding); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if p.pre, err = parsePreTokenizer(f.PreTokenizer, &encoding); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if err = f.buildModel(t, p); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err := t.addTokens(p, f.AddedTokens); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	if p.before, p.after, err = parsePostProcessor(f.PostProcessor); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	decoders, err := parseDecoder(f.Decoder, &decoding)
	if err != nil {
		return nil, fmt.Errorf("decoder: %w", err)
	}
	t.decode = stagesOf(decoders)
	return t, nil
}

// maxNesting is the depth of brackets that a component may have. Each sequence
// is read once for every sequence around it.
const maxNesting = 32

func deeperThan(raw json.RawMessage, limit int) bool {
	depth, inString := 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// isNull tells whether a component is absent.
func isNull(raw json.RawMessage) bool { return len(raw) == 0 || bytes.Equal(raw, []byte("null")) }

// kindOf reads the type of a component.
func kindOf(raw json.RawMessage) (string, error) {
	var k struct{ Type *string }
	if err := json.Unmarshal(raw, &k); err != nil {
		return "", err
	}
	if k.Type == nil {
		return "", fmt.Errorf("a component needs a type, got %s", shortened(raw))
	}
	return *k.Type, nil
}

func shortened(raw []byte) string {
	if len(raw) > 80 {
		return string(raw[:80]) + "..."
	}
	return string(raw)
}

// fields reads the fields of a component into v.
func fields(kind string, raw json.RawMessage, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

// modelJSON is the model, Vocab and Merges as they stand in the file.
type modelJSON struct {
	Type                                string
	Dropout                             *float64
	UnkToken, Prefix, Suffix            *string
	FuseUnk, ByteFallback, IgnoreMerges bool
	UnkID                               *int32
	Vocab, Merges                       json.RawMessage
}

func (f *fileJSON) buildModel(t *Tokenizer, p *pipeline) error {
	if isNull(f.Model) {
		return fmt.Errorf("required, but missing")
	}
	var m modelJSON
	if err := readFields(f.Model, map[string]any{
		"type": &m.Type, "dropout": &m.Dropout, "unk_token": &m.UnkToken,
		"continuing_subword_prefix": &m.Prefix, "end_of_word_suffix": &m.Suffix,
		"fuse_unk": &m.FuseUnk, "byte_fallback": &m.ByteFallback, "ignore_merges": &m.IgnoreMerges,
		"unk_id": &m.UnkID, "vocab": &m.Vocab, "merges": &m.Merges,
	}); err != nil {
		return err
	}
	if m.Type == "" && len(m.Merges) > 0 { // files of before types were written
		m.Type = "BPE"
	}
	switch m.Type {
	case "BPE":
		return m.buildBPE(t, p)
	case "Unigram":
		return m.buildUnigram(t, p)
	}
	return fmt.Errorf("type %q is not supported: required BPE or Unigram", m.Type)
}

func (m *modelJSON) buildBPE(t *Tokenizer, p *pipeline) error {
	if m.Dropout != nil && *m.Dropout != 0 {
		return fmt.Errorf("BPE: dropout %g makes ids random: required null or 0", *m.Dropout)
	}
	var words *index
	var err error
	if t.vocab, words, err = readModel(m.Vocab); err != nil {
		return fmt.Errorf("BPE: vocab: %w", err)
	}
	count := 0
	if !isNull(m.Merges) {
		err = elements(m.Merges, func([]byte) error { count++; return nil })
	}
	if err != nil {
		return fmt.Errorf("BPE: merges: %w", err)
	}
	c := bpeConfig{
		vocab:        &t.vocab,
		words:        words,
		merges:       func(yield func(left, right []byte) error) error { return eachMerge(m.Merges, yield) },
		mergeCount:   min(count, len(m.Merges)/7+shortMerges),
		ignoreMerges: m.IgnoreMerges,
		fuseUnknown:  m.FuseUnk,
		byteFallback: m.ByteFallback,
		unknown:      orEmpty(m.UnkToken),
		hasUnknown:   m.UnkToken != nil,
		prefix:       orEmpty(m.Prefix),
		suffix:       orEmpty(m.Suffix),
	}
	last, ok := lastOf(p.pre).(byteLevel)
	c.byteLevel = ok
	model, err := newBPE(c)
	if err != nil {
		return err
	}
	if model.rawBytes {
		last.raw = true
		p.pre[len(p.pre)-1] = last
	}
	if model.unknown >= 0 {
		t.special.Unknown = model.unknown
	}
	p.model = model
	return nil
}

// shortMerges is how many different merges can stand in 6 bytes each: those of
// two characters of ASCII.
const shortMerges = 1 << 13

func lastOf(pre []preTokenizer) preTokenizer {
	if len(pre) == 0 {
		return nil
	}
	return pre[len(pre)-1]
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// eachMerge reads both spellings: "a b" and ["a", "b"].
func eachMerge(raw json.RawMessage, yield func(left, right []byte) error) error {
	if isNull(raw) {
		return nil
	}
	i := 0
	return elements(raw, func(value []byte) error {
		defer func() { i++ }()
		if value[0] == '[' {
			return pairMerge(i, value, yield)
		}
		line, err := unquoted(value)
		if err != nil {
			return fmt.Errorf("merges: merge %d: %w", i, err)
		}
		return cutMerge(i, line, yield)
	})
}

func pairMerge(i int, raw []byte, yield func(left, right []byte) error) error {
	var pair [2][]byte
	n := 0
	err := elements(raw, func(value []byte) (err error) {
		if n < 2 {
			pair[n], err = unquoted(value)
		}
		n++
		return err
	})
	if err == nil && n != 2 {
		err = fmt.Errorf("required two tokens, got %d", n)
	}
	if err != nil {
		return fmt.Errorf("merges: merge %d: %w", i, err)
	}
	return yield(pair[0], pair[1])
}

// cutMerge reads a merge of the form "a b".
func cutMerge(i int, line []byte, yield func(left, right []byte) error) error {
	if bytes.HasPrefix(line, []byte("#version")) {
		return nil
	}
	left, right, ok := bytes.Cut(line, []byte(" "))
	if !ok || bytes.IndexByte(right, ' ') >= 0 {
		return fmt.Errorf("merges: merge %d: required two tokens and one space, got %q", i, line)
	}
	return yield(left, right)
}

func (m *modelJSON) buildUnigram(t *Tokenizer, p *pipeline) error {
	c := unigramConfig{unknown: -1, byteFallback: m.ByteFallback, minScore: math.Inf(1)}
	rows, size, narrow := 0, 0, true
	each := func(yield func(token []byte, score float64)) error {
		n := 0
		return elements(m.Vocab, func(row []byte) error {
			token, score, err := readRow(row)
			if err != nil {
				return fmt.Errorf("entry %d: %w", n, err)
			}
			yield(token, score)
			n++
			return nil
		})
	}
	if err := each(func(token []byte, score float64) {
		rows++
		size += len(token) + numberSize(len(token)) + 1
		narrow = narrow && float64(float32(score)) == score
		c.minScore = min(c.minScore, score)
	}); err != nil {
		return fmt.Errorf("Unigram: vocab: %w", err)
	}
	if rows == 0 {
		return fmt.Errorf("Unigram: vocab: at least one token is required, got none")
	}
	tokens := &scoredTokens{at: make([]uint32, 0, rows)}
	if narrow {
		tokens.narrow = make([]float32, 0, rows)
	} else {
		tokens.wide = make([]float64, 0, rows)
	}
	var texts strings.Builder
	texts.Grow(size)
	err := each(func(token []byte, score float64) {
		tokens.at = append(tokens.at, uint32(texts.Len()))
		putToken(&texts, token, 0)
		if narrow {
			tokens.narrow = append(tokens.narrow, float32(score))
		} else {
			tokens.wide = append(tokens.wide, score)
		}
	})
	if err != nil {
		return err
	}
	tokens.texts = blob(texts.String())
	if m.UnkID != nil {
		if c.unknown = *m.UnkID; c.unknown < 0 {
			return fmt.Errorf("Unigram: unk_id %d is negative", c.unknown)
		}
		t.special.Unknown = c.unknown
	}
	c.scored, c.count = tokens, rows
	model, err := newUnigram(c)
	if err != nil {
		return err
	}
	t.vocab = listed(tokens, rows, func() func(string) (int32, bool) { return model.tokens.find })
	p.model = model
	return nil
}

// scoredTokens are the tokens of a Unigram model: 9 bytes each beside the text,
// 13 where a score is no float32.
type scoredTokens struct {
	texts  blob
	at     []uint32
	narrow []float32
	wide   []float64
}

func (t *scoredTokens) text(place uint32) string { return t.texts.text(t.at[place]) }
func (t *scoredTokens) id(place uint32) int32    { return int32(place) }
func (t *scoredTokens) chosen(uint32) bool       { return true }

func (t *scoredTokens) score(place uint32) float64 {
	if t.wide != nil {
		return t.wide[place]
	}
	return float64(t.narrow[place])
}

// readRow reads a token and its score.
func readRow(row []byte) (token []byte, score float64, err error) {
	n := 0
	err = elements(row, func(value []byte) (err error) {
		n++
		switch n {
		case 1:
			token, err = unquoted(value)
		case 2:
			score, err = strconv.ParseFloat(string(value), 64)
		}
		return err
	})
	if err == nil && n != 2 {
		err = fmt.Errorf("required a token and a score, got %d values", n)
	}
	return token, score, err
}
