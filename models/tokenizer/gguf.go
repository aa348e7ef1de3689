// Tokenizers from the metadata of a GGUF file.

package tokenizer

import (
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// GGUF is the metadata under tokenizer.ggml. that decides ids, as the file
// gives it. Pointers are nil for keys that the file has not.
type GGUF struct {
	Model  string    // model: gpt2 (byte-level BPE), llama (SentencePiece BPE), t5 (unigram)
	Pre    string    // pre: name of the pre-tokenizer, for gpt2
	Tokens []string  // tokens; the tokenizer keeps the list
	Scores []float32 // scores, for llama and t5
	Types  []int32   // token_type; empty: all normal
	Merges []string  // merges, for gpt2

	BOS, EOS, Unknown, Pad *int32  // bos_token_id, eos_token_id, unknown_token_id, padding_token_id
	Stop                   []int32 // eot_token_id, eom_token_id: further ids that end a text

	AddBOS, AddEOS         *bool  // add_bos_token, add_eos_token
	AddSpacePrefix         *bool  // add_space_prefix, for llama and t5
	RemoveExtraWhitespaces *bool  // remove_extra_whitespaces
	CharsMap               []byte // precompiled_charsmap, for t5
}

// FromGGUF makes the tokenizer of a GGUF file. Control and user-defined tokens
// spelled out in a text are found, as in tokenizer.json.
func FromGGUF(g GGUF) (*Tokenizer, error) {
	t, err := g.tokenizer()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: GGUF: %w", err)
	}
	return t, nil
}

func (g *GGUF) tokenizer() (*Tokenizer, error) {
	if len(g.Tokens) == 0 {
		return nil, fmt.Errorf("tokenizer.ggml.tokens: required, but empty")
	}
	if n := len(g.Types); n != 0 && n != len(g.Tokens) {
		return nil, fmt.Errorf("tokenizer.ggml.token_type: required %d, one a token, got %d", len(g.Tokens), n)
	}
	switch g.Model {
	case "gpt2":
		return g.byteLevel()
	case "llama":
		return g.sentencePieceBPE()
	case "t5":
		return g.unigram()
	}
	return nil, fmt.Errorf("tokenizer.ggml.model %q is not supported: required gpt2, llama or t5", g.Model)
}

func (g *GGUF) typeOf(id int) pieceType {
	if len(g.Types) == 0 {
		return normalPiece
	}
	return pieceType(g.Types[id])
}

// base is a tokenizer with vocabulary, roles and added tokens. bos and eos
// tell whether they are added where the file does not say.
func (g *GGUF) base(p *pipeline, bos, eos bool) (*Tokenizer, error) {
	t := &Tokenizer{enc: p, vocab: listedTexts(g.Tokens), special: noSpecialIDs()}
	t.vocab.special = places(len(g.Tokens), func(place uint32) bool { return g.typeOf(int(place)) == controlPiece })
	p.added = newAddedMatcher(ggufAdded{g.Tokens, g}, places(len(g.Tokens), func(place uint32) bool {
		kind := g.typeOf(int(place))
		return g.Tokens[place] != "" && (kind == controlPiece || kind == userPiece)
	}))
	for _, role := range []struct {
		name string
		from *int32
		to   *int32
	}{
		{"bos_token_id", g.BOS, &t.special.BOS}, {"eos_token_id", g.EOS, &t.special.EOS},
		{"unknown_token_id", g.Unknown, &t.special.Unknown}, {"padding_token_id", g.Pad, &t.special.Pad},
	} {
		if role.from == nil {
			continue
		}
		if _, ok := t.vocab.token(*role.from); !ok {
			return nil, fmt.Errorf("tokenizer.ggml.%s: %d is past the vocabulary of %d", role.name, *role.from, len(g.Tokens))
		}
		*role.to = *role.from
	}
	for _, id := range append([]int32{t.special.EOS}, g.Stop...) {
		t.addStop(id)
	}
	if orDefault(g.AddBOS, bos) && t.special.BOS >= 0 {
		p.before = []int32{t.special.BOS}
	}
	if orDefault(g.AddEOS, eos) && t.special.EOS >= 0 {
		p.after = []int32{t.special.EOS}
	}
	return t, nil
}

