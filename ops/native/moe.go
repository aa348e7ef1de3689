// The experts of a mixture: choices sorted by expert, grouped matrix products,
// and the weighted sum back. No capacity, so no token is dropped.

package native

// SortByExpert lists the choices ids [T*TopK] by expert, in their order inside
// each: order[i] is the choice in row i, position its inverse, and the rows of
// expert e are offsets[e]..offsets[e+1], offsets [E+1].
func SortByExpert(order, position, offsets, ids []int32, experts int) {
	clear(offsets[:experts+1])
	for _, e := range ids {
		offsets[e+1]++
	}
	for e := range experts {
		offsets[e+1] += offsets[e]
	}
	for i, e := range ids { // offsets[e] runs from the start of e to its end
		order[offsets[e]] = int32(i)
		position[i] = offsets[e]
		offsets[e]++
	}
	copy(offsets[1:experts+1], offsets[:experts])
	offsets[0] = 0
}

// Grouped says how the rows of a grouped product fall to the experts: those of
// expert e are Offsets[e]..Offsets[e+1]. Rows [M] names the row of x that each
// row reads; nil: its own.
type Grouped struct {
	Offsets, Rows []int32
	N, K          int // w is [E,N,K]
}

func (g Grouped) experts() int { return len(g.Offsets) - 1 }

const (
	groupedRows    = 96  // rows of a unit
	groupedColumns = 128 // columns of a unit
	groupedPass    = 256 // gathered rows in one pass over a weight gradient
)

// blocks is how many blocks of groupedRows the rows make at most, and firstBlock
// where those of expert e begin: a block ends with its expert.
func (g Grouped) blocks() int { return g.firstBlock(g.experts()) }

func (g Grouped) firstBlock(e int) int { return int(g.Offsets[e])/groupedRows + e }

// block returns the expert and the rows of a block; there may be none.
func (g Grouped) block(b int) (e, from, to int) {
	lo, hi := 0, g.experts()
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if g.firstBlock(mid) <= b {
			lo = mid
		} else {
			hi = mid
		}
	}
	from = int(g.Offsets[lo]) + (b-g.firstBlock(lo))*groupedRows
	return lo, from, min(from+groupedRows, int(g.Offsets[lo+1]))
}

type groupedArgs[T Float] struct {
	Grouped
	y, x, w []T
	cols    int // blocks of columns
}

var (
	groupedLinear32 = newKernel(groupedLinearUnit[float32])
	groupedLinear64 = newKernel(groupedLinearUnit[float64])
	groupedInput32  = newKernel(groupedInputUnit[float32])
	groupedInput64  = newKernel(groupedInputUnit[float64])
	groupedWeight32 = newKernel(groupedWeightUnit[float32])
	groupedWeight64 = newKernel(groupedWeightUnit[float64])
)

// GroupedLinear computes y[rows of e] = x[rows of e] w[e]^T with y [M,N],
// x [M,K] (or rows g.Rows of a longer one) and w [E,N,K].
func GroupedLinear[T Float](y, x, w []T, g Grouped) {
	cols := ceilDiv(g.N, groupedColumns)
	pick[groupedArgs[T]](groupedLinear32, groupedLinear64).launch(g.blocks()*cols, groupedArgs[T]{Grouped: g, y: y, x: x, w: w, cols: cols})
}

func groupedLinearUnit[T Float](a *groupedArgs[T], i int) {
	e, from, to := a.block(i / a.cols)
	if from >= to {
		return
	}
	n0 := i % a.cols * groupedColumns
	n := min(groupedColumns, a.N-n0)
	x := a.x
	if a.Rows == nil {
		x = x[from*a.K:]
	} else {
		x = takeScratch[T](groupedRows * a.K)
		for r := from; r < to; r++ {
			copy(x[(r-from)*a.K:][:a.K], a.x[int(a.Rows[r])*a.K:])
		}
	}
	gemmSerial(false, true, to-from, n, a.K, 1, x, a.K, a.w[(e*a.N+n0)*a.K:], a.K, 0, a.y[from*a.N+n0:], a.N)
	if a.Rows != nil {
		giveScratch(x)
	}
}

// GroupedLinearGradInput computes dx[rows of e] = dy[rows of e] w[e], dx [M,K]:
// one row for each row of dy, also where several read the same row of x.
func GroupedLinearGradInput[T Float](dx, dy, w []T, g Grouped) {
	cols := ceilDiv(g.K, groupedColumns)
	pick[groupedArgs[T]](groupedInput32, groupedInput64).launch(g.blocks()*cols, groupedArgs[T]{Grouped: g, y: dy, x: dx, w: w, cols: cols})
}

