// Conditional expressions inside brackets, (a if b else c), which the engine
// takes only where an expression is all there is, products, which it does not
// bound, and sums, in which it takes anything for a text.

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
	p.chosen++
	name := "chosen_" + strconv.Itoa(p.chosen) + "_"
	p.choose(name, then, rest)
	return prefix + " " + name + " "
}

// choose gives a name the value of "then if rest", where rest may hold an else and
// behind it another conditional.
func (p *preparer) choose(name, then, rest string) {
	ends := ""
	for ok := true; ok; ends += "{% endif %}" {
		condition, otherwise, hasElse := cutWord(rest, "else")
		if !hasElse {
			condition, otherwise = rest, "none"
		}
		p.out.WriteString("{% if " + condition + " %}{% set " + name + " = " + then + " %}{% else %}")
		if then, rest, ok = cutWord(otherwise, "if"); !ok {
			p.out.WriteString("{% set " + name + " = " + otherwise + " %}")
		}
	}
	p.out.WriteString(ends)
}

// dicts writes calls dict(a=1), whose order of names the engine loses, as {'a': 1}.
func dicts(body string) string {
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '\'' || c == '"':
			i += max(0, closingQuote(body[i:]))
		case isNameByte(c):
			end := wordEnd(body, i)
			if body[i:end] != "dict" || end == len(body) || body[end] != '(' || i > 0 && body[i-1] == '.' {
				i = end - 1
				continue
			}
			inner := splitTop(body[end+1:], ")")[0]
			last := end + 1 + len(inner)
			if last == len(body) {
				return body // it is not closed
			}
			var pairs []string
			for _, part := range splitTop(inner, ",") {
				pieces := splitTop(part, "=")
				name := strings.TrimSpace(pieces[0])
				if len(pieces) != 2 || name == "" || wordEnd(name, 0) != len(name) {
					pairs = nil
					break
				}
				pairs = append(pairs, "'"+name+"': "+pieces[1])
			}
			if pairs != nil {
				body = body[:i] + "{" + strings.Join(pairs, ", ") + "}" + body[last+1:]
			}
		}
	}
	return body
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
// do not count inside == and the like; the mark ) is one that closes nothing in text.
func splitTop(text, mark string) []string {
	var parts []string
	depth, start := 0, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'' || c == '"':
			i += max(0, closingQuote(text[i:]))
		case strings.IndexByte("=!<>", c) >= 0 && i+1 < len(text) && text[i+1] == '=':
			i++
		case depth == 0 && string(c) == mark:
			parts = append(parts, text[start:i])
			start = i + 1
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
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

// arithmetic writes the operators * and + as calls: of what a product makes, which
// is bounded, and of a sum, which is of two texts, two lists or two numbers.
func arithmetic(body string) (string, error) {
	for _, x := range []struct {
		op   byte
		call string
		most int
	}{{'*', "bound_times", maxHoisted}, {'+', "bound_plus", maxJoins}} {
		for n := 0; ; n++ {
			left, at, right := operands(body, x.op)
			if at < 0 {
				break
			}
			if n == x.most {
				return "", fmt.Errorf("at most %d of %c in a tag are supported", x.most, x.op)
			}
			body = body[:left] + " " + x.call + "(" + body[left:at] + "," + body[at+1:right] + ")" + body[right:]
		}
	}
	return body, nil
}

// operands finds the first * or + between two operands, and where they start and
// end; at -1: there is none.
func operands(body string, op byte) (left, at, right int) {
	same, looser := "*/%", "+-~,:=!<>" // those that bind as op does, and less
	if op == '+' {
		same, looser = "+-", ",:=!<>"
	}
	starts := []int{0} // by bracket: of the operand of op, which takes in those that bind as it does
	at = -1
	depth, before := 0, byte(0) // of at; the last byte that is no blank
	ends := func() bool { return at >= 0 && depth == len(starts) }
	for i := 0; i < len(body); i++ {
		c, next := body[i], i+1
		operand := isNameByte(before) || before != 0 && strings.IndexByte(")]}'\"", before) >= 0
		sign := (c == '+' || c == '-') && !operand
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
		case sign:
		case c == op && operand && at < 0:
			left, at, depth = starts[len(starts)-1], i, len(starts)
		case strings.IndexByte(same, c) >= 0:
			if ends() {
				return left, at, i
			}
		case isNameByte(c):
			next = wordEnd(body, i)
			loose = looseWords[body[i:next]]
		default:
			loose = strings.IndexByte(looser, c) >= 0
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
