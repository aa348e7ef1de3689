// Classes of characters, as the regular expressions of published tokenizers
// use them.

package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

type charClass uint8

const (
	otherClass   charClass = iota
	letterClass            // \p{L}
	numberClass            // \p{N}
	spaceClass             // \s but carriage return and line feed
	newlineClass           // [\r\n]
)

func (c charClass) space() bool { return c >= spaceClass }

func classOf(r rune) charClass {
	switch {
	case r == '\r' || r == '\n':
		return newlineClass
	case unicode.IsSpace(r):
		return spaceClass
	case unicode.IsLetter(r):
		return letterClass
	case unicode.IsNumber(r):
		return numberClass
	}
	return otherClass
}

// lowClasses holds the classes of the basic multilingual plane.
var lowClasses = sync.OnceValue(func() *[1 << 16]charClass {
	var t [1 << 16]charClass
	for r := range rune(len(t)) {
		t[r] = classOf(r)
	}
	return &t
})

// classAt returns the class and the size of the character at text[i:], which
// is not empty.
func classAt(t *[1 << 16]charClass, text string, i int) (charClass, int) {
	if b := text[i]; b < utf8.RuneSelf {
		return t[b], 1
	}
	r, n := utf8.DecodeRuneInString(text[i:])
	if r < rune(len(t)) {
		return t[r], n
	}
	return classOf(r), n
}

// isWord is \w of Unicode regular expressions: alphabetic, mark, decimal
// digit, connector punctuation, join control.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc,
		unicode.Other_Alphabetic, unicode.Join_Control)
}

// isPunctuation is ASCII punctuation, symbols included, or category P.
func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return r > ' ' && r < 0x7F && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return unicode.IsPunct(r)
}
