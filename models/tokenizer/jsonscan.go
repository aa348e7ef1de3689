// Reading JSON in place: the parts of a value as slices of the file, so that
// a vocabulary is never held twice. Everything here is given valid JSON
// (json.Valid); the small parts still go to encoding/json.

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
	"unsafe"

	"github.com/tidwall/gjson"
)

// view is text in bytes that stay as they are as long as it is used.
func view(text []byte) string { return unsafe.String(unsafe.SliceData(text), len(text)) }

// viewed are the bytes of a view.
func viewed(text string) []byte { return unsafe.Slice(unsafe.StringData(text), len(text)) }

// parts calls yield for each value of an array or an object, and for its key
// there. null has none.
func parts(raw []byte, open byte, yield func(key, value []byte) error) (err error) {
	all := gjson.Parse(view(raw))
	if all.Type == gjson.Null && len(raw) > 0 {
		return nil
	}
	if all.Raw == "" || all.Raw[0] != open {
		return fmt.Errorf("cannot unmarshal %q: required a value that starts with %q", shortened(raw), open)
	}
	all.ForEach(func(key, value gjson.Result) bool {
		err = yield(viewed(key.Raw), viewed(value.Raw))
		return err == nil
	})
	return err
}

// elements calls yield for each value of an array.
func elements(raw []byte, yield func(value []byte) error) error {
	return parts(raw, '[', func(_, value []byte) error { return yield(value) })
}

// members calls yield for each member of an object.
func members(raw []byte, yield func(key, value []byte) error) error { return parts(raw, '{', yield) }

// unquoted is the text of a string: what stands between its quotes, or a copy
// where that is not what is meant.
func unquoted(raw []byte) ([]byte, error) {
	if len(raw) == 0 || raw[0] != '"' {
		return nil, fmt.Errorf("required a string, got %s", shortened(raw))
	}
	inside := raw[1 : len(raw)-1]
	if bytes.IndexByte(inside, '\\') < 0 && utf8.Valid(inside) {
		return inside, nil
	}
	var text string
	err := json.Unmarshal(raw, &text)
	return []byte(text), err
}

// readFields reads the members of an object that fields has, by name as
// encoding/json compares names. A json.RawMessage becomes a part of raw.
func readFields(raw []byte, fields map[string]any) error {
	return members(raw, func(key, value []byte) error {
		name, err := unquoted(key)
		if err != nil {
			return err
		}
		for field, to := range fields {
			if !bytes.EqualFold(name, []byte(field)) {
				continue
			}
			if part, ok := to.(*json.RawMessage); ok {
				*part = value
			} else if err := json.Unmarshal(value, to); err != nil {
				return fmt.Errorf("%s: %w", field, err)
			}
		}
		return nil
	})
}
