// Reading JSON in place: the parts of a value as slices of the file, so that
// a vocabulary is never held twice. Everything here is given valid JSON
// (json.Valid); the small parts still go to encoding/json.

package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// valueEnd is where the value that starts at at ends.
func valueEnd(raw []byte, at int) int {
	depth := 0
	for i := at; i < len(raw); i++ {
		switch raw[i] {
		case '"':
			for i++; raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 { // closes what is around a number or a word
				return i
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return len(raw)
}

// parts calls yield for each value of an array or an object, in an object for
// keys and values by turns. null has none.
func parts(raw []byte, open byte, yield func(value []byte) error) error {
	raw = bytes.TrimSpace(raw)
	if bytes.Equal(raw, []byte("null")) {
		return nil
	}
	if len(raw) == 0 || raw[0] != open {
		return fmt.Errorf("cannot unmarshal %q: required a value that starts with %q", shortened(raw), open)
	}
	for at := 1; at < len(raw)-1; {
		switch raw[at] {
		case ' ', '\t', '\r', '\n', ',', ':':
			at++
			continue
		}
		end := valueEnd(raw, at)
		if err := yield(raw[at:end]); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// elements calls yield for each value of an array.
func elements(raw []byte, yield func(value []byte) error) error { return parts(raw, '[', yield) }

// members calls yield for each member of an object.
func members(raw []byte, yield func(key, value []byte) error) error {
	var key []byte
	return parts(raw, '{', func(value []byte) error {
		if key == nil {
			key = value
			return nil
		}
		k := key
		key = nil
		return yield(k, value)
	})
}

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
