// Normalizers of tokenizer.json: text to text, before it is cut.

package tokenizer

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer rewrites a stretch of text between added tokens. atStart tells
// whether the stretch starts where the input does; the result's is false once
// leading text was removed.
type normalizer interface {
	normalize(text string, atStart bool) (string, bool, error)
}

// rewrite is a normalizer that keeps the start in place.
type rewrite func(string) string

func (f rewrite) normalize(text string, atStart bool) (string, bool, error) {
	return f(text), atStart, nil
}

type normalizers []normalizer

func (ns normalizers) normalize(text string, atStart bool) (string, bool, error) {
	var err error
	for _, n := range ns {
		if text, atStart, err = n.normalize(text, atStart); err != nil {
			return "", false, err
		}
	}
	return text, atStart, nil
}

// unicodeForm is NFC, NFD, NFKC or NFKD. Text that is ASCII, as most is, has
// every form already.
func unicodeForm(f norm.Form) rewrite {
	return func(text string) string {
		if isASCII(text) {
			return text
		}
		return plainForm(f, text)
	}
}

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}

// safeMarks is the number of marks in a row up to which norm.Form leaves them
// alone; to longer runs it adds U+034F (Unicode's stream-safe text), which
// normalization proper does not.
const safeMarks = 30

// plainForm is f without stream-safe additions: long runs of marks are
// decomposed, ordered and composed here.
func plainForm(f norm.Form, text string) string {
	var out strings.Builder
	done, start, marks := 0, 0, 0 // start: of the marks, with the character they are on
	for i := 0; i < len(text); {
		if text[i] < utf8.RuneSelf {
			marks, start = 0, i
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		p := f.PropertiesString(text[i:])
		i += size
		if p.CCC() == 0 && len(p.Decomposition()) == 0 && r != 0x200D {
			marks, start = 0, i-size
			continue
		}
		if marks += max(1, len(p.Decomposition())/2); marks > safeMarks {
			for i < len(text) && f.PropertiesString(text[i:]).CCC() != 0 {
				i += runeSize(text[i:])
			}
			out.WriteString(f.String(text[done:start]))
			out.WriteString(longRun(f, text[start:i]))
			done, start, marks = i, i, 0
		}
	}
	out.WriteString(f.String(text[done:]))
	return out.String()
}

// longRun normalizes one segment with more marks than norm.Form takes.
func longRun(f norm.Form, text string) string {
	decomposed := norm.NFD
	if f == norm.NFKC || f == norm.NFKD {
		decomposed = norm.NFKD
	}
	var runes []rune
	for _, r := range text {
		runes = append(runes, []rune(decomposed.String(string(r)))...)
	}
	class := func(r rune) uint8 { return norm.NFD.PropertiesString(string(r)).CCC() }
	for i := 0; i < len(runes); i++ { // canonical order: stable by class between starters
		end := i
		for end < len(runes) && class(runes[end]) != 0 {
			end++
		}
		slices.SortStableFunc(runes[i:end], func(a, b rune) int { return cmp.Compare(class(a), class(b)) })
		i = end
	}
	if f == norm.NFD || f == norm.NFKD {
		return string(runes)
	}
	return string(composed(runes, class))
}

// composed joins each starter with the marks that are not blocked from it.
func composed(runes []rune, class func(rune) uint8) []rune {
	out := runes[:0:0]
	starter, last := -1, uint8(0)
	for _, r := range runes {
		c := class(r)
		if starter >= 0 && (len(out)-1 == starter || last < c) {
			if pair := []rune(norm.NFC.String(string([]rune{out[starter], r}))); len(pair) == 1 {
				out[starter] = pair[0]
				continue
			}
		}
		if c == 0 {
			starter = len(out)
		}
		last = c
		out = append(out, r)
	}
	return out
}

// lowercase maps each character alone, U+0130 to two.
func lowercase(text string) string {
	return strings.ReplaceAll(strings.Map(func(r rune) rune {
		if r == 'İ' {
			return r
		}
		return unicode.ToLower(r)
	}, text), "İ", "i̇")
}

// stripAccents removes combining marks.
type stripAccents struct{}

func (stripAccents) normalize(text string, atStart bool) (string, bool, error) {
	if first, _ := utf8.DecodeRuneInString(text); unicode.Is(unicode.M, first) {
		atStart = false
	}
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.M, r) {
			return -1
		}
		return r
	}, text), atStart, nil
}

func prepend(prefix string) rewrite {
	return func(text string) string {
		if text == "" {
			return ""
		}
		return prefix + text
	}
}

// replace puts content where the pattern matches.
type replace struct {
	pattern matcher
	content string
}

// normalize also tells whether the result starts where the text did: not if
// leading text was removed, or several characters became others.
func (n replace) normalize(text string, atStart bool) (string, bool, error) {
	s, lead, err := n.apply(text)
	if lead != "" {
		atStart = atStart && n.content != "" && utf8.RuneCountInString(lead) == 1
	}
	return s, atStart, err
}

// apply returns the new text and the match at its start, if there is one.
func (n replace) apply(text string) (replaced, lead string, err error) {
	if l, ok := n.pattern.(literal); ok {
		if strings.HasPrefix(text, string(l)) {
			lead = string(l)
		}
		return strings.ReplaceAll(text, string(l), n.content), lead, nil
	}
	var out strings.Builder
	end := 0
	err = n.pattern.matches(text, func(from, to int) error {
		if from == 0 {
			lead = text[:to]
		}
		out.WriteString(text[end:from])
		out.WriteString(n.content)
		end = to
		return nil
	})
	out.WriteString(text[end:])
	return out.String(), lead, err
}

// strip removes white space at the ends.
type strip struct{ left, right bool }

func (n strip) normalize(text string, atStart bool) (string, bool, error) {
	if n.right {
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	}
	if n.left {
		trimmed := strings.TrimLeftFunc(text, unicode.IsSpace)
		atStart = atStart && len(trimmed) == len(text)
		text = trimmed
	}
	return text, atStart, nil
}
