// Preparing a template for the engine. Jinja's rules for white space around
// tags, its comments and its string literals are worked out here, because the
// engine (gonja 2.9) drops blanks between a print and a tag, misreads escapes
// and takes no literal over several lines.

package chat

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// prepared is a template without white space control, comments or literals
// that need reading: those are variables bound to their texts.
type prepared struct {
	source   string
	literals map[string]any
}

// prepare reads a template with trim_blocks and lstrip_blocks, and without
// keep_trailing_newline, as transformers sets them.
func prepare(source string) (prepared, error) {
	if len(source) > maxTemplate {
		return prepared{}, fmt.Errorf("at most %d bytes are supported, got %d", maxTemplate, len(source))
	}
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	p := &preparer{rest: strings.TrimSuffix(source, "\n"), lineStart: true, literals: map[string]any{}}
	for p.rest != "" {
		if err := p.next(); err != nil {
			return prepared{}, fmt.Errorf("at %q: %w", excerpt(p.rest), err)
		}
	}
	return prepared{p.out.String(), p.literals}, nil
}

func excerpt(text string) string {
	if len(text) > 60 {
		return strings.ToValidUTF8(text[:60], "") + "..."
	}
	return text
}

type preparer struct {
	rest      string
	out       strings.Builder
	literals  map[string]any
	lineStart bool // the last tag took the line end behind it
	chosen    int  // hoisted expressions so far
	plain     int  // bytes of text so far
	blocks    []block
}

// block is one that is not closed yet.
type block struct {
	plain int    // bytes of plain text in front of it
	text  string // literal that gets the bytes of plain text inside, or none
	name  string // what a set block names its text, or none
}

// tag is {{, {% or {#.
func isTag(text string) bool {
	return len(text) > 1 && text[0] == '{' && strings.IndexByte("{%#", text[1]) >= 0
}

// next takes the text up to the next tag, and the tag.
func (p *preparer) next() error {
	at := 0
	for at < len(p.rest) && !isTag(p.rest[at:]) {
		at++
	}
	text := p.rest[:at]
	if at == len(p.rest) {
		p.text(text)
		p.rest = ""
		return nil
	}
	kind, sign := p.rest[at+1], byte(0)
	p.rest = p.rest[at+2:]
	if p.rest != "" && (p.rest[0] == '-' || p.rest[0] == '+') {
		sign = p.rest[0]
		p.rest = p.rest[1:]
	}
	switch {
	case sign == '-':
		text = strings.TrimRight(text, " \t\n\r\v\f")
	case sign != '+' && kind != '{':
		text = p.stripLine(text)
	}
	p.text(text)
	switch kind {
	case '#':
		end := strings.Index(p.rest, "#}")
		if end < 0 {
			return fmt.Errorf("comment is not closed")
		}
		body := p.rest[:end]
		p.rest = p.rest[end+2:]
		p.afterTag(lastByte(body), true)
		return nil
	case '%':
		if p.raw() {
			return nil
		}
	}
	return p.tag(kind)
}

// stripLine drops blanks between the last line end and a block.
func (p *preparer) stripLine(text string) string {
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || p.lineStart) && strings.Trim(text[line:], " \t\v\f") == "" {
		return text[:line]
	}
	return text
}

func lastByte(s string) byte {
	if s == "" {
		return 0
	}
	return s[len(s)-1]
}

// afterTag drops what a tag's end takes from the text behind it.
func (p *preparer) afterTag(sign byte, block bool) {
	before := p.rest
	switch {
	case sign == '-':
		p.rest = strings.TrimLeft(p.rest, " \t\n\r\v\f")
	case sign != '+' && block:
		p.rest = strings.TrimPrefix(p.rest, "\n")
	}
	p.lineStart = lastByte(before[:len(before)-len(p.rest)]) == '\n'
}

// text writes plain text. Text that could join with a tag behind it becomes a
// variable.
func (p *preparer) text(text string) {
	p.plain += len(text)
	if strings.HasSuffix(text, "{") || strings.ContainsAny(text, "{") && strings.ContainsAny(text, "%#{") {
		p.out.WriteString("{{ " + p.literal(text) + " }}")
		return
	}
	p.out.WriteString(text)
}

// literal binds a text to a new variable.
func (p *preparer) literal(text string) string {
	name := "literal_" + strconv.Itoa(len(p.literals)) + "_"
	p.literals[name] = text
	return name
}