func groupedInputUnit[T Float](a *groupedArgs[T], i int) {
	e, from, to := a.block(i / a.cols)
	if from >= to {
		return
	}
	k0 := i % a.cols * groupedColumns
	gemmSerial(false, false, to-from, min(groupedColumns, a.K-k0), a.N, 1, a.y[from*a.N:], a.N, a.w[e*a.N*a.K+k0:], a.K, 0, a.x[from*a.K+k0:], a.K)
}

// GroupedLinearGradWeight computes dw[e] = dy[rows of e]^T x[rows of e], dw
// [E,N,K]; an expert without rows gets zeros.
func GroupedLinearGradWeight[T Float](dw, dy, x []T, g Grouped) {
	cols := ceilDiv(g.K, groupedColumns)
	pick[groupedArgs[T]](groupedWeight32, groupedWeight64).launch(g.experts()*ceilDiv(g.N, groupedRows)*cols,
		groupedArgs[T]{Grouped: g, y: dy, x: x, w: dw, cols: cols})
}

func groupedWeightUnit[T Float](a *groupedArgs[T], i int) {
	k0 := i % a.cols * groupedColumns
	bands := ceilDiv(a.N, groupedRows)
	n0 := i / a.cols % bands * groupedRows
	e := i / a.cols / bands
	n, k := min(groupedRows, a.N-n0), min(groupedColumns, a.K-k0)
	from, to := int(a.Offsets[e]), int(a.Offsets[e+1])
	dw := a.w[(e*a.N+n0)*a.K+k0:]
	if from == to {
		for r := range n {
			clear(dw[r*a.K:][:k])
		}
		return
	}
	if a.Rows == nil {
		gemmSerial(true, false, n, k, to-from, 1, a.y[from*a.N+n0:], a.N, a.x[from*a.K+k0:], a.K, 0, dw, a.K)
		return
	}
	var keep T // 0 in the first pass, then 1
	x := takeScratch[T](groupedPass * k)
	for ; from < to; from += groupedPass {
		rows := min(groupedPass, to-from)
		for r := range rows {
			copy(x[r*k:][:k], a.x[int(a.Rows[from+r])*a.K+k0:])
		}
		gemmSerial(true, false, n, k, rows, 1, a.y[from*a.N+n0:], a.N, x, k, keep, dw, a.K)
		keep = 1
	}
	giveScratch(x)
}

type combineArgs[T Float] struct {
	y, rows, weights    []T
	dy, drows, dweights []T
	position            []int32
	tokens, topK, d     int
}

// combineRows is how many tokens one unit takes.
const combineRows = 16

var (
	combine32     = newKernel(combineUnit[float32])
	combine64     = newKernel(combineUnit[float64])
	combineGrad32 = newKernel(combineGradUnit[float32])
	combineGrad64 = newKernel(combineGradUnit[float64])
)

// CombineExperts computes y[t] = sum over the choices c of token t, in order,
// of weights[t,c] rows[position[t,c]]; y [T,D], rows [T*TopK,D]. weights nil: 1.
func CombineExperts[T Float](y, rows, weights []T, position []int32, tokens, topK, d int) {
	pick[combineArgs[T]](combine32, combine64).launch(ceilDiv(tokens, combineRows), combineArgs[T]{
		y: y, rows: rows, weights: weights, position: position, tokens: tokens, topK: topK, d: d})
}

func combineUnit[T Float](a *combineArgs[T], i int) {
	for t := i * combineRows; t < min((i+1)*combineRows, a.tokens); t++ {
		y := a.y[t*a.d:][:a.d]
		clear(y)
		for c := t * a.topK; c < (t+1)*a.topK; c++ {
			w := T(1)
			if a.weights != nil {
				w = a.weights[c]
			}
			addScaled(y, y, a.rows[int(a.position[c])*a.d:], w)
		}
	}
}

// CombineExpertsGrad computes drows[position[t,c]] = weights[t,c] dy[t] and
// dweights[t,c] = dy[t] . rows[position[t,c]].
func CombineExpertsGrad[T Float](drows, dweights, dy, rows, weights []T, position []int32, tokens, topK, d int) {
	pick[combineArgs[T]](combineGrad32, combineGrad64).launch(ceilDiv(tokens, combineRows), combineArgs[T]{
		drows: drows, dweights: dweights, dy: dy, rows: rows, weights: weights, position: position, tokens: tokens, topK: topK, d: d})
}

func combineGradUnit[T Float](a *combineArgs[T], i int) {
	for t := i * combineRows; t < min((i+1)*combineRows, a.tokens); t++ {
		dy := a.dy[t*a.d:][:a.d]
		for c := t * a.topK; c < (t+1)*a.topK; c++ {
			at := int(a.position[c]) * a.d
			a.dweights[c] = T(sumMul(dy, a.rows[at:][:a.d]))
			drow, w := a.drows[at:][:a.d], a.weights[c]
			for j, v := range dy {
				drow[j] = w * v
			}
		}
	}
}
