// tokenizer.json: the components by their type.

package tokenizer

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// patternJSON is {"String": ...} or {"Regex": ...}.
type patternJSON struct {
	String *string
	Regex  *string
}

func (p patternJSON) matcher() (matcher, error) {
	switch {
	case p.String != nil && *p.String != "":
		return literal(*p.String), nil
	case p.Regex != nil:
		return compile(*p.Regex)
	}
	return nil, fmt.Errorf("pattern: required a Regex or a String that is not empty")
}

// maxComponent is far above the longest component of a published tokenizer
// (4 kB): what one becomes in memory can be many times what it takes in the
// file.
const maxComponent = 1 << 16

// checkComponent bounds the size and the nesting of a component.
func checkComponent(raw json.RawMessage) error {
	if len(raw) > maxComponent {
		kind, err := kindOf(raw)
		if err != nil {
			return err
		}
		return fmt.Errorf("type %q takes %d bytes: at most %d are supported", kind, len(raw), maxComponent)
	}
	if deeperThan(raw, maxNesting) {
		return fmt.Errorf("nested deeper than %d", maxNesting)
	}
	return nil
}

// sequence calls yield for each component of a sequence.
func sequence(raw json.RawMessage, name string, yield func(json.RawMessage) error) error {
	var list json.RawMessage
	if err := readFields(raw, map[string]any{name: &list}); err != nil || isNull(list) {
		return err
	}
	i := 0
	return elements(list, func(value []byte) error {
		if err := yield(value); err != nil {
			return fmt.Errorf("Sequence: %d: %w", i, err)
		}
		i++
		return nil
	})
}

// growth is how many times as long components make a text at most, one after the
// other.
type growth float64

// maxGrowth is far above that of published tokenizers (about 30: NFKC, and a mark
// for a space).
const maxGrowth = 1024

// by counts a component.
func (g *growth) by(kind string, times float64) error {
	if *g *= growth(max(1, times)); *g > maxGrowth {
		return fmt.Errorf("%s: with what is before it, it can make a text %.4g times as long: at most %d is supported", kind, float64(*g), maxGrowth)
	}
	return nil
}

func parseNormalizer(raw json.RawMessage, g *growth) (normalizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "NFC":
		return unicodeForm(norm.NFC), g.by(kind, 3)
	case "NFD":
		return unicodeForm(norm.NFD), g.by(kind, 4)
	case "NFKC":
		return unicodeForm(norm.NFKC), g.by(kind, 11)
	case "NFKD":
		return unicodeForm(norm.NFKD), g.by(kind, 11)
	case "Lowercase":
		return rewrite(lowercase), g.by(kind, 1.5)
	case "StripAccents":
		return stripAccents{}, nil
	case "ByteLevel":
		return rewrite(toAlphabet), g.by(kind, 2)
	case "Prepend":
		var f struct{ Prepend string }
		err := fields(kind, raw, &f)
		return prepend(f.Prepend), err
	case "Replace":
		return parseReplace(kind, raw, g)
	case "Strip":
		var f struct {
			StripLeft  bool `json:"strip_left"`
			StripRight bool `json:"strip_right"`
		}
		err := fields(kind, raw, &f)
		return strip{f.StripLeft, f.StripRight}, err
	case "Sequence":
		var ns normalizers
		err := sequence(raw, "normalizers", func(r json.RawMessage) error {
			n, err := parseNormalizer(r, g)
			if n != nil {
				ns = append(ns, n)
			}
			return err
		})
		return ns, err
	}
	return nil, fmt.Errorf("type %q is not supported", kind)
}

func parseReplace(kind string, raw json.RawMessage, g *growth) (replace, error) {
	var f struct {
		Pattern patternJSON
		Content string
	}
	if err := fields(kind, raw, &f); err != nil {
		return replace{}, err
	}
	m, err := f.Pattern.matcher()
	if err != nil {
		return replace{}, fmt.Errorf("%s: %w", kind, err)
	}
	times := float64(len(f.Content) + 1) // an expression may match nothing, everywhere
	if l, ok := m.(literal); ok {
		times = float64(len(f.Content)) / float64(len(l))
	}
	return replace{m, f.Content}, g.by(kind, times)
}

