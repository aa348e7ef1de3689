package native

import (
	"math"
	"unsafe"
)

// This file holds the 8-bit floats of the matrix products: largest magnitudes,
// quantisation and its inverse. The product is in fp8_matmul.go.
//
// A step is the size of one unit of the format: code = round(x / step), value =
// step decode(code). The quotient is one float32 division; rounding is to
// nearest, ties to even, and magnitudes beyond the largest finite value,
// infinity among them, become that value. NaN stays NaN.

// FP8 is an 8-bit float format.
type FP8 uint8

const (
	E4M3 FP8 = iota // 4 exponent and 3 mantissa bits, no infinity, largest value 448
	E5M2            // 5 exponent and 2 mantissa bits, largest finite value 57344
)

// Max is the largest finite value.
func (f FP8) Max() float32 {
	if f == E5M2 {
		return 57344
	}
	return 448
}

func (f FP8) String() string {
	if f == E5M2 {
		return "E5M2"
	}
	return "E4M3"
}

// fp8Format holds the constants of a format for the bit arithmetic of encoding.
// The offsets are known to fp8_avx512_amd64.s.
type fp8Format struct {
	max    float32 // 0: largest finite value
	minExp uint32  // 4: exponent field of the smallest normal
	drop   uint32  // 8: mantissa bits of a float32 that the format lacks
	magic  uint32  // 12: drop in the exponent field
	rebias uint32  // 16: code of the smallest normal's exponent, less one, as (minExp>>drop) gives it
}

var fp8Formats = [2]fp8Format{
	E4M3: {448, (127 - 6) << 23, 20, 20 << 23, (127 - 6) << 3},
	E5M2: {57344, (127 - 14) << 23, 21, 21 << 23, (127 - 14) << 2},
}

// encode computes the codes of x / step.
//
// With e the exponent of a quotient q, or that of the smallest normal if q is
// below it, adding 2^(e+drop) to |q| makes the last mantissa bit of the sum count
// one unit of the format at that exponent: the addition rounds, and the sum's low
// bits are the significand, implicit bit included.
func encode[T Float](f fp8Format, codes []byte, x []T, step float32) {
	codes = codes[:len(x)]
	top := math.Float32bits(f.max)
	for i, v := range x {
		u := math.Float32bits(float32(v) / step)
		a := u &^ (1 << 31)
		if a > 0xFF<<23 {
			codes[i] = f.nanCode(float32(v))
			continue
		}
		a = min(a, top) // the bits of magnitudes are ordered as they are
		e := max(a&(0xFF<<23), f.minExp)
		units := math.Float32bits(math.Float32frombits(a)+math.Float32frombits(e+f.magic)) - (e + f.magic)
		codes[i] = byte(u>>24&0x80 | (e>>(f.drop&31) - f.rebias + units))
	}
}

// nanCode encodes a NaN: it keeps its sign, and E5M2 the top of its payload.
func (f *fp8Format) nanCode(q float32) byte {
	u := math.Float32bits(q)
	c := byte(0x7F)
	if f.drop == 21 {
		if c = byte(0x7C | u>>21&3); c == 0x7C {
			c = 0x7E
		}
	}
	return byte(u>>24&0x80) | c
}

// fp8Values are the values of all codes of both formats.
var fp8Values = [2]*[256]float32{E4M3: fp8Table(4, 3), E5M2: fp8Table(5, 2)}

func fp8Table(exponent, mantissa int) *[256]float32 {
	var t [256]float32
	bias := 1<<(exponent-1) - 1
	for c := range 128 {
		e, m := c>>mantissa, float64(c&(1<<mantissa-1))/float64(int(1)<<mantissa)
		v := math.Ldexp(1+m, e-bias)
		switch {
		case e == 0:
			v = math.Ldexp(m, 1-bias)
		case exponent == 5 && c == 0x7C:
			v = math.Inf(1)
		case exponent == 5 && c > 0x7C, c == 0x7F: // a quiet NaN with the code's payload
			bits := 0x7FC00000 | uint32(c)<<(23-mantissa)&0x7FFFFF
			t[c], t[c|0x80] = math.Float32frombits(bits), math.Float32frombits(1<<31|bits)
			continue
		}
		t[c], t[c|0x80] = float32(v), float32(math.Copysign(v, -1))
	}
	return &t
}

// FP8Step is the step that brings amax to the largest finite value divided by
// 2^margin, amax/max * 2^margin: margin is headroom. It is a normal float32 for
// every finite amax above 0; ok is false, and step has no meaning, where amax is
// 0, infinite or NaN.
func FP8Step(amax float32, f FP8, margin int) (step float32, ok bool) {
	if !(amax > 0) || math.IsInf(float64(amax), 0) {
		return 0, false
	}
	s := math.Ldexp(float64(amax)/float64(f.Max()), margin)
	return float32(min(max(s, 0x1p-126), math.MaxFloat32)), true
}

