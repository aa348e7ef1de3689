// The "K" codings of GGUF: 256 elements in runs of 16 or 32, each run with a
// small integer scale (and minimum) of its own.

package checkpoint

import "encoding/binary"

// decodeQ2_K: s[16], q[64], d, m; 16 runs of 16 with 4-bit scale (low half of
// s) and minimum (high half); x = d s q - m t, q of 2 bits. Byte i of a group
// of 32 holds elements i, i+32, i+64, i+96 of 128.
func decodeQ2_K(dst []float32, b []byte) {
	scales, q, d, m := b[:16], b[16:80], half(b[80:]), half(b[82:])
	for run := range 16 {
		scale := d * float32(scales[run]&15)
		least := m * float32(scales[run]>>4)
		src, shift := runOf(q, run)
		for i, x := range src {
			dst[run*16+i] = scale*float32(x>>shift&3) - least
		}
	}
}

// decodeQ3_K: h[32], q[64], s[12], d; 16 runs of 16 with 6-bit scales;
// x = d (s - 32) (q - 4 (1 - h)), q of 2 bits in Q2_K's order, h one bit: bit
// i/32 of byte i%32.
func decodeQ3_K(dst []float32, b []byte) {
	high, q, packed, d := b[:32], b[32:96], b[96:108], half(b[108:])
	for run := range 16 {
		low := packed[run%8] >> (run / 8 * 4) & 15
		top := packed[8+run%4] >> (run / 4 * 2) & 3
		scale := d * float32(int(low|top<<4)-32)
		src, shift := runOf(q, run)
		for i, x := range src {
			v := int(x>>shift&3) - 4
			if high[run%2*16+i]>>(run/2)&1 == 1 {
				v += 4
			}
			dst[run*16+i] = scale * float32(v)
		}
	}
}

// runOf finds the 16 bytes and the shift of a run of 2-bit numbers.
func runOf(q []byte, run int) (src []byte, shift int) {
	at := run/8*32 + run%2*16
	return q[at : at+16], run % 8 / 2 * 2
}

// scaleAndMin unpacks the 6-bit pair of run j in the 12 bytes of Q4_K and Q5_K.
func scaleAndMin(s []byte, j int) (scale, least byte) {
	if j < 4 {
		return s[j] & 63, s[j+4] & 63
	}
	return s[j+4]&15 | s[j-4]>>6<<4, s[j+4]>>4 | s[j]>>6<<4
}

// decodeQ4_K: d, m, s[12], q[128]; 8 runs of 32 with 6-bit scale and minimum;
// x = d s q - m t. The two runs of a group share 32 bytes: low half, high half.
func decodeQ4_K(dst []float32, b []byte) {
	d, m, packed, q := half(b), half(b[2:]), b[4:16], b[16:144]
	for run := range 8 {
		s, t := scaleAndMin(packed, run)
		scale, least := d*float32(s), m*float32(t)
		shift := run % 2 * 4
		for i, x := range q[run/2*32 : run/2*32+32] {
			dst[run*32+i] = scale*float32(x>>shift&15) - least
		}
	}
}

// decodeQ5_K: d, m, s[12], h[32], q[128]; Q4_K with a fifth bit: bit i/32 of
// byte i%32 of h.
func decodeQ5_K(dst []float32, b []byte) {
	d, m, packed, high, q := half(b), half(b[2:]), b[4:16], b[16:48], b[48:176]
	for run := range 8 {
		s, t := scaleAndMin(packed, run)
		scale, least := d*float32(s), m*float32(t)
		shift := run % 2 * 4
		for i, x := range q[run/2*32 : run/2*32+32] {
			dst[run*32+i] = scale*float32(x>>shift&15|high[i]>>run<<4&16) - least
		}
	}
}

// decodeQ6_K: l[128], h[64], int8 s[16], d; 16 runs of 16; x = d s (q - 32).
// Of 128 elements, the low 4 bits of i, i+32 are in the low halves of bytes i,
// i+32 of l, those of i+64, i+96 in the high halves; the upper 2 bits are in
// byte i%32 of h.
func decodeQ6_K(dst []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], half(b[208:])
	for run := range 16 {
		scale := d * float32(int8(scales[run]))
		half, part, at := run/8, run%8/2, run%2*16
		l := low[half*64+part%2*32+at:]
		h := high[half*32+at:]
		for i := range 16 {
			q := l[i]>>(part/2*4)&15 | h[i]>>(part*2)&3<<4
			dst[run*16+i] = scale * float32(int(q)-32)
		}
	}
}

// decodeIQ4_XS: d, h of 16 bits, s[4], q[128]; 8 runs of 32 with 6-bit scales, four
// bits of s and two of h each; x = d (s - 32) level[q], levels and order those of
// IQ4_NL.
func decodeIQ4_XS(dst []float32, b []byte) {
	d, high, low, q := half(b), binary.LittleEndian.Uint16(b[2:]), b[4:8], b[8:136]
	for run := range 8 {
		s := int(low[run/2]>>(run%2*4)&15) | int(high>>(2*run)&3)<<4
		scale := d * float32(s-32)
		for i, x := range q[run*16 : run*16+16] {
			dst[run*32+i] = scale * iq4Values[x&15]
			dst[run*32+i+16] = scale * iq4Values[x>>4]
		}
	}
}