// ggufAdded are the control and user-defined tokens.
type ggufAdded struct {
	list
	keys *GGUF
}

func (a ggufAdded) flags(place uint32) addedFlags {
	if a.keys.typeOf(int(place)) == controlPiece {
		return specialToken
	}
	return 0
}

func orDefault(v *bool, otherwise bool) bool {
	if v == nil {
		return otherwise
	}
	return *v
}

// ggufPre is one pre-tokenizer by its name in GGUF files. The patterns are
// those of the models' own tokenizer.json.
type ggufPre struct {
	patterns     []string
	ignoreMerges bool
	addBOS       bool
	nfc          bool
}

const (
	deepseek3Words = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+" +
		`|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	upperLower   = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	upperOnly    = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`
	afterNumbers = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

var ggufPres = func() map[string]ggufPre {
	table := map[string]ggufPre{}
	for names, pre := range map[string]ggufPre{
		"gpt-2 phi-2 mpt olmo jais":                   {patterns: []string{gpt2Pattern}},
		"smollm starcoder refact command-r codeshell": {patterns: []string{`\p{N}`, gpt2Pattern}},
		"llama-bpe llama3 llama-v3 falcon3":           {patterns: []string{llama3Pattern}, ignoreMerges: true, addBOS: true},
		"dbrx smaug-bpe glm4 chatglm-bpe":             {patterns: []string{llama3Pattern}},
		"qwen2 deepseek-r1-qwen":                      {patterns: []string{qwenPattern}, nfc: true},
		"stablelm2":                                   {patterns: []string{qwenPattern}},
		"deepseek-v3":                                 {patterns: []string{`\p{N}{1,3}`, `[一-龥぀-ゟ゠-ヿ]+`, deepseek3Words}},
		"tekken":                                      {patterns: []string{upperLower + "|" + upperOnly + `|\p{N}` + afterNumbers}, ignoreMerges: true, addBOS: true},
		"gpt-4o":                                      {patterns: []string{upperLower + contractions + "|" + upperOnly + contractions + `|\p{N}{1,3}` + afterNumbers}},
	} {
		for _, name := range strings.Fields(names) {
			table[name] = pre
		}
	}
	return table
}()

func (g *GGUF) byteLevel() (*Tokenizer, error) {
	pre, ok := ggufPres[g.Pre]
	if !ok {
		return nil, fmt.Errorf("tokenizer.ggml.pre %q is not supported", g.Pre)
	}
	p := &pipeline{}
	t, err := g.base(p, pre.addBOS, false)
	if err != nil {
		return nil, err
	}
	for _, pattern := range pre.patterns {
		step, err := isolate(pattern)
		if err != nil {
			return nil, err
		}
		p.pre = append(p.pre, step)
	}
	if pre.nfc {
		p.normalizer = unicodeForm(norm.NFC)
	}
	words := newIndex(g.Tokens)
	t.vocab.find = words.find
	m, err := newBPE(bpeConfig{
		vocab: &t.vocab, words: words, merges: g.merges, mergeCount: len(g.Merges), byteLevel: true, ignoreMerges: pre.ignoreMerges,
	})
	if err != nil {
		return nil, err
	}
	p.pre = append(p.pre, byteLevel{raw: m.rawBytes})
	p.model = m
	t.decode = stagesOf([]decoder{byteLevelDecoder{}})
	return t, nil
}

// merges reads Merges.
func (g *GGUF) merges(yield func(left, right []byte) error) error {
	for i, line := range g.Merges {
		if err := cutMerge(i, []byte(line), yield); err != nil {
			return fmt.Errorf("tokenizer.ggml.merges: %w", err)
		}
	}
	return nil
}

// isolate is the pre-tokenizer that makes each match of a pattern a piece.
func isolate(pattern string) (preTokenizer, error) {
	if next := scannerFor(pattern); next != nil {
		return scanned{next}, nil
	}
	m, err := compile(pattern)
	return matched{pattern: m, behavior: isolated}, err
}

func (g *GGUF) sentencePieceBPE() (*Tokenizer, error) {
	m, err := g.spModel(1, 2)
	if err != nil {
		return nil, err
	}
	p := &pipeline{}
	t, err := g.base(p, true, false)
	if err != nil {
		return nil, err
	}
	if t.special.Unknown < 0 {
		t.special.Unknown = m.unknownID()
	}
	spaces := replace{literal(" "), spaceMark}
	decoders := []decoder{rewriting(func(text string) string { return strings.ReplaceAll(text, spaceMark, " ") }),
		byteFallbackDecoder{}, fuseDecoder{}}
	p.normalizer = spaces
	if m.dummyPrefix {
		p.normalizer = normalizers{prepend(spaceMark), spaces}
		decoders = append(decoders, stripDecoder{' ', 1, 0})
	}
	p.model = newScoredBPE(m, t.special.Unknown)
	t.decode = stagesOf(decoders)
	return t, nil
}

func (g *GGUF) unigram() (*Tokenizer, error) {
	m, err := g.spModel(-1, 1)
	if err != nil {
		return nil, err
	}
	m.unigram = true
	if m.charsMap, err = parseCharsMap(g.CharsMap); err != nil {
		return nil, err
	}
	m.removeExtraSpace = orDefault(g.RemoveExtraWhitespaces, false)
	p := &pipeline{}
	t, err := g.base(p, false, true)
	if err != nil {
		return nil, err
	}
	if t.special.Unknown < 0 {
		t.special.Unknown = m.unknownID()
	}
	e := &spEncoder{spModel: m, unknown: t.special.Unknown}
	if err := e.buildModel(); err != nil {
		return nil, err
	}
	p.model = spWords{e}
	t.decode = func(bool) []stage { return []stage{newSPStage(m)} }
	return t, nil
}

// spWords is a SentencePiece encoder as the model of a pipeline, which has
// found the added tokens.
type spWords struct{ encoder *spEncoder }

func (w spWords) appendWord(dst []int32, word string, s *scratch) ([]int32, error) {
	return w.encoder.model.appendWord(dst, w.encoder.normalize(word), s)
}

// ggufPieces are the tokens as pieces.
type ggufPieces struct {
	list
	keys *GGUF
}

func (p ggufPieces) weight(place uint32) float32 { return p.keys.Scores[place] }
func (p ggufPieces) kind(place uint32) pieceType { return p.keys.typeOf(int(place)) }

// spModel is the metadata as a SentencePiece model.
func (g *GGUF) spModel(bos, eos int32) (*spModel, error) {
	if len(g.Scores) != len(g.Tokens) {
		return nil, fmt.Errorf("tokenizer.ggml.scores: required %d, one a token, got %d", len(g.Tokens), len(g.Scores))
	}
	m := &spModel{
		spPieces: ggufPieces{g.Tokens, g}, count: len(g.Tokens),
		unknownSurface: " ⁇ ", bos: bos, eos: eos, pad: -1,
		dummyPrefix: orDefault(g.AddSpacePrefix, true), escapeSpace: true,
	}
	var bytesFound [256]bool
	n := 0
	for i, token := range g.Tokens {
		if g.typeOf(i) != bytePiece {
			continue
		}
		b, ok := byteOfToken(token)
		if !ok {
			return nil, fmt.Errorf("token %d: type BYTE needs the form <0xNN>, got %q", i, token)
		}
		if !bytesFound[b] {
			bytesFound[b] = true
			n++
		}
	}
	if n != 0 && n != 256 {
		return nil, fmt.Errorf("required byte tokens for all of 256 bytes or none, got %d", n)
	}
	m.byteFallback = n == 256
	if m.unknownID() < 0 && g.Unknown == nil {
		return nil, fmt.Errorf("required unknown_token_id or a token of type UNKNOWN, got neither")
	}
	return m, nil
}

// unknownID is the piece of type UNKNOWN, -1 without one.
func (m *spModel) unknownID() int32 {
	for i := range m.count {
		if m.kind(uint32(i)) == unknownPiece {
			return int32(i)
		}
	}
	return -1
}