// FP8Blocks says how a matrix [Rows, Cols] shares its steps: one for each block
// of BlockRows x BlockCols, the last ones cut off by the edge. The steps are
// [ceil(Rows/BlockRows), ceil(Cols/BlockCols)] in row-major order.
type FP8Blocks struct{ Rows, Cols, BlockRows, BlockCols int }

// FP8PerTensor is one step for all of a matrix.
func FP8PerTensor(rows, cols int) FP8Blocks {
	return FP8Blocks{rows, cols, max(rows, 1), max(cols, 1)}
}

// FP8PerRow is one step for each row.
func FP8PerRow(rows, cols int) FP8Blocks { return FP8Blocks{rows, cols, 1, max(cols, 1)} }

func (b FP8Blocks) down() int   { return ceilDiv(b.Rows, b.BlockRows) }
func (b FP8Blocks) across() int { return ceilDiv(b.Cols, b.BlockCols) }

// Steps is the number of steps.
func (b FP8Blocks) Steps() int { return b.down() * b.across() }

// strip is how many rows a unit of work takes: about fp8Unit elements, inside
// one row of blocks unless a block is one row.
func (b FP8Blocks) strip() int {
	n := max(fp8Unit/max(b.Cols, 1), 1)
	if b.BlockRows > 1 {
		n = min(n, b.BlockRows)
	}
	return n
}

// strips is how many strips a row of blocks has; blocks of one row have none of
// their own and are cut across.
func (b FP8Blocks) strips() (perBlock, all int) {
	if b.BlockRows == 1 {
		return 1, ceilDiv(b.Rows, b.strip())
	}
	perBlock = ceilDiv(min(b.BlockRows, max(b.Rows, 1)), b.strip())
	return perBlock, perBlock * b.down()
}

// span is the rows of strip i.
func (b FP8Blocks) span(i int) (lo, hi int) {
	if b.BlockRows == 1 {
		lo = i * b.strip()
		return lo, min(lo+b.strip(), b.Rows)
	}
	per, _ := b.strips()
	end := min((i/per+1)*b.BlockRows, b.Rows)
	lo = i/per*b.BlockRows + i%per*b.strip()
	return min(lo, end), min(lo+b.strip(), end)
}

const fp8Unit = 1 << 14

// FP8Amax computes the largest magnitude of the raw values of every block of
// x[Rows,Cols], in float32, and returns how many elements are NaN: they take no
// part. A block without numbers gets 0.
func FP8Amax[T Float](amax []float32, x []T, b FP8Blocks) (nan int) {
	clear(amax[:b.Steps()])
	if b.Rows*b.Cols == 0 {
		return 0
	}
	per, n := b.strips()
	across := b.across()
	width := across + 1
	if b.BlockRows == 1 {
		width = 1 // blocks of one row go where they belong
	}
	partial := scratch32.take(n * width) // for each strip its maxima, and behind them the count of NaN in bits
	pick[fp8AmaxArgs[T]](fp8Amax32, fp8Amax64).launch(n, fp8AmaxArgs[T]{amax, partial, x, b, width})
	for i := range n {
		p := partial[i*width:][:width]
		nan += int(math.Float32bits(p[width-1]))
		if b.BlockRows == 1 {
			continue
		}
		to := amax[i/per*across:][:across]
		for j := range to {
			to[j] = max(to[j], p[j])
		}
	}
	scratch32.give(partial)
	return nan
}

// FP8TensorAmax is FP8Amax of all of x as one block.
func FP8TensorAmax[T Float](x []T) (amax float32, nan int) {
	n := ceilDiv(len(x), fp8Unit)
	partial := scratch32.take(2 * n) // maxima and counts, as in FP8Amax
	pick[fp8AmaxArgs[T]](fp8FlatAmax32, fp8FlatAmax64).launch(n, fp8AmaxArgs[T]{partial: partial, x: x})
	for i := range n {
		amax = max(amax, partial[2*i])
		nan += int(math.Float32bits(partial[2*i+1]))
	}
	scratch32.give(partial)
	return amax, nan
}

var (
	fp8FlatAmax32 = newKernel(fp8FlatAmaxUnit[float32])
	fp8FlatAmax64 = newKernel(fp8FlatAmaxUnit[float64])
)

