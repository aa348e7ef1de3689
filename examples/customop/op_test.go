package main

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/optest"
	"github.com/seafan/seafan/ops/optest/cases"
)

const limit = 5

// softCap is the definition in float64, and softCapSlope its gradient, written
// another way than the op's.
func softCap(in [][]float64) [][]float64 {
	y := make([]float64, len(in[0]))
	for i, x := range in[0] {
		y[i] = limit * math.Tanh(x/limit)
	}
	return [][]float64{y}
}

func softCapSlope(in, dy [][]float64) [][]float64 {
	dx := make([]float64, len(in[0]))
	for i, x := range in[0] {
		dx[i] = dy[0][i] / math.Pow(math.Cosh(x/limit), 2)
	}
	return [][]float64{dx}
}

var x = []float64{-30, -2, -0.5, 0, 0.25, 1, 7, 100}

// softCapCase goes through a graph, its gradient and a plan, as the cases of the
// module's ops do. C and CGrad bound the errors in unit roundoffs.
var softCapCase = cases.Case{
	Op: "soft_cap", Name: "within and beyond", In: []cases.Input{{Name: "x", Shape: []int{2, 4}, F: x}},
	Build:  func(in []*graph.Node) []*graph.Node { return []*graph.Node{SoftCap(in[0], limit)} },
	Oracle: func(in []cases.Input) [][]float64 { return softCap([][]float64{in[0].F}) },
	Grad: func(in []cases.Input, dy [][]float64) [][]float64 {
		return softCapSlope([][]float64{in[0].F}, dy)
	},
	C: 2, CGrad: 2,
}

// TestSoftCap holds the op to the definition, and the gradient of the definition
// to its differences.
func TestSoftCap(t *testing.T) {
	optest.CheckGradient(t, "soft_cap", softCap, softCapSlope, x)
	softCapCase.Forward(t, dtype.Float32, cases.Native)
	softCapCase.Gradient(t, dtype.Float32, cases.Native)
}

// recorder is a test that keeps what is said of it.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) }
func (r *recorder) FailNow()                          {}

// TestAWrongGradientIsFound: a gradient of half the size does not pass.
func TestAWrongGradientIsFound(t *testing.T) {
	c, r := softCapCase, &recorder{TB: t}
	c.Grad = func(in []cases.Input, dy [][]float64) [][]float64 {
		dx := softCapSlope([][]float64{in[0].F}, dy)
		for i := range dx[0] {
			dx[0][i] /= 2
		}
		return dx
	}
	c.Gradient(r, dtype.Float32, cases.Native)
	require.Contains(t, r.said, "rms error 1 ")
}

func TestSoftCapSaysWhatItTakes(t *testing.T) {
	b := graph.New()
	SoftCap(b.Input("x", dtype.Float32, 1, 8), -1)
	require.EqualError(t, b.Err(), "soft_cap: takes one float32 and a cap above 0, got [float32[1,8]] and -1")
	require.NoError(t, show([]string{"-h"}))
	require.EqualError(t, show([]string{"-cap"}), `unexpected argument "-cap": the example has no flags`)
}