// raw takes {% raw %} to {% endraw %}.
func (p *preparer) raw() bool {
	body, ok := strings.CutPrefix(strings.TrimLeft(p.rest, " \n\t"), "raw")
	if !ok {
		return false
	}
	sign, body, ok := blockEnd(body)
	if !ok {
		return false
	}
	if sign == '-' {
		body = strings.TrimLeft(body, " \t\n\r\v\f")
	}
	for at := 0; ; at += 2 {
		n := strings.Index(body[at:], "{%")
		if n < 0 {
			return false
		}
		at += n
		tail := body[at+2:]
		open := byte(0)
		if tail != "" && (tail[0] == '-' || tail[0] == '+') {
			open, tail = tail[0], tail[1:]
		}
		tail, ok := strings.CutPrefix(strings.TrimLeft(tail, " \n\t"), "endraw")
		if !ok {
			continue
		}
		sign, tail, ok := blockEnd(tail)
		if !ok {
			continue
		}
		content := body[:at]
		switch open {
		case '-':
			content = strings.TrimRight(content, " \t\n\r\v\f")
		case 0:
			p.lineStart = false
			content = p.stripLine(content)
		}
		p.plain += len(content)
		p.out.WriteString("{{ " + p.literal(content) + " }}")
		p.rest = tail
		p.afterTag(sign, true)
		return true
	}
}

// blockEnd reads the end of a block tag that holds nothing more.
func blockEnd(text string) (sign byte, rest string, ok bool) {
	text = strings.TrimLeft(text, " \n\t")
	if text != "" && (text[0] == '-' || text[0] == '+') {
		sign, text = text[0], text[1:]
	}
	rest, ok = strings.CutPrefix(text, "%}")
	return sign, rest, ok
}

// tag takes the inside of {{ or {% up to its end.
func (p *preparer) tag(kind byte) error {
	end := "}}"
	if kind == '%' {
		end = "%}"
	}
	var body []byte
	var code strings.Builder // without the texts
	depth := 0
	for p.rest != "" {
		c := p.rest[0]
		if depth == 0 {
			sign, tail := byte(0), p.rest
			if (c == '-' || c == '+') && strings.HasPrefix(p.rest[1:], end) {
				sign, tail = c, p.rest[1:]
			}
			if rest, ok := strings.CutPrefix(tail, end); ok {
				p.rest = rest
				p.afterTag(sign, kind == '%')
				if err := checkTag(code.String()); err != nil {
					return err
				}
				return p.emit(kind, string(body))
			}
		}
		switch c {
		case '\'', '"':
			text, err := p.strings()
			if err != nil {
				return err
			}
			body = append(body, text...)
			continue
		case '(', '[', '{':
			if depth++; depth > maxBrackets {
				return fmt.Errorf("brackets nested deeper than %d", maxBrackets)
			}
		case ')', ']', '}':
			if depth--; depth < 0 {
				return fmt.Errorf("bracket %c is not opened", c)
			}
			if before, ok := bytes.CutSuffix(bytes.TrimRight(body, " "), []byte(",")); ok && c == '}' {
				body = before // the engine takes none there
			}
		case '\n', '\t', '\v', '\f':
			c = ' '
		}
		body = append(body, c)
		code.WriteByte(c)
		p.rest = p.rest[1:]
	}
	return fmt.Errorf("tag is not closed by %s", end)
}

// checkTag holds a tag, without its string literals, to the bounds.
func checkTag(code string) error {
	switch joins := strings.Count(code, "+") + strings.Count(code, "~"); {
	case len(code) > maxTag:
		return fmt.Errorf("a tag of at most %d bytes is supported, got %d", maxTag, len(code))
	case joins > maxJoins:
		return fmt.Errorf("at most %d of + and ~ in a tag are supported, got %d", maxJoins, joins)
	case reserved.MatchString(code):
		return fmt.Errorf("the name %s is reserved", reserved.FindString(code))
	}
	return nil
}