func fp8FlatAmaxUnit[T Float](a *fp8AmaxArgs[T], i int) {
	m, nan := amaxOf(a.x[i*fp8Unit : min((i+1)*fp8Unit, len(a.x))])
	a.partial[2*i], a.partial[2*i+1] = m, math.Float32frombits(uint32(nan))
}

// FP8TensorQuantize is FP8Quantize of all of x with one step, row-major. copies
// get the codes too.
func FP8TensorQuantize[T Float](codes []byte, x []T, step float32, f FP8, copies ...[]byte) {
	pick[fp8FlatArgs[T]](fp8Flat32, fp8Flat64).launch(ceilDiv(len(x), fp8Unit), fp8FlatArgs[T]{codes, copies, x, step, f})
}

type fp8FlatArgs[T Float] struct {
	codes  []byte
	copies [][]byte
	x      []T
	step   float32
	f      FP8
}

var (
	fp8Flat32 = newKernel(fp8FlatUnit[float32])
	fp8Flat64 = newKernel(fp8FlatUnit[float64])
)

func fp8FlatUnit[T Float](a *fp8FlatArgs[T], i int) {
	lo, hi := i*fp8Unit, min((i+1)*fp8Unit, len(a.x))
	fp8Encode(a.codes[lo:hi], a.x[lo:hi], a.step, a.f)
	for _, c := range a.copies {
		copy(c[lo:hi], a.codes[lo:hi])
	}
}

type fp8AmaxArgs[T Float] struct {
	amax, partial []float32
	x             []T
	b             FP8Blocks
	width         int
}

var (
	fp8Amax32 = newKernel(fp8AmaxUnit[float32])
	fp8Amax64 = newKernel(fp8AmaxUnit[float64])
)

func fp8AmaxUnit[T Float](a *fp8AmaxArgs[T], i int) {
	lo, hi := a.b.span(i)
	p := a.partial[i*a.width:][:a.width]
	clear(p)
	nan := 0
	across := a.b.across()
	if across == 1 && a.b.BlockRows > 1 {
		p[0], nan = amaxOf(a.x[lo*a.b.Cols : hi*a.b.Cols])
	} else {
		for r := lo; r < hi; r++ {
			to := p
			if a.b.BlockRows == 1 {
				to = a.amax[r*across:][:across]
			}
			for j := range across {
				row := a.x[r*a.b.Cols:][:a.b.Cols]
				m, k := amaxOf(row[j*a.b.BlockCols : min((j+1)*a.b.BlockCols, a.b.Cols)])
				to[j] = max(to[j], m)
				nan += k
			}
		}
	}
	p[a.width-1] = math.Float32frombits(uint32(nan))
}

// amaxOf returns the largest magnitude among the numbers of x and how many
// elements are not numbers.
func amaxOf[T Float](x []T) (m float32, nan int) {
	var top uint32 // of the bits, which are ordered as the magnitudes are
	if inAssembly[T]() && len(x) > 0 {
		var taken int
		top, nan, taken = fp8Amax(float32s(x))
		x = x[taken:]
	}
	for _, v := range x {
		a := math.Float32bits(float32(v)) &^ (1 << 31)
		if a > 0xFF<<23 {
			nan++
			continue
		}
		top = max(top, a)
	}
	return math.Float32frombits(top), nan
}

// FP8Quantize computes the codes of x[Rows,Cols] / step, row-major into codes
// and transposed, [Cols,Rows], into turned; either may be nil. steps are those
// of b, positive and finite.
func FP8Quantize[T Float](codes, turned []byte, x []T, steps []float32, b FP8Blocks, f FP8) {
	_, n := b.strips()
	if b.Rows*b.Cols == 0 {
		return
	}
	pick[fp8QuantizeArgs[T]](fp8Quantize32, fp8Quantize64).launch(n, fp8QuantizeArgs[T]{codes, turned, x, steps, b, f})
}

type fp8QuantizeArgs[T Float] struct {
	codes, turned []byte
	x             []T
	steps         []float32
	b             FP8Blocks
	f             FP8
}

var (
	fp8Quantize32 = newKernel(fp8QuantizeUnit[float32])
	fp8Quantize64 = newKernel(fp8QuantizeUnit[float64])
)

func fp8QuantizeUnit[T Float](a *fp8QuantizeArgs[T], i int) {
	lo, hi := a.b.span(i)
	if lo == hi {
		return
	}
	cols := a.b.Cols
	codes := a.codes
	if codes == nil {
		codes = scratch8.take((hi - lo) * cols)
		defer scratch8.give(codes)
	} else {
		codes = codes[lo*cols:]
	}
	a.b.segments(lo, hi, func(at, n, step int) {
		fp8Encode(codes[at-lo*cols:][:n], a.x[at:][:n], a.steps[step], a.f)
	})
	if a.turned == nil {
		return
	}
	const edge = 64 // the rows of a tile that stay in L1
	for j0 := 0; j0 < cols; j0 += edge {
		for r0 := lo; r0 < hi; r0 += edge {
			for j := j0; j < min(j0+edge, cols); j++ {
				to := a.turned[j*a.b.Rows:]
				for r := r0; r < min(r0+edge, hi); r++ {
					to[r] = codes[(r-lo)*cols+j]
				}
			}
		}
	}
}

