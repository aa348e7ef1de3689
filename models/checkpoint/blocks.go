// The block codings of GGUF with 32 elements: layouts and formulas.
//
// In each, q holds two 4-bit numbers a byte: element i in the low half of byte
// i, element i+16 in the high half. d and m are F16.
//
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and the
// block structures of ggml-common.h.

package checkpoint

import (
	"encoding/binary"
	"math"

	"github.com/seafan/seafan/graph/dtype"
)

func half(b []byte) float32 { return dtype.F16(binary.LittleEndian.Uint16(b)).Float32() }

// decodeQ4_0: d, q[16]; x = d (q - 8).
func decodeQ4_0(dst []float32, b []byte) {
	d := half(b)
	for i, q := range b[2:18] {
		dst[i] = d * float32(int(q&15)-8)
		dst[i+16] = d * float32(int(q>>4)-8)
	}
}

// decodeQ4_1: d, m, q[16]; x = d q + m.
func decodeQ4_1(dst []float32, b []byte) {
	d, m := half(b), half(b[2:])
	for i, q := range b[4:20] {
		dst[i] = d*float32(q&15) + m
		dst[i+16] = d*float32(q>>4) + m
	}
}

// decodeQ5_0: d, fifth bits of the elements in a uint32, q[16]; x = d (q - 16).
func decodeQ5_0(dst []float32, b []byte) {
	d, fifth := half(b), binary.LittleEndian.Uint32(b[2:])
	for i, q := range b[6:22] {
		dst[i] = d * float32(int(uint32(q&15)|fifth>>i<<4&16)-16)
		dst[i+16] = d * float32(int(uint32(q>>4)|fifth>>(i+16)<<4&16)-16)
	}
}

// decodeQ5_1: d, m, fifth bits, q[16]; x = d q + m.
func decodeQ5_1(dst []float32, b []byte) {
	d, m, fifth := half(b), half(b[2:]), binary.LittleEndian.Uint32(b[4:])
	for i, q := range b[8:24] {
		dst[i] = d*float32(uint32(q&15)|fifth>>i<<4&16) + m
		dst[i+16] = d*float32(uint32(q>>4)|fifth>>(i+16)<<4&16) + m
	}
}

// decodeQ8_0: d, int8 q[32]; x = d q.
func decodeQ8_0(dst []float32, b []byte) {
	d := half(b)
	for i, q := range b[2:34] {
		dst[i] = d * float32(int8(q))
	}
}

// iq4Values are the 16 levels of IQ4_NL.
var iq4Values = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// decodeIQ4_NL: d, q[16]; x = d level[q].
func decodeIQ4_NL(dst []float32, b []byte) {
	d := half(b)
	for i, q := range b[2:18] {
		dst[i] = d * iq4Values[q&15]
		dst[i+16] = d * iq4Values[q>>4]
	}
}

// fp4Values are the E2M1 numbers, doubled; minus zero is read as zero.
var fp4Values = [16]float32{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// decodeMXFP4: exponent e, q[16]; x = 2^(e-127) E2M1[q], with e = 255 taken as
// a number, as ggml does. The format is MXFP4 of the OCP Microscaling
// specification, 2023, with the elements in ggml's order.
func decodeMXFP4(dst []float32, b []byte) {
	d := math.Float32frombits(1 << 21 << b[0]) // 2^(e-128) below the normal range
	if b[0] >= 2 {
		d = math.Float32frombits(uint32(b[0]-1) << 23)
	}
	for i, q := range b[1:17] {
		dst[i] = d * fp4Values[q&15]
		dst[i+16] = d * fp4Values[q>>4]
	}
}
