package native

// This file is the linear layer and its gradients.

// Linear computes y[M,N] = x[M,K] w[N,K]^T + b[N]; b may be nil.
func Linear[T Float](y, x, w, b []T, m, n, k int) {
	beta, s, lds := biased(y, b, n)
	gemmAdd(false, true, m, n, k, 1, x, k, w, k, beta, s, lds, y, n)
}

// biased is what is added to the products of a linear: beta times rows s, lds
// apart. Without a bias it is none of y.
func biased[T Float](y, b []T, n int) (beta T, s []T, lds int) {
	if b == nil {
		return 0, y, n
	}
	return 1, b, 0
}

// LinearGradInput computes dx[M,K] = dy[M,N] w[N,K].
func LinearGradInput[T Float](dx, dy, w []T, m, n, k int) {
	Gemm(false, false, m, k, n, 1, dy, n, w, k, 0, dx, k)
}

// LinearGradWeight computes dw[N,K] = dy[M,N]^T x[M,K].
func LinearGradWeight[T Float](dw, dy, x []T, m, n, k int) {
	Gemm(true, false, n, k, m, 1, dy, n, x, k, 0, dw, k)
}

// LinearGradBias computes db[N], the column sums of dy[M,N], in float64 and in
// the order of the rows.
func LinearGradBias[T Float](db, dy []T, m, n int) { columnSums(db, dy, m, n) }

// columnSums computes y[N], the sums over the rows of x[M,N].
func columnSums[T Float](y, x []T, m, n int) {
	k := pick[columnArgs[T]](columnSums32, columnSums64)
	k.launch(ceilDiv(n, columnStrip), columnArgs[T]{y, x, m, n})
}

const columnStrip = 64

type columnArgs[T Float] struct {
	y, x []T
	m, n int
}

var (
	columnSums32 = newKernel(columnSumsUnit[float32])
	columnSums64 = newKernel(columnSumsUnit[float64])
)

func columnSumsUnit[T Float](a *columnArgs[T], i int) {
	j0 := i * columnStrip
	j1 := min(j0+columnStrip, a.n)
	var sums [columnStrip]float64
	for r := range a.m {
		s := sums[:j1-j0]
		for j, v := range a.x[r*a.n+j0:][:len(s)] {
			s[j] += float64(v)
		}
	}
	for j := j0; j < j1; j++ {
		a.y[j] = T(sums[j-j0])
	}
}