// segments calls f for every run of consecutive elements of the rows lo..hi
// that have one step: where it starts, its length, and the step's index.
func (b FP8Blocks) segments(lo, hi int, f func(at, n, step int)) {
	across := b.across()
	if across == 1 && b.BlockRows >= hi-lo && lo/b.BlockRows == (hi-1)/b.BlockRows {
		f(lo*b.Cols, (hi-lo)*b.Cols, lo/b.BlockRows)
		return
	}
	for r := lo; r < hi; r++ {
		for j := range across {
			from := j * b.BlockCols
			f(r*b.Cols+from, min(b.BlockCols, b.Cols-from), r/b.BlockRows*across+j)
		}
	}
}

// fp8Encode computes the codes of x / step.
func fp8Encode[T Float](codes []byte, x []T, step float32, f FP8) {
	if len(x) == 0 {
		return
	}
	form := &fp8Formats[f]
	taken := 0
	if inAssembly[T]() {
		taken = fp8EncodeSome(codes[:len(x)], float32s(x), step, form)
	}
	encode(*form, codes[taken:], x[taken:], step)
}

// FP8Decode computes the values of codes, without steps. A NaN comes out quiet.
func FP8Decode[T Float](x []T, codes []byte, f FP8) {
	n := len(codes)
	pick[fp8DecodeArgs[T]](fp8Decode32, fp8Decode64).launch(ceilDiv(n, fp8Unit), fp8DecodeArgs[T]{x, codes, f})
}

type fp8DecodeArgs[T Float] struct {
	x     []T
	codes []byte
	f     FP8
}

var (
	fp8Decode32 = newKernel(fp8DecodeUnit[float32])
	fp8Decode64 = newKernel(fp8DecodeUnit[float64])
)

func fp8DecodeUnit[T Float](a *fp8DecodeArgs[T], i int) {
	lo, hi := i*fp8Unit, min((i+1)*fp8Unit, len(a.codes))
	fp8DecodeSlice(a.x[lo:hi], a.codes[lo:hi], a.f)
}

// fp8DecodeSlice computes the values of codes.
func fp8DecodeSlice[T Float](x []T, codes []byte, f FP8) { fp8DecodeTimes(x, codes, 1, f) }

// fp8DecodeTimes computes the values of codes times step.
func fp8DecodeTimes[T Float](x []T, codes []byte, step float32, f FP8) {
	if len(codes) == 0 {
		return
	}
	if inAssembly[T]() {
		taken := fp8DecodeSome(float32s(x[:len(codes)]), codes, step, f)
		x, codes = x[taken:], codes[taken:]
	}
	table := fp8Values[f]
	x = x[:len(codes)]
	for i, c := range codes {
		x[i] = T(table[c]) * T(step)
	}
}

// FP8Dequantize computes step * decode(code) for a matrix.
func FP8Dequantize[T Float](x []T, codes []byte, steps []float32, b FP8Blocks, f FP8) {
	if b.Rows*b.Cols == 0 {
		return
	}
	_, n := b.strips()
	pick[fp8DequantizeArgs[T]](fp8Dequantize32, fp8Dequantize64).launch(n, fp8DequantizeArgs[T]{x, codes, steps, b, f})
}

type fp8DequantizeArgs[T Float] struct {
	x     []T
	codes []byte
	steps []float32
	b     FP8Blocks
	f     FP8
}

var (
	fp8Dequantize32 = newKernel(fp8DequantizeUnit[float32])
	fp8Dequantize64 = newKernel(fp8DequantizeUnit[float64])
)

func fp8DequantizeUnit[T Float](a *fp8DequantizeArgs[T], i int) {
	lo, hi := a.b.span(i)
	if lo == hi {
		return
	}
	a.b.segments(lo, hi, func(at, n, step int) {
		fp8DecodeTimes(a.x[at:][:n], a.codes[at:][:n], a.steps[step], a.f)
	})
}

// float32s is x, whose elements are float32.
func float32s[T Float](x []T) []float32 { return unsafe.Slice(f32p(x), len(x)) }

// scratch8 holds buffers of codes.
var scratch8 scratch[byte]
