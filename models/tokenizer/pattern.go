// Regular expressions of tokenizer.json. They are written for Oniguruma (Ruby
// syntax); this file rewrites the constructs that regexp2 reads differently.

package tokenizer

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// matcher calls yield for each match of a pattern in text, in order.
type matcher interface {
	matches(text string, yield func(start, end int) error) error
}

// literal matches one string.
type literal string

func (l literal) matches(text string, yield func(start, end int) error) error {
	for at := 0; ; {
		i := strings.Index(text[at:], string(l))
		if i < 0 {
			return nil
		}
		if err := yield(at+i, at+i+len(l)); err != nil {
			return err
		}
		at += i + len(l)
	}
}

// charMatcher matches each character that it holds for.
type charMatcher func(rune) bool

func (is charMatcher) matches(text string, yield func(start, end int) error) error {
	for i, r := range text {
		if is(r) {
			if err := yield(i, i+max(1, runeSize(text[i:]))); err != nil {
				return err
			}
		}
	}
	return nil
}

func runeSize(text string) int {
	_, n := utf8.DecodeRuneInString(text)
	return n
}

// words matches \w+|[^\w\s]+ .
type words struct{}

func (words) matches(text string, yield func(start, end int) error) error {
	kind := func(r rune) int {
		switch {
		case isWord(r):
			return 1
		case unicode.IsSpace(r):
			return 0
		}
		return 2
	}
	start, current := 0, 0
	for i, r := range text {
		k := kind(r)
		if k == current {
			continue
		}
		if current != 0 {
			if err := yield(start, i); err != nil {
				return err
			}
		}
		start, current = i, k
	}
	if current != 0 {
		return yield(start, len(text))
	}
	return nil
}

// expression is a compiled regular expression.
type expression struct{ re *regexp2.Regexp }

// maxPattern is far above the longest pattern of a published tokenizer (1 kB).
const maxPattern = 1 << 14

func compile(pattern string) (expression, error) {
	if len(pattern) > maxPattern {
		return expression{}, fmt.Errorf("regular expression of %d bytes: at most %d are supported", len(pattern), maxPattern)
	}
	translated, err := translate(pattern)
	if err != nil {
		return expression{}, fmt.Errorf("regular expression %q: %w", pattern, err)
	}
	re, err := regexp2.Compile(translated, regexp2.None)
	if err != nil {
		return expression{}, fmt.Errorf("regular expression %q: %w", pattern, err)
	}
	re.MatchTimeout = matchTime
	return expression{re}, nil
}

// matchTime is far above what a match takes: an expression that backtracks
// without end is an error. Tests shorten it.
var matchTime = 10 * time.Second

func (e expression) matches(text string, yield func(start, end int) error) error {
	runes := []rune(text)
	m, err := e.re.FindRunesMatch(runes)
	at, offset := 0, 0 // the same place, counted in runes and in bytes
	seek := func(to int) int {
		for ; at < to; at++ {
			offset += runeSize(text[offset:])
		}
		return offset
	}
	for ; m != nil && err == nil; m, err = e.re.FindNextMatch(m) {
		start := seek(m.Index)
		if err := yield(start, seek(m.Index+m.Length)); err != nil {
			return err
		}
	}
	return err
}

// translate rewrites Oniguruma syntax into that of regexp2:
//   - possessive X*+ X++ X?+ become atomic groups; X{n,m}+ repeats a repeat;
//   - ^ and $ match at lines;
//   - \h, \x{...}, \p{^...}, \w and \b are spelled out;
//   - where case is ignored, letters whose folding has more than two members
//     (s, k, ...) become classes;
//   - [X&&[^Y]] becomes the subtraction [X-[Y]], and [X[Y]] the union [XY].
//
// Other constructs of character classes that regexp2 would misread (nested
// classes that are negated, POSIX brackets) are errors.
func translate(pattern string) (string, error) {
	t := translator{in: pattern}
	for t.at < len(t.in) {
		if err := t.step(); err != nil {
			return "", err
		}
	}
	return t.out.String(), nil
}

