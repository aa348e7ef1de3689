// Package optest is the truth that the ops are tested against: for every op
// its definition in float64, written as plain loops over plain slices, with
// its gradient, and the tools that compare a body with it.
//
// An oracle shares no code with the code under test and follows the formula,
// not an algorithm: a softmax materialises its row, a rotation is a complex
// product, a page table is first gathered into a contiguous cache. Each oracle
// is itself held to published numbers and to central differences by the tests
// of this package. Only tests import it.
//
// Oracles do not check shapes: a wrong size is a mistake in a test and ends in
// an index panic. Results are new slices, inputs are never written.
package optest

// TestingT is the part of *testing.T that the checks need.
type TestingT interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
}

// Float is the element type of the buffers that can be compared.
type Float interface{ ~float32 | ~float64 }

// Float64s widens x, exactly.
func Float64s[T Float](x []T) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// Cast converts x to T with one rounding to nearest even.
func Cast[T Float](x []float64) []T {
	y := make([]T, len(x))
	for i, v := range x {
		y[i] = T(v)
	}
	return y
}
