// The template engine as chat templates expect it: transformers' Jinja
// environment.

package chat

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
)

// root is the name of the template inside the engine. Nothing else can be
// loaded: include and import find no files.
const root = "/template"

func parse(source string) (t *exec.Template, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	loader, err := loaders.NewMemoryLoader(map[string]string{root: source})
	if err != nil {
		return nil, err
	}
	c := config.New()
	c.KeepTrailingNewline = true
	if t, err = exec.NewTemplate(root, c, loader, environment); err != nil {
		return nil, unread(source, err)
	}
	return t, nil
}

// place is where the engine says that it could not read on.
var place = regexp.MustCompile(`\(Line: (\d+) Col: (\d+), near `)

// unread is an error of the engine with the tag that it is about in place of the
// whole template.
func unread(source string, err error) error {
	text := strings.TrimPrefix(err.Error(), "failed to parse template '"+source+"': ")
	found := place.FindStringSubmatchIndex(text)
	if found == nil {
		return errors.New(text)
	}
	line, _ := strconv.Atoi(text[found[2]:found[3]])
	col, _ := strconv.Atoi(text[found[4]:found[5]])
	at := 0
	for ; line > 1 && at < len(source); line-- {
		at += strings.IndexByte(source[at:], '\n') + 1
	}
	at = min(at+max(col, 1)-1, len(source))
	tag := source[max(strings.LastIndex(source[:at], "{%"), strings.LastIndex(source[:at], "{{"), 0):]
	if printed, ok := strings.CutPrefix(tag, "{{ bound_print("); ok {
		printed, _, _ = strings.Cut(printed, ") }}")
		tag = "{{ " + printed + " }}"
	}
	return fmt.Errorf("%s near %s, in %q", strings.TrimRight(text[:found[0]], ". "), strings.TrimSuffix(text[found[1]:], ")"), excerpt(tag))
}

// raiseException is raise_exception(message): it ends the rendering with an
// error.
func raiseException(params *exec.VarArgs) (any, error) {
	return nil, fmt.Errorf("the template says: %s", params.First().String())
}

// strftimeNow is strftime_now(format).
func strftimeNow(now time.Time) func(*exec.VarArgs) (any, error) {
	return func(params *exec.VarArgs) (any, error) {
		return strftime(now, params.First().String())
	}
}

// strftime formats a time with the C directives that dates are made of.
func strftime(t time.Time, format string) (string, error) {
	layouts := map[byte]string{
		'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'M': "04", 'S': "05",
		'p': "PM", 'A': "Monday", 'a': "Mon", 'B': "January", 'b': "Jan", 'h': "Jan", 'F': "2006-01-02",
		'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'j': "002", 'Z': "MST", 'z': "-0700",
	}
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		layout, ok := layouts[format[i]]
		switch {
		case ok:
			out.WriteString(t.Format(layout))
		case format[i] == '%':
			out.WriteByte('%')
		default:
			return "", fmt.Errorf("strftime_now: directive %%%c is not supported", format[i])
		}
	}
	return out.String(), nil
}
