// Whole characters out of bytes that arrive in parts.

package tokenizer

import "unicode/utf8"

const replacement = "\uFFFD"

// assembler collects bytes and releases whole characters. Bytes that cannot
// become a character become U+FFFD: one for each maximal cut sequence (Unicode
// 15.0, section 3.9, substitution of maximal subparts), or with perByte one
// for each byte.
//
// The first two bytes of an encoded surrogate (ED A0..BF) are held until the
// third comes, although they are beyond repair already.
type assembler struct {
	perByte bool
	held    []byte
}

// push adds text and returns what is complete.
func (a *assembler) push(text string) string {
	if len(a.held) == 0 && utf8.ValidString(text) {
		return text
	}
	b := append(a.held, text...)
	var out []byte
	for len(b) > 0 {
		n, whole, more := character(b)
		if more {
			break
		}
		out = a.release(out, b[:n], whole)
		b = b[n:]
	}
	a.held = append(a.held[:0], b...)
	return string(out)
}

// end returns what is held as U+FFFD.
func (a *assembler) end() string {
	var out []byte
	for b := a.held; len(b) > 0; {
		n, _, _ := character(b)
		if surrogateStart(b) {
			n = 1
		}
		out = a.release(out, b[:n], false)
		b = b[n:]
	}
	a.held = a.held[:0]
	return string(out)
}

func (a *assembler) release(out, b []byte, whole bool) []byte {
	if whole {
		return append(out, b...)
	}
	out = append(out, replacement...)
	if a.perByte {
		for range len(b) - 1 {
			out = append(out, replacement...)
		}
	}
	return out
}

// character looks at the start of b, which is not empty. n bytes are one
// character (whole) or one maximal cut sequence; more: they may still become a
// character with bytes to come.
func character(b []byte) (n int, whole, more bool) {
	if surrogateStart(b) {
		return len(b), false, true
	}
	size, low, high := lead(b[0])
	if size == 0 {
		return 1, false, false
	}
	for i := 1; i < size; i++ {
		if i == len(b) {
			return i, false, true
		}
		if b[i] < low || b[i] > high {
			return i, false, false
		}
		low, high = 0x80, 0xBF
	}
	return size, true, false
}

func surrogateStart(b []byte) bool {
	return len(b) == 2 && b[0] == 0xED && b[1] >= 0xA0 && b[1] <= 0xBF
}

// lead gives the length of the character that b starts and the range of its
// second byte; length 0 if no character starts with b.
func lead(b byte) (size int, low, high byte) {
	switch {
	case b < 0x80:
		return 1, 0, 0
	case b < 0xC2:
		return 0, 0, 0
	case b < 0xE0:
		return 2, 0x80, 0xBF
	case b == 0xE0:
		return 3, 0xA0, 0xBF
	case b == 0xED:
		return 3, 0x80, 0x9F
	case b < 0xF0:
		return 3, 0x80, 0xBF
	case b == 0xF0:
		return 4, 0x90, 0xBF
	case b < 0xF4:
		return 4, 0x80, 0xBF
	case b == 0xF4:
		return 4, 0x80, 0x8F
	}
	return 0, 0, 0
}