type translator struct {
	in    string
	at    int
	out   strings.Builder
	atom  int // where the last atom starts in out
	fold  bool
	outer []group
}

type group struct {
	start int
	fold  bool
}

// wordClass is Oniguruma's \w: what is alphabetic, marks, digits, connectors, and
// the numbers of Latin-1.
const wordClass = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}²³¹¼½¾` + "\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189"

func (t *translator) step() error {
	rest := t.in[t.at:]
	switch rest[0] {
	case '\\':
		t.atom = t.out.Len()
		text, n, err := escape(rest, false)
		t.emit(text, n)
		return err
	case '[':
		t.atom = t.out.Len()
		return t.class()
	case '(':
		t.open(rest)
		return nil
	case ')':
		t.emit(")", 1)
		if n := len(t.outer); n > 0 {
			t.atom, t.fold = t.outer[n-1].start, t.outer[n-1].fold
			t.outer = t.outer[:n-1]
		}
		return nil
	case '*', '+', '?':
		t.quantify(rest[:1])
		return nil
	case '{':
		if n := strings.IndexByte(rest, '}'); n > 1 && strings.Trim(rest[1:n], "0123456789,") == "" {
			t.quantify(rest[:n+1])
			return nil
		}
	case '^', '$':
		t.atom = t.out.Len()
		t.emit("(?m:"+rest[:1]+")", 1)
		return nil
	case '|':
		t.emit("|", 1)
		return nil
	}
	t.atom = t.out.Len()
	r, n := utf8.DecodeRuneInString(rest)
	if members := foldings(r); t.fold && len(members) > 2 {
		t.emit("["+string(members)+"]", n)
	} else {
		t.emit(rest[:n], n)
	}
	return nil
}

func (t *translator) emit(text string, consumed int) {
	t.out.WriteString(text)
	t.at += consumed
}

func (t *translator) open(rest string) {
	t.outer = append(t.outer, group{t.out.Len(), t.fold})
	end := 1
	if strings.HasPrefix(rest, "(?") {
		end = 2
		for end < len(rest) && (rest[end] == '-' || unicode.IsLower(rune(rest[end]))) {
			end++
		}
		if end < len(rest) && (rest[end] == ':' || rest[end] == ')') {
			on, off, _ := strings.Cut(rest[2:end], "-")
			t.fold = (t.fold || strings.Contains(on, "i")) && !strings.Contains(off, "i")
		}
		if end < len(rest) && rest[end] == ')' { // (?i) holds to the end of the group around it
			t.outer = t.outer[:len(t.outer)-1]
			end++
		}
	}
	t.emit(rest[:end], end)
}

// quantify writes a quantifier and the mark behind it.
func (t *translator) quantify(q string) {
	t.at += len(q)
	next := byte(0)
	if t.at < len(t.in) {
		next = t.in[t.at]
	}
	out := t.out.String()
	atom := out[t.atom:]
	rewrite := func(s string) {
		t.at++
		t.out.Reset()
		t.out.WriteString(out[:t.atom])
		t.out.WriteString(s)
	}
	switch {
	case next == '+' && q[0] != '{':
		rewrite("(?>" + atom + q + ")")
	case next == '+':
		rewrite("(?:" + atom + q + ")+")
	case next == '?':
		t.emit(q+"?", 1)
	default:
		t.out.WriteString(q)
	}
}

// escape translates the escape at the start of rest.
func escape(rest string, inClass bool) (text string, n int, err error) {
	if len(rest) < 2 {
		return "", 0, fmt.Errorf("it ends in a backslash")
	}
	wrap := func(members string) string {
		if inClass {
			return members
		}
		return "[" + members + "]"
	}
	switch rest[1] {
	case 'h':
		return wrap("0-9a-fA-F"), 2, nil
	case 'w':
		return wrap(wordClass), 2, nil
	case 'W':
		if !inClass {
			return "[^" + wordClass + "]", 2, nil
		}
	case 'b', 'B':
		if !inClass {
			return boundary(rest[1] == 'b'), 2, nil
		}
	case 'R', 'X', 'H', 'K', 'G', 'g', 'y', 'Y', 'N', 'O':
		return "", 0, fmt.Errorf("\\%c is not supported", rest[1])
	case 'p', 'P':
		end := strings.IndexByte(rest, '}')
		if len(rest) < 3 || rest[2] != '{' || end < 0 {
			return "", 0, fmt.Errorf("\\%c needs a name in braces", rest[1])
		}
		name, negated := strings.CutPrefix(rest[3:end], "^")
		kind := rest[1:2]
		if negated {
			kind = map[string]string{"p": "P", "P": "p"}[kind]
		}
		return `\` + kind + "{" + name + "}", end + 1, nil
	case 'x':
		if strings.HasPrefix(rest, `\x{`) {
			var code rune
			end := strings.IndexByte(rest, '}')
			if end < 0 {
				return "", 0, fmt.Errorf("\\x{ is not closed")
			}
			if _, err := fmt.Sscanf(rest[3:end], "%x", &code); err != nil || code > unicode.MaxRune {
				return "", 0, fmt.Errorf("%s is no character", rest[:end+1])
			}
			if code < 0x80 {
				return fmt.Sprintf(`\x%02x`, code), end + 1, nil
			}
			return string(code), end + 1, nil
		}
	}
	n = 1 + runeSize(rest[1:])
	return rest[:n], n, nil
}

// boundary is \b or \B, with Oniguruma's idea of a word.
func boundary(between bool) string {
	before, after, notBefore, notAfter := "(?<=["+wordClass+"])", "(?=["+wordClass+"])", "(?<!["+wordClass+"])", "(?!["+wordClass+"])"
	if between {
		return "(?:" + before + notAfter + "|" + notBefore + after + ")"
	}
	return "(?:" + before + after + "|" + notBefore + notAfter + ")"
}

// class translates the character class at t.at.
func (t *translator) class() error {
	start := t.at
	folded := "" // what folding adds to the members
	t.emit("[", 1)
	if strings.HasPrefix(t.in[t.at:], "^") {
		t.emit("^", 1)
	}
	depth := 0 // of classes inside, whose members are members
	for first := true; t.at < len(t.in); first = false {
		rest := t.in[t.at:]
		switch {
		case rest[0] == ']' && depth > 0:
			depth--
			t.at++
		case rest[0] == ']' && !first:
			t.emit(folded+"]", 1)
			return nil
		case rest[0] == ']':
			t.emit(`\]`, 1)
		case rest[0] == '\\':
			text, n, err := escape(rest, true)
			if err != nil {
				return err
			}
			t.emit(text, n)
		case strings.HasPrefix(rest, "&&") && depth == 0:
			t.out.WriteString(folded)
			return t.subtraction(rest, start)
		case rest[0] == '[' && len(rest) > 1 && !strings.ContainsAny(rest[1:2], "^:]"):
			depth++
			t.at++
		case rest[0] == '[' || strings.HasPrefix(rest, "&&"):
			return fmt.Errorf("nested character class in %q is not supported", t.in[start:])
		default:
			r, n := utf8.DecodeRuneInString(rest)
			t.emit(rest[:n], n)
			if members := foldings(r); t.fold && len(members) > 2 {
				folded += string(members)
			}
		}
	}
	return fmt.Errorf("character class %q is not closed", t.in[start:])
}

// subtraction translates &&[^Y]] at the end of a class.
func (t *translator) subtraction(rest string, start int) error {
	inner, ok := strings.CutPrefix(rest, "&&[^")
	end := strings.Index(inner, "]]")
	if !ok || end < 0 || strings.ContainsAny(inner[:end], "[") {
		return fmt.Errorf("intersection in %q is not supported", t.in[start:])
	}
	t.emit("-["+inner[:end]+"]]", len("&&[^")+end+2)
	return nil
}

// foldings are the characters that equal r where case is ignored, r among them.
func foldings(r rune) []rune {
	all := []rune{r}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		all = append(all, f)
	}
	return all
}
