package optest

// Embedding returns y[t] = table[ids[t]], [T, D], table [V, D].
func Embedding(table []float64, ids []int32, d int) []float64 {
	y := make([]float64, 0, len(ids)*d)
	for _, id := range ids {
		y = append(y, table[int(id)*d:(int(id)+1)*d]...)
	}
	return y
}

// EmbeddingGrad returns the gradient of the table [V, D]: for each of its rows
// the sum of dy [T, D] over the tokens that read it.
func EmbeddingGrad(dy []float64, ids []int32, v, d int) []float64 {
	dw := make([]float64, v*d)
	for row := range v {
		for t, id := range ids {
			if int(id) != row {
				continue
			}
			for j := range d {
				dw[row*d+j] += dy[t*d+j]
			}
		}
	}
	return dw
}