// emit writes a tag, the conditional expressions inside its brackets hoisted
// out of it. The generation tag, which marks what an assistant wrote
// for training masks, prints nothing. What runs in rounds, gives a value a name
// or prints it is counted: see budget.
func (p *preparer) emit(kind byte, body string) error {
	body, err := arithmetic(dicts(strings.TrimSpace(body)))
	if err != nil {
		return err
	}
	if kind == '{' {
		p.out.WriteString("{{ " + p.hoist("bound_print("+body+")") + " }}")
		return nil
	}
	end := wordEnd(body, 0)
	word, rest := body[:end], body[end:]
	if word == "set" || word == "if" {
		body = p.hoist(body)
	}
	name := ""
	switch pieces := splitTop(rest, "="); word {
	case "generation", "endgeneration":
		return nil
	case "for":
		return p.openCounted("{% "+strings.TrimSuffix(body, " recursive")+" %}", "bound_round", "")
	case "macro":
		list := rest[strings.IndexByte(rest, '(')+1:]
		return p.openCounted("{% "+body+" %}", "bound_macro", names(list[:max(0, strings.LastIndexByte(list, ')'))]))
	case "endmacro":
		p.out.WriteString("{% if bound_endmacro() %}{% endif %}")
	case "set":
		if len(pieces) == 1 {
			p.out.WriteString("{% " + body + " %}")
			return p.open(block{name: rest})
		}
		name = pieces[0]
		_, expression, _ := strings.Cut(body, "=")
		if then, rest, ok := cutWord(expression, "if"); ok {
			p.chosen++
			chosen := "chosen_" + strconv.Itoa(p.chosen) + "_"
			p.choose(chosen, then, rest)
			body = word + name + "= " + chosen
		}
	case "with":
		name = names(rest)
		fallthrough
	case "if", "call", "filter":
		if err := p.open(block{}); err != nil {
			return err
		}
	}
	if strings.HasPrefix(word, "end") && len(p.blocks) > 0 {
		last := p.blocks[len(p.blocks)-1]
		p.blocks = p.blocks[:len(p.blocks)-1]
		if last.text != "" {
			p.literals[last.text] = p.plain - last.plain
		}
		if last.name != "" {
			name = last.name
		}
	}
	p.out.WriteString("{% " + body + " %}")
	if name != "" {
		p.out.WriteString("{% if bound_keep(" + name + ") %}{% endif %}")
	}
	return nil
}

// open enters a block.
func (p *preparer) open(b block) error {
	if len(p.blocks) == maxBlocks {
		return fmt.Errorf("blocks nested deeper than %d", maxBlocks)
	}
	b.plain = p.plain
	p.blocks = append(p.blocks, b)
	return nil
}

// openCounted writes the tag of a block and, at its start, the call that counts
// its plain text and the values args.
func (p *preparer) openCounted(tag, call, args string) error {
	text := p.literal("")
	p.out.WriteString(tag + "{% if " + call + "(" + strings.TrimSuffix(text+", "+args, ", ") + ") %}{% endif %}")
	return p.open(block{text: text})
}

// names lists those that a macro or with binds: a, b=1, *rest.
func names(list string) string {
	var all []string
	for _, part := range splitTop(list, ",") {
		name := strings.Trim(splitTop(part, "=")[0], " *")
		if name != "" && wordEnd(name, 0) == len(name) {
			all = append(all, name)
		}
	}
	return strings.Join(all, ", ")
}

// strings takes a string literal and those that follow it directly, which
// Jinja joins.
func (p *preparer) strings() (string, error) {
	var value strings.Builder
	source := ""
	count := 0
	for p.rest != "" && (p.rest[0] == '\'' || p.rest[0] == '"') {
		n := closingQuote(p.rest)
		if n < 0 {
			return "", fmt.Errorf("string is not closed")
		}
		source = p.rest[:n+1]
		value.WriteString(unescape(p.rest[1:n]))
		p.rest = p.rest[n+1:]
		count++
		if trimmed := strings.TrimLeft(p.rest, " \t\n"); trimmed != "" && (trimmed[0] == '\'' || trimmed[0] == '"') {
			p.rest = trimmed
		}
	}
	text := value.String()
	if count == 1 && len(text) < 256 && !strings.ContainsAny(text, "\\\"'\n{}%#") && text == source[1:len(source)-1] {
		return source, nil
	}
	return p.literal(text), nil
}

func closingQuote(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case text[0]:
			return i
		}
	}
	return -1
}

// unescape reads the escapes of a Python string; an unknown one stays as it
// is.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	simple := map[byte]string{
		'n': "\n", 't': "\t", 'r': "\r", '\\': `\`, '\'': "'", '"': `"`, '\n': "",
		'a': "\a", 'b': "\b", 'f': "\f", 'v': "\v", '0': "\x00",
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		i++
		if s, ok := simple[text[i]]; ok {
			out.WriteString(s)
			continue
		}
		n := digits[text[i]]
		if n > 0 && i+n < len(text) {
			if code, err := strconv.ParseUint(text[i+1:i+1+n], 16, 32); err == nil && code <= utf8.MaxRune {
				out.WriteRune(rune(code))
				i += n
				continue
			}
		}
		out.WriteByte('\\')
		out.WriteByte(text[i])
	}
	return out.String()
}
