// Values that templates read. Objects are the engine's Dict, which keeps the
// order of keys, as Python does.

package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nikolalohinski/gonja/v2/exec"
)

// list is a list whose negative indices count from the end; the engine's own
// have no [-1] if they hold one value.
type list []any

func (l list) GetItem(key any) (*exec.Value, bool) {
	i, ok := key.(int)
	if i < 0 {
		i += len(l)
	}
	if !ok || i < 0 || i >= len(l) {
		return exec.AsValue(nil), false
	}
	return exec.AsValue(l[i]), true
}

// reasoningFields are the names of an assistant's reasoning: templates read the
// first, or thinking.
var reasoningFields = []string{"reasoning_content", "thinking", "reasoning"}

// messageValues are the messages as transformers gives them to a template: fields
// that are null are left out, and reasoning has the names that templates read.
func messageValues(messages []Message) (list, error) {
	values := make(list, len(messages))
	for i, m := range messages {
		fields := map[string]any{"content": m.Content}
		for name, field := range m.Fields {
			v, err := value(field)
			if err != nil {
				return nil, fmt.Errorf("message %d: %s: %w", i, name, err)
			}
			fields[name] = v
		}
		for _, name := range reasoningFields {
			if text := fields[name]; text != nil {
				if fields["reasoning_content"] = text; fields["thinking"] == nil {
					fields["thinking"] = text
				}
				break
			}
		}
		v := exec.NewDict()
		set(v, "role", m.Role)
		if content := fields["content"]; content != nil {
			set(v, "content", content)
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			if fields[name] != nil {
				set(v, name, fields[name])
			}
		}
		values[i] = v
	}
	return values, nil
}

func toolValues(tools []json.RawMessage) (any, error) {
	if len(tools) == 0 {
		return nil, nil
	}
	values := make(list, len(tools))
	for i, raw := range tools {
		v, err := value(raw)
		if err != nil {
			return nil, fmt.Errorf("tool %d: %w", i, err)
		}
		values[i] = v
	}
	return values, nil
}

// set replaces or adds an entry.
func set(d *exec.Dict, key string, v any) {
	for _, pair := range d.Pairs {
		if pair.Key.String() == key {
			pair.Value = exec.AsValue(v)
			return
		}
	}
	add(d, key, v)
}

// add adds an entry whose key is not there.
func add(d *exec.Dict, key string, v any) {
	d.Pairs = append(d.Pairs, &exec.Pair{Key: exec.AsValue(key), Value: exec.AsValue(v)})
}

var errDepth = fmt.Errorf("nested deeper than %d", maxDepth)

// value turns a Go value into one of the engine: JSON with its keys in order,
// maps sorted by key.
func value(v any) (any, error) { return nestedValue(v, 0) }

func nestedValue(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	switch v := v.(type) {
	case json.RawMessage:
		d := json.NewDecoder(bytes.NewReader(v))
		d.UseNumber()
		return decode(d, depth)
	case map[string]any:
		dict := exec.NewDict()
		for _, key := range slices.Sorted(maps.Keys(v)) {
			entry, err := nestedValue(v[key], depth+1)
			if err != nil {
				return nil, err
			}
			add(dict, key, entry)
		}
		return orEmpty(dict), nil
	case []any:
		all := make(list, len(v))
		for i, entry := range v {
			var err error
			if all[i], err = nestedValue(entry, depth+1); err != nil {
				return nil, err
			}
		}
		return all, nil
	case float64:
		if i := int(v); float64(i) == v {
			return i, nil
		}
	}
	return v, nil
}

// decode reads one JSON value.
func decode(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Number:
		if i, err := strconv.Atoi(token.String()); err == nil {
			return i, nil
		}
		return token.Float64()
	case json.Delim:
		if token == '[' {
			return decodeList(d, depth+1)
		}
		return decodeObject(d, depth+1)
	}
	return token, nil
}

func decodeList(d *json.Decoder, depth int) (any, error) {
	all := list{}
	for d.More() {
		v, err := decode(d, depth)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	_, err := d.Token()
	return all, err
}

func decodeObject(d *json.Decoder, depth int) (any, error) {
	dict, at := exec.NewDict(), map[string]int{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := decode(d, depth)
		if err != nil {
			return nil, err
		}
		i, again := at[key.(string)]
		if !again {
			at[key.(string)] = len(dict.Pairs)
			add(dict, key.(string), v)
			continue
		}
		dict.Pairs[i].Value = exec.AsValue(v)
	}
	_, err := d.Token()
	return orEmpty(dict), err
}

// orEmpty is an empty map for an empty Dict, which the engine takes for true.
func orEmpty(d *exec.Dict) any {
	if len(d.Pairs) == 0 {
		return map[string]any{}
	}
	return d
}