// parsePreTokenizer returns the steps of a pre-tokenizer, sequences unrolled.
func parsePreTokenizer(raw json.RawMessage, g *growth) ([]preTokenizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	one := func(p preTokenizer, err error) ([]preTokenizer, error) {
		if err != nil {
			return nil, err
		}
		return []preTokenizer{p}, nil
	}
	switch kind {
	case "ByteLevel":
		f := struct {
			AddPrefixSpace bool  `json:"add_prefix_space"`
			UseRegex       *bool `json:"use_regex"`
		}{}
		if err := fields(kind, raw, &f); err != nil {
			return nil, err
		}
		return one(byteLevel{prefixSpace: f.AddPrefixSpace, useRegex: f.UseRegex == nil || *f.UseRegex}, g.by(kind, 2))
	case "Split":
		return one(parseSplit(kind, raw))
	case "Digits":
		var f struct {
			IndividualDigits bool `json:"individual_digits"`
		}
		err := fields(kind, raw, &f)
		return one(digits(f.IndividualDigits), err)
	case "Punctuation":
		f := struct{ Behavior behavior }{isolated}
		if err := fields(kind, raw, &f); err != nil {
			return nil, err
		}
		return one(matched{pattern: charMatcher(isPunctuation), behavior: f.Behavior}, f.Behavior.valid())
	case "Whitespace":
		return one(matched{pattern: words{}, behavior: removed, invert: true}, nil)
	case "WhitespaceSplit":
		return one(whitespaceSplit(), nil)
	case "Metaspace":
		m, err := parseMetaspace(kind, raw)
		if err != nil {
			return nil, err
		}
		return one(m, g.by(kind, float64(len(m.mark))))
	case "Sequence":
		var all []preTokenizer
		err := sequence(raw, "pretokenizers", func(r json.RawMessage) error {
			ps, err := parsePreTokenizer(r, g)
			all = append(all, ps...)
			return err
		})
		return all, err
	}
	return nil, fmt.Errorf("type %q is not supported", kind)
}

func parseSplit(kind string, raw json.RawMessage) (preTokenizer, error) {
	var f struct {
		Pattern  patternJSON
		Behavior behavior
		Invert   bool
	}
	if err := fields(kind, raw, &f); err != nil {
		return nil, err
	}
	if err := f.Behavior.valid(); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	if f.Pattern.Regex != nil && f.Behavior == isolated {
		if next := scannerFor(*f.Pattern.Regex); next != nil {
			return scanned{next}, nil
		}
	}
	m, err := f.Pattern.matcher()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return matched{pattern: m, behavior: f.Behavior, invert: f.Invert}, nil
}

// parseMetaspace reads the fields that pre-tokenizer and decoder share.
func parseMetaspace(kind string, raw json.RawMessage) (metaspace, error) {
	f := struct {
		Replacement    string        `json:"replacement"`
		PrependScheme  prependScheme `json:"prepend_scheme"`
		AddPrefixSpace *bool         `json:"add_prefix_space"`
		Split          *bool         `json:"split"`
	}{}
	if err := fields(kind, raw, &f); err != nil {
		return metaspace{}, err
	}
	if utf8.RuneCountInString(f.Replacement) != 1 {
		return metaspace{}, fmt.Errorf("%s: replacement: required one character, got %q", kind, f.Replacement)
	}
	if f.PrependScheme == "" {
		f.PrependScheme = prependAlways
		if f.AddPrefixSpace != nil && !*f.AddPrefixSpace {
			f.PrependScheme = prependNever
		}
	}
	switch f.PrependScheme {
	case prependAlways, prependFirst, prependNever:
	default:
		return metaspace{}, fmt.Errorf("%s: prepend_scheme %q: required always, first or never", kind, f.PrependScheme)
	}
	if f.AddPrefixSpace != nil && !*f.AddPrefixSpace && f.PrependScheme != prependNever {
		return metaspace{}, fmt.Errorf("%s: add_prefix_space false contradicts prepend_scheme %q", kind, f.PrependScheme)
	}
	return metaspace{f.Replacement, f.PrependScheme, f.Split == nil || *f.Split}, nil
}

