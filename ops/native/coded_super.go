package native

import (
	"encoding/binary"
	"unsafe"
)

// This file is the codings with blocks of 256 numbers, whose runs of 16 or 32 have a
// step and perhaps a least number of their own: those of 4 to 6 bits a number that
// most GGUF files are in.

// superBlock is the numbers of such a block.
const superBlock = 256

// superRuns are the steps of the runs of a block, and what is taken off behind them:
// x = step q - least. 6-bit whole numbers times a binary16 are exact in float32, and so
// are their products with q.
type superRuns struct{ step, least [16]float32 }

// read takes the runs of a block: 8 of 32 numbers, or 16 of 16 in Q6_K.
func (r *superRuns) read(c Coding, x []byte) {
	if c == CodedQ6_K {
		d := fromF16(binary.LittleEndian.Uint16(x[208:]))
		for i, s := range x[192:208] {
			r.step[i] = d * float32(int8(s))
		}
		return
	}
	d, m := fromF16(binary.LittleEndian.Uint16(x)), fromF16(binary.LittleEndian.Uint16(x[2:]))
	p := x[4:16] // four bytes with 6 bits of a step, four of a least number; their top bits go with the last four
	for i := range 4 {
		r.step[i], r.least[i] = d*float32(p[i]&63), m*float32(p[4+i]&63)
		r.step[4+i], r.least[4+i] = d*float32(p[8+i]&15|p[i]>>6<<4), m*float32(p[8+i]>>4|p[4+i]>>6<<4)
	}
}

// superWiden widens a block.
func (c Coding) superWiden(y []float32, x []byte) {
	var r superRuns
	r.read(c, x)
	if inAssembly[float32]() {
		switch c {
		case CodedQ4_K:
			superQ4_K(&y[0], &x[16], &r)
		case CodedQ5_K:
			superQ5_K(&y[0], &x[16], &r)
		default:
			superQ6_K(&y[0], &x[0], &r)
		}
		return
	}
	for i := range y[:superBlock] {
		var q int
		run := i / 32
		switch c {
		case CodedQ4_K: // 64 numbers in 32 bytes: the low halves, then the high ones
			q = int(x[16+i/64*32+i%32] >> (i / 32 % 2 * 4) & 15)
		case CodedQ5_K: // and the fifth bits before them, a bit of each byte for a run
			q = int(x[48+i/64*32+i%32]>>(i/32%2*4)&15 | x[16+i%32]>>(i/32)&1<<4)
		case CodedQ6_K: // 128 numbers in 64 bytes and the 32 with the upper two bits
			half, part := i/128, i%128/32
			q = int(x[half*64+part%2*32+i%32]>>(part/2*4)&15|x[128+half*32+i%32]>>(part*2)&3<<4) - 32
			run = i / 16
		}
		y[i] = float32(r.step[run]*float32(q)) - r.least[run]
	}
}

// Block is how many numbers are coded together: rows must be a multiple of it.
func (c Coding) Block() int {
	switch {
	case c >= CodedQ4_K && c <= CodedQ6_K:
		return superBlock
	case c.Blocks():
		return codedBlock
	}
	return 1
}

// The offsets of superRuns that the assembly has.
var _ = [1]byte{}[unsafe.Offsetof(superRuns{}.least)-64]
