package optest

// GlobalNorm is the Euclidean length of all gradients together.
func GlobalNorm(grads ...[]float64) float64 {
	var lengths []float64
	for _, g := range grads {
		lengths = append(lengths, norm(g))
	}
	return norm(lengths)
}

// ClipFactor is what gradients of a global norm are multiplied by so that it
// does not exceed limit: min(1, limit / (norm + 1e-6)).
func ClipFactor(norm, limit float64) float64 { return min(1, limit/(norm+1e-6)) }