// parsePostProcessor returns the ids that go before and after one text.
func parsePostProcessor(raw json.RawMessage) (before, after []int32, err error) {
	if isNull(raw) {
		return nil, nil, nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, nil, err
	}
	switch kind {
	case "ByteLevel": // moves offsets, no ids
		return nil, nil, nil
	case "TemplateProcessing":
		return parseTemplate(kind, raw)
	case "Sequence":
		err := sequence(raw, "processors", func(r json.RawMessage) error {
			b, a, err := parsePostProcessor(r)
			before, after = append(b, before...), append(after, a...)
			return err
		})
		return before, after, err
	}
	return nil, nil, fmt.Errorf("type %q is not supported", kind)
}

func parseTemplate(kind string, raw json.RawMessage) (before, after []int32, err error) {
	var f struct {
		Single []struct {
			SpecialToken *struct{ ID string }
			Sequence     *struct{ ID string }
		}
		SpecialTokens map[string]struct{ IDs []int32 } `json:"special_tokens"`
	}
	if err := fields(kind, raw, &f); err != nil {
		return nil, nil, err
	}
	texts := 0
	for i, piece := range f.Single {
		switch {
		case piece.Sequence != nil && piece.Sequence.ID == "A":
			texts++
		case piece.SpecialToken != nil:
			token, ok := f.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return nil, nil, fmt.Errorf("%s: single: %q is not in special_tokens", kind, piece.SpecialToken.ID)
			}
			if texts == 0 {
				before = append(before, token.IDs...)
			} else {
				after = append(after, token.IDs...)
			}
		default:
			return nil, nil, fmt.Errorf("%s: single: piece %d: required a SpecialToken or the Sequence A", kind, i)
		}
	}
	if texts != 1 {
		return nil, nil, fmt.Errorf("%s: single: required the Sequence A once, got it %d times", kind, texts)
	}
	return before, after, nil
}

func parseDecoder(raw json.RawMessage, g *growth) ([]decoder, error) {
	if isNull(raw) {
		return []decoder{spacesDecoder{}}, nil
	}
	kind, err := kindOf(raw)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "ByteLevel":
		return []decoder{byteLevelDecoder{}}, nil
	case "ByteFallback":
		return []decoder{byteFallbackDecoder{}}, nil
	case "Fuse":
		return []decoder{fuseDecoder{}}, nil
	case "Metaspace":
		m, err := parseMetaspace(kind, raw)
		return []decoder{metaspaceDecoder{m.mark, m.scheme}}, err
	case "Replace":
		r, err := parseReplace(kind, raw, g)
		return []decoder{replaceDecoder(r)}, err
	case "Strip":
		return parseStripDecoder(kind, raw)
	case "Sequence":
		var all []decoder
		err := sequence(raw, "decoders", func(r json.RawMessage) error {
			ds, err := parseDecoder(r, g)
			all = append(all, ds...)
			return err
		})
		return all, err
	}
	return nil, fmt.Errorf("type %q is not supported", kind)
}

// replaceDecoder leaves a token alone where its expression cannot be run.
func replaceDecoder(r replace) rewriting {
	return func(text string) string {
		s, _, err := r.apply(text)
		if err != nil {
			return text
		}
		return s
	}
}

func parseStripDecoder(kind string, raw json.RawMessage) ([]decoder, error) {
	var f struct {
		Content     string
		Start, Stop int
	}
	if err := fields(kind, raw, &f); err != nil {
		return nil, err
	}
	if utf8.RuneCountInString(f.Content) != 1 || f.Start < 0 || f.Stop < 0 {
		return nil, fmt.Errorf("%s: required one character and two counts, got %q, %d, %d", kind, f.Content, f.Start, f.Stop)
	}
	return []decoder{stripDecoder{[]rune(f.Content)[0], f.Start, f.Stop}}, nil
}
