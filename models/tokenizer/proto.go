// A reader for protocol buffers on the wire, as much as tokenizer.model needs.

package tokenizer

import (
	"encoding/binary"
	"fmt"
	"math"
)

// protoField is one field of a message: a varint or fixed number in value, or
// a string or sub-message in data, which aliases the input.
type protoField struct {
	number int
	at     int // where it begins in its message
	end    int // and ends
	value  uint64
	data   []byte
}

func (f protoField) bool() bool     { return f.value != 0 }
func (f protoField) int32() int32   { return int32(f.value) }
func (f protoField) float() float32 { return math.Float32frombits(uint32(f.value)) }

// protoFields calls yield for each field of message.
func protoFields(message []byte, yield func(protoField) error) error {
	for at := 0; at < len(message); {
		f, n, err := readProtoField(message[at:])
		if f.at, f.end = at, at+n; err == nil {
			err = yield(f)
		}
		if err != nil {
			return fmt.Errorf("byte %d: %w", at, err)
		}
		at += n
	}
	return nil
}

func readProtoField(b []byte) (f protoField, n int, err error) {
	tag, n := binary.Uvarint(b)
	if n <= 0 || tag>>3 == 0 || tag>>3 > math.MaxInt32 {
		return f, 0, fmt.Errorf("no field tag")
	}
	f.number = int(tag >> 3)
	rest := b[n:]
	switch wire := tag & 7; wire {
	case 0:
		value, m := binary.Uvarint(rest)
		if m <= 0 {
			return f, 0, fmt.Errorf("field %d: no number", f.number)
		}
		f.value = value
		return f, n + m, nil
	case 1, 5:
		size := 4
		if wire == 1 {
			size = 8
		}
		if len(rest) < size {
			return f, 0, fmt.Errorf("field %d: required %d bytes, %d left", f.number, size, len(rest))
		}
		if wire == 1 {
			f.value = binary.LittleEndian.Uint64(rest)
		} else {
			f.value = uint64(binary.LittleEndian.Uint32(rest))
		}
		return f, n + size, nil
	case 2:
		size, m := binary.Uvarint(rest)
		if m <= 0 || size > uint64(len(rest)-m) {
			return f, 0, fmt.Errorf("field %d: required %d bytes, %d left", f.number, size, len(rest)-max(m, 0))
		}
		f.data = rest[m : m+int(size)]
		return f, n + m + int(size), nil
	default:
		return f, 0, fmt.Errorf("field %d: wire type %d is unknown", f.number, wire)
	}
}
