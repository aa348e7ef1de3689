// tokenizer.json: the file's structure.

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// fileJSON is a tokenizer.json. truncation and padding are left out: they
// shape batches, not ids.
type fileJSON struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage `json:"decoder"`
	Model         json.RawMessage `json:"model"`
}

// FromJSON opens the contents of a tokenizer.json. A component of an unknown
// kind is an error that names it.
func FromJSON(data []byte) (*Tokenizer, error) {
	var f fileJSON
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t, err := f.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

func (f *fileJSON) build() (*Tokenizer, error) {
	p := &pipeline{}
	t := &Tokenizer{enc: p, vocab: newVocabulary(0), special: noSpecialIDs()}
	var err error
	for name, raw := range map[string]json.RawMessage{
		"normalizer": f.Normalizer, "pre_tokenizer": f.PreTokenizer,
		"post_processor": f.PostProcessor, "decoder": f.Decoder,
	} {
		if deeperThan(raw, maxNesting) {
			return nil, fmt.Errorf("%s: nested deeper than %d", name, maxNesting)
		}
	}
	if p.normalizer, err = parseNormalizer(f.Normalizer); err != nil {
		return nil, fmt.Errorf("normalizer: %w", err)
	}
	if p.pre, err = parsePreTokenizer(f.PreTokenizer); err != nil {
		return nil, fmt.Errorf("pre_tokenizer: %w", err)
	}
	if err = f.buildModel(t, p); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err = t.addTokens(p, f.AddedTokens); err != nil {
		return nil, fmt.Errorf("added_tokens: %w", err)
	}
	if p.before, p.after, err = parsePostProcessor(f.PostProcessor); err != nil {
		return nil, fmt.Errorf("post_processor: %w", err)
	}
	decoders, err := parseDecoder(f.Decoder)
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

type modelJSON struct {
	Type         string          `json:"type"`
	Dropout      *float64        `json:"dropout"`
	UnkToken     *string         `json:"unk_token"`
	Prefix       *string         `json:"continuing_subword_prefix"`
	Suffix       *string         `json:"end_of_word_suffix"`
	FuseUnk      bool            `json:"fuse_unk"`
	ByteFallback bool            `json:"byte_fallback"`
	IgnoreMerges bool            `json:"ignore_merges"`
	UnkID        *int32          `json:"unk_id"`
	Vocab        json.RawMessage `json:"vocab"`
	Merges       json.RawMessage `json:"merges"`
}

func (f *fileJSON) buildModel(t *Tokenizer, p *pipeline) error {
	if isNull(f.Model) {
		return fmt.Errorf("required, but missing")
	}
	var m modelJSON
	if err := json.Unmarshal(f.Model, &m); err != nil {
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
	var vocab map[string]int32
	if err := fields("BPE: vocab", m.Vocab, &vocab); err != nil {
		return err
	}
	merges, err := parseMerges(m.Merges)
	if err != nil {
		return fmt.Errorf("BPE: merges: %w", err)
	}
	t.vocab = newVocabulary(len(vocab))
	for token, id := range vocab {
		if id < 0 {
			return fmt.Errorf("BPE: vocab: token %q has the negative id %d", token, id)
		}
		t.vocab.add(token, id)
	}
	c := bpeConfig{
		vocab:        vocab,
		merges:       merges,
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

// parseMerges reads both spellings: "a b" and ["a", "b"].
func parseMerges(raw json.RawMessage) ([][2]string, error) {
	if isNull(raw) {
		return nil, nil
	}
	body := bytes.TrimLeft(raw, "[ \t\r\n")
	if len(body) > 0 && body[0] == '"' && !bytes.HasPrefix(bytes.TrimLeft(raw[1:], " \t\r\n"), []byte("[")) {
		return spacedMerges(raw)
	}
	var pairs [][]string
	if err := json.Unmarshal(raw, &pairs); err != nil {
		return nil, err
	}
	merges := make([][2]string, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return nil, fmt.Errorf("merge %d: required two tokens, got %d", i, len(p))
		}
		merges[i] = [2]string(p)
	}
	return merges, nil
}

func spacedMerges(raw json.RawMessage) ([][2]string, error) {
	var lines []string
	if err := json.Unmarshal(raw, &lines); err != nil {
		return nil, err
	}
	return cutMerges(lines)
}

// cutMerges reads merges of the form "a b".
func cutMerges(lines []string) ([][2]string, error) {
	merges := make([][2]string, 0, len(lines))
	for i, line := range lines {
		if strings.HasPrefix(line, "#version") {
			continue
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(right, " ") {
			return nil, fmt.Errorf("merge %d: required two tokens and one space, got %q", i, line)
		}
		merges = append(merges, [2]string{left, right})
	}
	return merges, nil
}

func (m *modelJSON) buildUnigram(t *Tokenizer, p *pipeline) error {
	var rows [][]json.RawMessage
	if err := fields("Unigram: vocab", m.Vocab, &rows); err != nil {
		return err
	}
	if len(rows) == 0 {
		return fmt.Errorf("Unigram: vocab: at least one token is required, got none")
	}
	c := unigramConfig{unknown: -1, byteFallback: m.ByteFallback}
	for i, row := range rows {
		var token string
		var score float64
		if len(row) != 2 {
			return fmt.Errorf("Unigram: vocab: entry %d: required a token and a score, got %d values", i, len(row))
		}
		if err := json.Unmarshal(row[0], &token); err != nil {
			return fmt.Errorf("Unigram: vocab: entry %d: %w", i, err)
		}
		if err := json.Unmarshal(row[1], &score); err != nil {
			return fmt.Errorf("Unigram: vocab: entry %d: %w", i, err)
		}
		c.tokens = append(c.tokens, token)
		c.scores = append(c.scores, score)
		t.vocab.add(token, int32(i))
	}
	if m.UnkID != nil {
		if c.unknown = *m.UnkID; c.unknown < 0 {
			return fmt.Errorf("Unigram: unk_id %d is negative", c.unknown)
		}
		t.special.Unknown = c.unknown
	}
	c.minScore = lowestScore(c.scores)
	model, err := newUnigram(c)
	p.model = model
	return err
}

// addTokens puts the added tokens in the vocabulary and in the encoder. A
// token that the model has keeps the model's id.
func (t *Tokenizer) addTokens(p *pipeline, tokens []addedToken) error {
	var plain, normalized []addedToken
	special := map[string]bool{}
	for _, a := range tokens {
		special[a.Content] = special[a.Content] || a.Special
	}
	for _, a := range tokens {
		if a.Content == "" {
			continue
		}
		if a.ID < 0 || a.ID == math.MaxInt32 {
			return fmt.Errorf("%q: id %d is out of range", a.Content, a.ID)
		}
		if id, ok := t.vocab.id(a.Content); ok {
			a.ID = id
		}
		t.vocab.add(a.Content, a.ID)
		if a.Special {
			t.vocab.special[a.ID] = true
		}
		if !a.Normalized {
			plain = append(plain, a)
			continue
		}
		if p.normalizer != nil {
			text, _, err := p.normalizer.normalize(a.Content, true)
			if err != nil {
				return fmt.Errorf("%q: %w", a.Content, err)
			}
			if text == "" {
				continue
			}
			a.Content = text
			t.vocab.rename(a.ID, text)
			t.vocab.special[a.ID] = special[text] // it is left out by how it is shown
		}
		normalized = append(normalized, a)
	}
	p.added, p.addedNormalized = newAddedMatcher(plain), newAddedMatcher(normalized)
	return nil
}
