package optest

// MSE returns the mean of (x - y)^2; 0 of none.
func MSE(x, y []float64) float64 {
	var sum, lost float64 // what rounding took from the sum is kept beside it
	for i := range x {
		part := (x[i]-y[i])*(x[i]-y[i])/float64(len(x)) - lost
		next := sum + part
		lost, sum = next-sum-part, next
	}
	return sum
}

// MSEGrad returns the gradients of x and y for dloss.
func MSEGrad(dloss float64, x, y []float64) (dx, dy []float64) {
	n := float64(len(x))
	for i := range x {
		dx = append(dx, dloss*(2*x[i]/n-2*y[i]/n))
		dy = append(dy, dloss*(2*y[i]/n-2*x[i]/n))
	}
	return dx, dy
}
