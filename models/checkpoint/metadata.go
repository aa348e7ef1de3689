// The free part of a header, with typed access.

package checkpoint

import "fmt"

// Metadata holds the keys of a header. Safetensors values are strings. GGUF
// values are uint8 ... int64, float32, float64, bool, string, or slices of one
// of these; an array of arrays is a []any of slices.
type Metadata map[string]any

// String is the string under key.
func (m Metadata) String(key string) (string, error) { return typed[string](m, key) }

// Bool is the bool under key.
func (m Metadata) Bool(key string) (bool, error) { return typed[bool](m, key) }

// Strings is the array of strings under key.
func (m Metadata) Strings(key string) ([]string, error) { return typed[[]string](m, key) }

// Int is the integer of any width under key.
func (m Metadata) Int(key string) (int, error) {
	v, ok := m[key]
	if !ok {
		return 0, missing(key)
	}
	n, ok := asInt(v)
	if !ok {
		return 0, fmt.Errorf("metadata: %q must be an integer that fits an int, it is %v (%T)", key, v, v)
	}
	return n, nil
}

// Float is the float32, float64 or integer under key.
func (m Metadata) Float(key string) (float64, error) {
	v, ok := m[key]
	if !ok {
		return 0, missing(key)
	}
	switch v := v.(type) {
	case float32:
		return float64(v), nil
	case float64:
		return v, nil
	}
	n, ok := asInt(v)
	if !ok {
		return 0, mistyped(key, "a number", v)
	}
	return float64(n), nil
}

// Ints is the array of integers of any width under key.
func (m Metadata) Ints(key string) ([]int, error) {
	v, ok := m[key]
	if !ok {
		return nil, missing(key)
	}
	var out []int
	switch v := v.(type) {
	case []uint8:
		out, ok = asInts(v)
	case []int8:
		out, ok = asInts(v)
	case []uint16:
		out, ok = asInts(v)
	case []int16:
		out, ok = asInts(v)
	case []uint32:
		out, ok = asInts(v)
	case []int32:
		out, ok = asInts(v)
	case []uint64:
		out, ok = asInts(v)
	case []int64:
		out, ok = asInts(v)
	default:
		ok = false
	}
	if !ok {
		return nil, mistyped(key, "an array of integers that fit an int", v)
	}
	return out, nil
}

// Floats is the array of float32 or float64 under key.
func (m Metadata) Floats(key string) ([]float64, error) {
	v, ok := m[key]
	if !ok {
		return nil, missing(key)
	}
	switch v := v.(type) {
	case []float64:
		return v, nil
	case []float32:
		out := make([]float64, len(v))
		for i, x := range v {
			out[i] = float64(x)
		}
		return out, nil
	}
	return nil, mistyped(key, "an array of floats", v)
}

func typed[T any](m Metadata, key string) (T, error) {
	var zero T
	v, ok := m[key]
	if !ok {
		return zero, missing(key)
	}
	t, ok := v.(T)
	if !ok {
		return zero, mistyped(key, fmt.Sprintf("a %T", zero), v)
	}
	return t, nil
}

func missing(key string) error { return fmt.Errorf("metadata: no key %q", key) }

func mistyped(key, want string, got any) error {
	return fmt.Errorf("metadata: %q must be %s, it is a %T", key, want, got)
}

func asInt(v any) (int, bool) {
	switch v := v.(type) {
	case uint8:
		return fit(v)
	case int8:
		return fit(v)
	case uint16:
		return fit(v)
	case int16:
		return fit(v)
	case uint32:
		return fit(v)
	case int32:
		return fit(v)
	case uint64:
		return fit(v)
	case int64:
		return fit(v)
	}
	return 0, false
}

type integer interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64
}

// fit converts to int, false when the value changes.
func fit[T integer](v T) (int, bool) {
	n := int(v)
	return n, T(n) == v && (n < 0) == (v < 0)
}

func asInts[T integer](v []T) ([]int, bool) {
	out := make([]int, len(v))
	for i, x := range v {
		n, ok := fit(x)
		if !ok {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}
