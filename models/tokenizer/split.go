// Hand-written forms of the three regular expressions that most models cut
// text with. Each is recognised by its exact text; a test holds them equal to
// the regular expression itself.

package tokenizer

import "strings"

const (
	gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}` +
		`| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	qwenPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}` +
		`| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// scanner returns the length of the first match in text, which is not empty.
// The patterns match everywhere, so matches follow each other without gaps.
type scanner func(t *[1 << 16]charClass, text string) int

// scannerFor returns the hand-written form of a pattern, nil if there is none.
func scannerFor(pattern string) scanner {
	switch pattern {
	case gpt2Pattern:
		return scanGPT2
	case llama3Pattern:
		return func(t *[1 << 16]charClass, text string) int { return scanLlama3(t, text, 3) }
	case qwenPattern:
		return func(t *[1 << 16]charClass, text string) int { return scanLlama3(t, text, 1) }
	}
	return nil
}

func scanGPT2(t *[1 << 16]charClass, text string) int {
	if n := contraction(text, false); n > 0 {
		return n
	}
	class, n := classAt(t, text, 0)
	if text[0] == ' ' && len(text) > 1 {
		if next, m := classAt(t, text, 1); !next.space() {
			return runOf(t, text, 1+m, next)
		}
	}
	if class.space() {
		return spaces(t, text)
	}
	return runOf(t, text, n, class)
}

func scanLlama3(t *[1 << 16]charClass, text string, digits int) int {
	if n := contraction(text, true); n > 0 {
		return n
	}
	class, n := classAt(t, text, 0)
	switch class {
	case letterClass:
		return runOf(t, text, n, letterClass)
	case numberClass:
		for ; digits > 1 && n < len(text); digits-- {
			next, m := classAt(t, text, n)
			if next != numberClass {
				break
			}
			n += m
		}
		return n
	case newlineClass:
		return lines(t, text)
	}
	if n < len(text) {
		next, m := classAt(t, text, n)
		if next == letterClass {
			return runOf(t, text, n+m, letterClass)
		}
		if text[0] == ' ' && next == otherClass {
			return newlines(text, runOf(t, text, n+m, otherClass))
		}
	}
	if class == otherClass {
		return newlines(text, runOf(t, text, n, otherClass))
	}
	return lines(t, text)
}

// runOf extends a match that ends at i over the characters of one class.
func runOf(t *[1 << 16]charClass, text string, i int, class charClass) int {
	for i < len(text) {
		c, n := classAt(t, text, i)
		if c != class {
			break
		}
		i += n
	}
	return i
}

func newlines(text string, i int) int {
	for i < len(text) && (text[i] == '\r' || text[i] == '\n') {
		i++
	}
	return i
}

// spaces is \s+(?!\S)|\s+ : the run of white space, without its last
// character if text and more than that one follow.
func spaces(t *[1 << 16]charClass, text string) int {
	i, last := 0, 0
	for i < len(text) {
		c, n := classAt(t, text, i)
		if !c.space() {
			if last > 0 {
				return last
			}
			return i
		}
		last = i
		i += n
	}
	return i
}

// lines is \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line end of the run of
// white space, or as spaces.
func lines(t *[1 << 16]charClass, text string) int {
	end := 0
	for i := 0; i < len(text); {
		c, n := classAt(t, text, i)
		if !c.space() {
			break
		}
		i += n
		if c == newlineClass {
			end = i
		}
	}
	if end > 0 {
		return end
	}
	return spaces(t, text)
}

// contraction is 's|'t|'re|'ve|'m|'ll|'d, with fold in either case, U+017F for
// s included.
func contraction(text string, fold bool) int {
	if text[0] != '\'' || len(text) < 2 {
		return 0
	}
	if fold && strings.HasPrefix(text[1:], "ſ") {
		return 1 + len("ſ")
	}
	first, second := text[1], byte(0)
	if len(text) > 2 {
		second = text[2]
	}
	if fold {
		first, second = first|0x20, second|0x20
	}
	switch first {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if second == 'e' {
			return 3
		}
	case 'l':
		if second == 'l' {
			return 3
		}
	}
	return 0
}
