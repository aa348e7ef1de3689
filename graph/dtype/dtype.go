// Package dtype holds the number types of tensors: the enumeration DType and
// the narrow floats BF16, F16, E4M3 and E5M2 with their exact conversions.
//
// A narrow float is its bit pattern in an unsigned integer, so a slice of them
// is the stored form of a tensor. Decoding is exact; encoding rounds once, to
// nearest with ties to even. The 16-bit types overflow to infinity as IEEE 754
// says, the 8-bit types saturate to the largest finite value. NaN stays NaN.
package dtype

import "fmt"

// DType names the element type of a tensor. The zero value is Invalid.
type DType uint8

// The element types. Float8E4M3 is the finite-only variant (no infinity,
// largest value 448), often called E4M3FN.
const (
	Invalid DType = iota
	Float64
	Float32
	Float16
	BFloat16
	Float8E4M3
	Float8E5M2
	Int64
	Int32
	Int16
	Int8
	UInt64
	UInt32
	UInt16
	UInt8
	Bool
	count
)

// kind sorts the types into families.
type kind uint8

const (
	kindNone kind = iota
	kindFloat
	kindInt
	kindUint
	kindBool
)

var table = [count]struct {
	size        int
	kind        kind
	name, store string
}{
	Invalid:    {0, kindNone, "invalid", ""},
	Float64:    {8, kindFloat, "float64", "F64"},
	Float32:    {4, kindFloat, "float32", "F32"},
	Float16:    {2, kindFloat, "float16", "F16"},
	BFloat16:   {2, kindFloat, "bfloat16", "BF16"},
	Float8E4M3: {1, kindFloat, "float8_e4m3", "F8_E4M3"},
	Float8E5M2: {1, kindFloat, "float8_e5m2", "F8_E5M2"},
	Int64:      {8, kindInt, "int64", "I64"},
	Int32:      {4, kindInt, "int32", "I32"},
	Int16:      {2, kindInt, "int16", "I16"},
	Int8:       {1, kindInt, "int8", "I8"},
	UInt64:     {8, kindUint, "uint64", "U64"},
	UInt32:     {4, kindUint, "uint32", "U32"},
	UInt16:     {2, kindUint, "uint16", "U16"},
	UInt8:      {1, kindUint, "uint8", "U8"},
	Bool:       {1, kindBool, "bool", "BOOL"},
}

// Valid reports whether d is one of the element types above.
func (d DType) Valid() bool { return d > Invalid && d < count }

// Size is the number of bytes of one element, 0 for an invalid type.
func (d DType) Size() int {
	if d >= count {
		return 0
	}
	return table[d].size
}

// String is the readable name: "float32", "bfloat16", "float8_e4m3", "int64".
func (d DType) String() string {
	if d >= count {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return table[d].name
}

// Safetensors is the spelling of the type in a safetensors header: "F32",
// "BF16", "F8_E4M3", "I64", "BOOL". It is empty for an invalid type.
func (d DType) Safetensors() string {
	if d >= count {
		return ""
	}
	return table[d].store
}

// FromSafetensors is the type with the safetensors spelling s.
func FromSafetensors(s string) (DType, bool) {
	for d := Invalid + 1; d < count; d++ {
		if table[d].store == s {
			return d, true
		}
	}
	return Invalid, false
}

// FromName is the type with the readable name s.
func FromName(s string) (DType, bool) {
	for d := Invalid + 1; d < count; d++ {
		if table[d].name == s {
			return d, true
		}
	}
	return Invalid, false
}

func (d DType) kind() kind {
	if d >= count {
		return kindNone
	}
	return table[d].kind
}

// IsFloat reports whether d is a floating-point type of any width.
func (d DType) IsFloat() bool { return d.kind() == kindFloat }

// IsFloat8 reports whether d is one of the two 8-bit floats.
func (d DType) IsFloat8() bool { return d == Float8E4M3 || d == Float8E5M2 }

// IsInteger reports whether d is a signed or unsigned integer type.
func (d DType) IsInteger() bool { return d.kind() == kindInt || d.kind() == kindUint }

// IsSigned reports whether d can hold a negative number.
func (d DType) IsSigned() bool { return d.kind() == kindFloat || d.kind() == kindInt }
