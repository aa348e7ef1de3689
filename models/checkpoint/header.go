// The JSON of safetensors headers and indexes, read strictly: duplicate keys,
// unknown or missing fields and anything but plain integers are errors, which
// encoding/json's decoding into structs lets pass.

package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

type header struct {
	metadata Metadata
	entries  []headerEntry
}

type headerEntry struct {
	name       string
	dtype      string
	shape      []uint64
	begin, end uint64
}

func parseHeader(raw []byte, left *budget) (*header, error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, errors.New("it must start with '{'")
	}
	if err := left.spend(readAheadTimes * longestString(raw)); err != nil {
		return nil, err
	}
	h := &header{}
	r, err := newJSONReader(raw)
	if err != nil {
		return nil, err
	}
	err = r.object(func(name string) error {
		if name == metadataKey {
			h.metadata = Metadata{}
			err := r.object(func(key string) error {
				s, err := r.string()
				if err == nil {
					err = left.spend(keyMemory + len(key) + len(s))
				}
				h.metadata[key] = s
				return in(strconv.Quote(key), err)
			})
			return in(metadataKey, err)
		}
		e, err := r.entry()
		if err == nil {
			err = left.spend(tensorMemory + len(name) + len(e.dtype))
		}
		e.name = name
		h.entries = append(h.entries, e)
		return in(fmt.Sprintf("tensor %q", name), err)
	})
	if err != nil {
		return nil, err
	}
	return h, r.end()
}

// longestString is the length of the longest string of a JSON text, at least.
func longestString(raw []byte) (longest int) {
	for {
		open := bytes.IndexByte(raw, '"')
		if open < 0 {
			return longest
		}
		raw = raw[open+1:]
		end := 0
		for end < len(raw) && raw[end] != '"' {
			if raw[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end, len(raw))
		longest = max(longest, end)
		raw = raw[min(end+1, len(raw)):]
	}
}

// in puts the place before an error.
func in(place string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", place, err)
}

// jsonReader pulls values off a JSON text.
type jsonReader struct{ dec *json.Decoder }

func newJSONReader(raw []byte) (*jsonReader, error) {
	if !utf8.Valid(raw) {
		return nil, errors.New("it is not UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return &jsonReader{dec}, nil
}

func (r *jsonReader) token() (json.Token, error) {
	tok, err := r.dec.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("JSON at byte %d: %w", r.dec.InputOffset(), err)
	}
	return tok, nil
}

func (r *jsonReader) delim(want json.Delim) error {
	tok, err := r.token()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("JSON at byte %d: %v expected, got %v", r.dec.InputOffset(), want, tok)
	}
	return nil
}

// object calls field for each key; field must take the value off the text.
func (r *jsonReader) object(field func(key string) error) error {
	if err := r.delim('{'); err != nil {
		return err
	}
	seen := map[string]struct{}{}
	for r.dec.More() {
		key, err := r.string()
		if err != nil {
			return err
		}
		if _, ok := seen[key]; ok {
			return fmt.Errorf("duplicate key %q", key)
		}
		seen[key] = struct{}{}
		if err := field(key); err != nil {
			return err
		}
	}
	return r.delim('}')
}

func (r *jsonReader) string() (string, error) {
	tok, err := r.token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("JSON at byte %d: a string expected, got %v", r.dec.InputOffset(), tok)
	}
	return s, nil
}

// uints reads an array of at most limit integers without sign, fraction or
// exponent.
func (r *jsonReader) uints(limit int) ([]uint64, error) {
	if err := r.delim('['); err != nil {
		return nil, err
	}
	var out []uint64
	for r.dec.More() {
		tok, err := r.token()
		if err != nil {
			return nil, err
		}
		num, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("integers expected, got %v", tok)
		}
		v, err := strconv.ParseUint(num.String(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("integers from 0 to 2^64-1 expected, got %s", num)
		}
		if len(out) == limit {
			return nil, fmt.Errorf("at most %d integers expected, got more", limit)
		}
		out = append(out, v)
	}
	return out, r.delim(']')
}

// entry reads the object of one tensor.
func (r *jsonReader) entry() (e headerEntry, err error) {
	fields := 0
	err = r.object(func(key string) (err error) {
		fields++
		switch key {
		case "dtype":
			e.dtype, err = r.string()
		case "shape":
			e.shape, err = r.uints(maxRank)
		case "data_offsets":
			var span []uint64
			span, err = r.uints(2)
			if err == nil && len(span) != 2 {
				err = fmt.Errorf("2 integers expected, got %d", len(span))
			}
			if err == nil {
				e.begin, e.end = span[0], span[1]
			}
		default:
			return fmt.Errorf("field %q is unknown", key)
		}
		return in(key, err)
	})
	if err == nil && fields != 3 {
		err = errors.New("dtype, shape and data_offsets are required, one is missing")
	}
	return e, err
}

// skip takes one value of any kind off the text.
func (r *jsonReader) skip() error {
	for depth := 0; ; {
		tok, err := r.token()
		if err != nil {
			return err
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

// end requires that only white space is left.
func (r *jsonReader) end() error {
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("JSON at byte %d: something follows the object", r.dec.InputOffset())
	}
	return nil
}
