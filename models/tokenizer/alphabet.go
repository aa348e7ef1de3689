// The byte alphabet of byte-level tokenizers: each byte as a printable
// character (GPT-2). Printable bytes of Latin-1 stand for themselves, the
// others for U+0100 onwards in order.

package tokenizer

import "unicode/utf8"

var (
	byteChar [256]string
	charByte [324]int16 // -1 where the character is no byte
)

func init() {
	for i := range charByte {
		charByte[i] = -1
	}
	next := rune(256)
	for b := range rune(256) {
		c := b
		if b < '!' || b > '~' && b < 0xA1 || b == 0xAD {
			c = next
			next++
		}
		byteChar[b] = string(c)
		charByte[c] = int16(b)
	}
}

// toAlphabet writes text's bytes in the alphabet.
func toAlphabet(text string) string {
	return string(appendAlphabet(make([]byte, 0, len(text)+len(text)/4), text))
}

func appendAlphabet(dst []byte, text string) []byte {
	for i := range len(text) {
		if char := byteChar[text[i]]; len(char) == 1 {
			dst = append(dst, char[0])
		} else {
			dst = append(dst, char[0], char[1])
		}
	}
	return dst
}

// appendFromAlphabet appends the bytes that token stands for; !ok if it holds
// a character outside the alphabet.
func appendFromAlphabet(dst []byte, token string) (_ []byte, ok bool) {
	start := len(dst)
	for _, c := range token {
		if c >= rune(len(charByte)) || c == utf8.RuneError || charByte[c] < 0 {
			return dst[:start], false
		}
		dst = append(dst, byte(charByte[c]))
	}
	return dst, true
}
