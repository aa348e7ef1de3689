// Conditional expressions inside brackets, (a if b else c), which the engine
// takes only where an expression is all there is, and products, which it does
// not bound.

package chat

import (
	"fmt"
	"strconv"
	"strings"
)

// hoist writes blocks that choose the value of each conditional expression in
// brackets into a variable, and returns the tag with the variables in their
// place. Both are evaluated in the same scope, the choice a little earlier.
func (p *preparer) hoist(body string) string {
	for range maxHoisted {
		open, end := innermostConditional(body)
		if open < 0 {
			return body
		}
		parts := splitTop(body[open+1:end], ",")
		for i, part := range parts {
			parts[i] = p.hoistOne(part)
		}
		body = body[:open+1] + strings.Join(parts, ",") + body[end:]
	}
	return body
}

// maxHoisted is the number of brackets of one tag that are looked at; the
// engine refuses conditionals beyond.
const maxHoisted = 64

// hoistOne hoists one element of a bracket: a conditional expression, perhaps
// behind name= or key: .
func (p *preparer) hoistOne(part string) string {
	then, rest, ok := cutWord(part, "if")
	if !ok {
		return part
	}
	prefix := ""
	for _, mark := range []string{"=", ":"} {
		if pieces := splitTop(then, mark); len(pieces) == 2 {
			prefix, then = pieces[0]+mark, pieces[1]
		}
	}
	condition, otherwise, ok := cutWord(rest, "else")
	if !ok {
		condition, otherwise = rest, "none"
	}
	p.chosen++
	name := "chosen_" + strconv.Itoa(p.chosen) + "_"
	p.out.WriteString("{% if " + condition + " %}{% set " + name + " = " + then +
		" %}{% else %}{% set " + name + " = " + otherwise + " %}{% endif %}")
	return prefix + " " + name + " "
}

// innermostConditional finds a bracket that holds the word if and no bracket
// that does; open -1: there is none.
func innermostConditional(body string) (open, end int) {
	var stack []int
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '\'', '"':
			i += max(0, closingQuote(body[i:]))
		case '(', '[', '{':
			stack = append(stack, i)
		case ')', ']', '}':
			if len(stack) == 0 {
				return -1, 0
			}
			open := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			for _, part := range splitTop(body[open+1:i], ",") {
				if _, _, ok := cutWord(part, "if"); ok {
					return open, i
				}
			}
		}
	}
	return -1, 0
}

// splitTop cuts text at mark outside brackets and strings. The marks = and :
// do not count inside == and the like.
func splitTop(text, mark string) []string {
	var parts []string
	depth, start := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'' || c == '"':
			i += max(0, closingQuote(text[i:]))
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		case strings.IndexByte("=!<>", c) >= 0 && i+1 < len(text) && text[i+1] == '=':
			i++
		case depth == 0 && string(c) == mark:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}

// cutWord cuts text at the first word outside brackets and strings.
func cutWord(text, word string) (before, after string, ok bool) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'' || c == '"':
			i += max(0, closingQuote(text[i:]))
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		case isNameByte(c):
			end := wordEnd(text, i)
			if depth == 0 && text[i:end] == word {
				return strings.TrimSpace(text[:i]), strings.TrimSpace(text[end:]), true
			}
			i = end - 1
		}
	}
	return "", "", false
}

func isNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// wordEnd is where the name that starts at i ends.
func wordEnd(text string, i int) int {
	for i < len(text) && isNameByte(text[i]) {
		i++
	}
	return i
}

// multiply writes the operator * as a call that bounds what it makes.
func multiply(body string) (string, error) {
	for n := 0; ; n++ {
		left, at, right := product(body)
		switch {
		case at < 0:
			return body, nil
		case n == maxHoisted:
			return "", fmt.Errorf("at most %d of * in a tag are supported", maxHoisted)
		}
		body = body[:left] + " bound_times(" + body[left:at] + "," + body[at+1:right] + ")" + body[right:]
	}
}

// product finds the first * between two operands, and where they start and end;
// at -1: there is none.
func product(body string) (left, at, right int) {
	starts := []int{0} // by bracket: of the operand of a *, which takes in / and %
	at = -1
	depth, before := 0, byte(0) // of at; the last byte that is no blank
	ends := func() bool { return at >= 0 && depth == len(starts) }
	for i := 0; i < len(body); i++ {
		c, next := body[i], i+1
		operand := isNameByte(before) || before != 0 && strings.IndexByte(")]}'\"", before) >= 0
		loose := false
		switch {
		case c == '\'' || c == '"':
			next += max(0, closingQuote(body[i:]))
		case strings.IndexByte("([{", c) >= 0:
			starts = append(starts, next)
		case strings.IndexByte(")]}", c) >= 0:
			if ends() || len(starts) == 1 {
				return left, at, i
			}
			starts = starts[:len(starts)-1]
		case strings.HasPrefix(body[i:], "**"):
			next++
		case c == '*' && operand && at < 0:
			left, at, depth = starts[len(starts)-1], i, len(starts)
		case c == '*' || c == '/' || c == '%':
			if ends() {
				return left, at, i
			}
		case strings.IndexByte("+-", c) >= 0:
			loose = operand // else it is a sign
		case isNameByte(c):
			next = wordEnd(body, i)
			loose = looseWords[body[i:next]]
		default:
			loose = strings.IndexByte("~,:=!<>", c) >= 0
		}
		if loose {
			if ends() {
				return left, at, i
			}
			starts[len(starts)-1] = next
		}
		if c != ' ' {
			before = body[next-1]
		}
		i = next - 1
	}
	return left, at, len(body)
}

// looseWords are those that end an operand of *.
var looseWords = map[string]bool{
	"and": true, "or": true, "not": true, "in": true, "is": true, "if": true, "else": true,
	"elif": true, "for": true, "call": true, "filter": true, "do": true, "with": true,
}
