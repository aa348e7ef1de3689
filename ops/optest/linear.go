package optest

// Linear returns y[M,N] = x[M,K] w[N,K]^T + b[N]; b may be nil.
func Linear(x, w, b []float64, m, n, k int) []float64 {
	y := MatMul(x, w, m, n, k, false, true)
	for i := range y {
		if b != nil {
			y[i] += b[i%n]
		}
	}
	return y
}

// LinearGrad returns dx[M,K] = dy w, dw[N,K] = dy^T x and db[N], the column
// sums of dy[M,N].
func LinearGrad(dy, x, w []float64, m, n, k int) (dx, dw, db []float64) {
	ones := make([]float64, m)
	for i := range ones {
		ones[i] = 1
	}
	return MatMul(dy, w, m, k, n, false, false), MatMul(dy, x, n, k, m, true, false), MatMul(ones, dy, 1, n, m, false, false)
}

// MatMul returns c[M,N] = op(a) op(b) with op(a) [M,K] and op(b) [K,N]. With
// transA a is stored [K,M]; with transB b is stored [N,K].
func MatMul(a, b []float64, m, n, k int, transA, transB bool) []float64 {
	if transA {
		a = Transpose(a, k, m)
	}
	if !transB {
		b = Transpose(b, k, n)
	}
	c := make([]float64, m*n)
	for i := range m {
		for j := range n {
			column := b[j*k : (j+1)*k]
			sum := 0.0
			for l, v := range a[i*k : (i+1)*k] {
				sum += v * column[l]
			}
			c[i*n+j] = sum
		}
	}
	return c
}

// Transpose returns the matrix [rows, cols] as [cols, rows].
func Transpose[T any](x []T, rows, cols int) []T {
	y := make([]T, len(x))
	for i := range rows {
		for j := range cols {
			y[j*rows+i] = x[i*cols+j]
		}
	}
	return y
}
