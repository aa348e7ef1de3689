package optest

import (
	"fmt"
	"math"
)

// Precision is the unit roundoff of a stored number: half the distance from 1
// to the next larger number of the format.
type Precision float64

// The unit roundoffs of the formats that outputs are stored in: 2 to the minus
// number of significant bits, the implicit one included.
const (
	Float64  Precision = 0x1p-53
	Float32  Precision = 0x1p-24
	Float16  Precision = 0x1p-11
	BFloat16 Precision = 0x1p-8
	FP8E4M3  Precision = 0x1p-4
	FP8E5M2  Precision = 0x1p-3
)

// elementFactor is how far one element may lie beyond the rms bound. The
// largest of a million normal errors is about five of their rms.
const elementFactor = 8

// Diff says how far a result is from its oracle.
type Diff struct {
	RMS      float64 // rms(got - want) / rms(want); rms(got - want) where want is all 0
	MaxAbs   float64 // largest |got - want|
	MaxRel   float64 // largest |got - want| / |want| over want != 0
	NaN      int     // elements that are NaN in got or in want
	FirstBad int     // first element that is NaN or that is infinite on one side only, else -1
	Worst    int     // where MaxAbs is, -1 without elements
}

// Compare measures got against want. Equal infinities are equal (the lse of an
// empty row); an infinity against anything else makes the errors infinite, and
// a NaN on either side makes them NaN, so that no bound can be met.
// Slices of different lengths panic.
func Compare[G, W Float](got []G, want []W) Diff {
	if len(got) != len(want) {
		panic(fmt.Sprintf("optest: compare %d elements with %d", len(got), len(want)))
	}
	d := Diff{FirstBad: -1, Worst: -1}
	var errs, wants []float64
	for i := range got {
		g, w := float64(got[i]), float64(want[i])
		if g == w {
			if !math.IsInf(w, 0) {
				wants = append(wants, w)
			}
			if d.Worst < 0 {
				d.Worst = i
			}
			continue
		}
		e := math.Abs(g - w)
		if math.IsNaN(g) || math.IsNaN(w) {
			d.NaN++
		} else {
			errs = append(errs, e)
			if !math.IsInf(w, 0) {
				wants = append(wants, w)
			}
		}
		if d.FirstBad < 0 && (math.IsNaN(e) || math.IsInf(e, 0)) {
			d.FirstBad = i
		}
		if d.Worst < 0 || e > d.MaxAbs {
			d.MaxAbs, d.Worst = e, i
		}
		if w != 0 && !math.IsNaN(e) {
			d.MaxRel = max(d.MaxRel, e/math.Abs(w))
		}
	}
	n := float64(max(len(got), 1))
	d.RMS = norm(errs) / math.Sqrt(n)
	if size := norm(wants) / math.Sqrt(n); size > 0 {
		d.RMS /= size
	}
	if d.NaN > 0 {
		d.RMS, d.MaxAbs, d.MaxRel = math.NaN(), math.NaN(), math.NaN()
	}
	return d
}

// norm is the Euclidean length, scaled by the largest element so that neither
// 1e300 nor 1e-300 is lost in the squares.
func norm(x []float64) float64 {
	top := 0.0
	for _, v := range x {
		top = max(top, math.Abs(v))
	}
	if top == 0 || math.IsInf(top, 0) {
		return top
	}
	sum := 0.0
	for _, v := range x {
		sum += (v / top) * (v / top)
	}
	return top * math.Sqrt(sum)
}

// RequireClose fails the test unless got is want within
//
//	rms(got - want) <= c * unit * rms(want)
//	|got[i] - want[i]| <= 8 * c * unit * max(|want[i]|, rms(want))   for every i
//
// where unit is the unit roundoff of the stored output. NaN on either side is
// refused, and infinities must agree. shape, when given, turns the index of the
// worst element into coordinates. It returns what it measured, so that a test
// can log it beside its c.
func RequireClose[G, W Float](t TestingT, name string, got []G, want []W, unit Precision, c float64, shape ...int) Diff {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", name, len(got), len(want))
		t.FailNow()
		return Diff{}
	}
	d := Compare(got, want)
	if d.FirstBad >= 0 {
		i := d.FirstBad
		t.Errorf("%s: element %s is %v, want %v (%d elements are NaN on either side)",
			name, coordinate(i, shape), got[i], want[i], d.NaN)
		t.FailNow()
		return d
	}
	bound := c * float64(unit)
	if !(d.RMS <= bound) {
		t.Errorf("%s: rms error %.3g of the result's rms, bound %.3g (%g unit roundoffs, measured %.3g); worst element %s: got %v, want %v",
			name, d.RMS, bound, c, d.RMS/float64(unit), coordinate(d.Worst, shape), got[d.Worst], want[d.Worst])
		t.FailNow()
		return d
	}
	size := finiteRMS(want)
	for i := range got {
		g, w := float64(got[i]), float64(want[i])
		if g == w {
			continue
		}
		if limit := elementFactor * bound * max(math.Abs(w), size); !(math.Abs(g-w) <= limit) {
			t.Errorf("%s: element %s: got %v, want %v, off by %.3g, bound %.3g (rms error of all: %.3g unit roundoffs)",
				name, coordinate(i, shape), got[i], want[i], math.Abs(g-w), limit, d.RMS/float64(unit))
			t.FailNow()
			return d
		}
	}
	return d
}

func finiteRMS[W Float](want []W) float64 {
	var finite []float64
	for _, w := range want {
		if !math.IsInf(float64(w), 0) {
			finite = append(finite, float64(w))
		}
	}
	return norm(finite) / math.Sqrt(float64(max(len(want), 1)))
}

// coordinate writes index i of a tensor of the given shape as [a,b,c].
func coordinate(i int, shape []int) string {
	if len(shape) == 0 {
		return fmt.Sprintf("[%d]", i)
	}
	at := make([]int, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		at[d] = i % max(shape[d], 1)
		i /= max(shape[d], 1)
	}
	s := ""
	for d, v := range at {
		if d > 0 {
			s += ","
		}
		s += fmt.Sprint(v)
	}
	return "[" + s + "]"
}

// RequireEqual fails the test unless got and want hold the same values, element
// for element; NaN equals NaN, and 0 equals -0.
func RequireEqual[T Float](t TestingT, name string, got, want []T, shape ...int) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", name, len(got), len(want))
		t.FailNow()
		return
	}
	for i := range got {
		if got[i] != want[i] && (got[i] == got[i] || want[i] == want[i]) {
			t.Errorf("%s: element %s is %v, want exactly %v", name, coordinate(i, shape), got[i], want[i])
			t.FailNow()
			return
		}
	}
}
