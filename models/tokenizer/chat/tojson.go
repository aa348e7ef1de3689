// The tojson filter as transformers defines it: Python's json.dumps with
// ensure_ascii off, keys in order.

package chat

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/nikolalohinski/gonja/v2/exec"
)

func toJSON(_ *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	w := jsonWriter{itemEnd: ", ", keyEnd: ": "}
	args := [...]string{"ensure_ascii", "indent", "separators", "sort_keys"}
	for i, arg := range params.Args {
		if i < len(args) {
			params.KwArgs[args[i]] = arg
		}
	}
	for name, arg := range params.KwArgs {
		switch {
		case name == "ensure_ascii":
			w.ascii = arg.IsTrue()
		case name == "indent" && arg.IsNil():
		case name == "indent" && arg.IsInteger():
			w.indent, w.itemEnd = strings.Repeat(" ", max(0, min(arg.Integer(), 64))), ","
			w.lines = true
		case name == "separators" && arg.IsNil():
		case name == "separators" && arg.Len() == 2:
			w.itemEnd, w.keyEnd = arg.Index(0).String(), arg.Index(1).String()
		case name == "sort_keys" && !arg.IsTrue():
		default:
			return exec.AsValue(fmt.Errorf("tojson: argument %s=%s is not supported", name, arg.String()))
		}
	}
	if err := w.write(in, ""); err != nil {
		return exec.AsValue(fmt.Errorf("tojson: %w", err))
	}
	return exec.AsSafeValue(w.out.String())
}

type jsonWriter struct {
	out             strings.Builder
	ascii, lines    bool
	python          bool // as repr does, not as JSON
	indent          string
	itemEnd, keyEnd string
}

// maxDepth ends values that contain themselves.
const maxDepth = 200

func (w *jsonWriter) write(v *exec.Value, margin string) error {
	switch {
	case v.IsError():
		return fmt.Errorf("%s", v.Error())
	case v.IsNil() && w.python:
		w.out.WriteString("None")
	case v.IsNil():
		w.out.WriteString("null")
	case v.IsBool() && w.python:
		w.out.WriteString(map[bool]string{true: "True", false: "False"}[v.Bool()])
	case v.IsBool():
		w.out.WriteString(strconv.FormatBool(v.Bool()))
	case v.IsString():
		w.quote(v.String())
	case v.IsInteger():
		w.out.WriteString(strconv.Itoa(v.Integer()))
	case v.IsFloat():
		w.out.WriteString(pythonFloat(v.Float()))
	case v.IsDict():
		pairs := pairsOf(v)
		return w.items(margin, "{", "}", len(pairs), func(i int, margin string) error {
			w.quote(pairs[i].Key.String())
			w.out.WriteString(w.keyEnd)
			return w.write(pairs[i].Value, margin)
		})
	case v.IsList():
		return w.items(margin, "[", "]", v.Len(), func(i int, margin string) error {
			return w.write(v.Index(i), margin)
		})
	default:
		return fmt.Errorf("a value of type %T has no JSON", v.Interface())
	}
	return nil
}

func (w *jsonWriter) items(margin, open, end string, n int, item func(i int, margin string) error) error {
	if len(margin) > maxDepth {
		return errDepth
	}
	inner := margin + w.indent
	if !w.lines {
		inner = margin + " "
	}
	w.out.WriteString(open)
	for i := range n {
		if i > 0 {
			w.out.WriteString(w.itemEnd)
		}
		if w.lines {
			w.out.WriteString("\n" + inner)
		}
		if err := item(i, inner); err != nil {
			return err
		}
	}
	if w.lines && n > 0 {
		w.out.WriteString("\n" + margin)
	}
	w.out.WriteString(end)
	return nil
}

func (w *jsonWriter) quote(text string) {
	if w.python {
		w.out.WriteString(pythonQuote(text))
		return
	}
	short := map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}
	w.out.WriteByte('"')
	for _, r := range text {
		switch s, ok := short[r]; {
		case ok:
			w.out.WriteString(s)
		case r < ' ', w.ascii && r >= 0x7F:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&w.out, `\u%04x`, unit)
			}
		default:
			w.out.WriteRune(r)
		}
	}
	w.out.WriteByte('"')
}

// pythonQuote writes a string as Python's repr does: in single quotes, in
// double ones if that saves an escape.
func pythonQuote(text string) string {
	quote := "'"
	if strings.Contains(text, "'") && !strings.Contains(text, `"`) {
		quote = `"`
	}
	var out strings.Builder
	out.WriteString(quote)
	for _, r := range text {
		switch {
		case string(r) == quote || r == '\\':
			out.WriteString(`\` + string(r))
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\r':
			out.WriteString(`\r`)
		case r == '\t':
			out.WriteString(`\t`)
		case r < ' ' || r == 0x7F:
			fmt.Fprintf(&out, `\x%02x`, r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String() + quote
}

// pythonFloat writes a float as Python's repr does.
func pythonFloat(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case math.IsNaN(f):
		return "NaN"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// pairsOf gives the entries of an object in order.
func pairsOf(v *exec.Value) []*exec.Pair {
	switch d := v.Interface().(type) {
	case *exec.Dict:
		return d.Pairs
	case exec.Dict:
		return d.Pairs
	}
	var pairs []*exec.Pair
	for _, key := range v.Keys() {
		entry, _ := v.GetItem(key.Interface())
		pairs = append(pairs, &exec.Pair{Key: key, Value: entry})
	}
	return pairs
}
