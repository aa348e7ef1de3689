package native

import (
	"math"
	"slices"
)

// This file draws from the tokens that top-k, top-p and min-p leave, likeliest
// first: it looks for the borders in bins of the logit and sorts only the bins
// that hold one.

const drawBins = 2048

// candidate is a token with its logit and its weight.
type candidate struct {
	id   int32
	z, w float64
}

var scratchCandidates scratch[candidate]

// drawInOrder draws one of the tokens of logits z, the largest top, whose weights w
// are above 0.
func drawInOrder[T Float](d Draw, z []T, w []float64, top float64) int32 {
	least := top
	for id, x := range w {
		if x > 0 && float64(z[id]) < least {
			least = float64(z[id])
		}
	}
	scale := 0.0
	if least < top {
		scale = min(drawBins/(top-least), math.MaxFloat64)
	}
	bin := func(id int) int { return min(drawBins-1, int((top-float64(z[id]))*scale)) }
	var (
		count  [drawBins]int32
		mass   [drawBins]float64
		last   = drawBins - 1 // with what is left
		border []candidate    // what is left of it, where it is cut
		cut    bool
	)
	for id, x := range w {
		if x > 0 {
			b := bin(id)
			count[b]++
			mass[b] += x
		}
	}
	list := scratchCandidates.take(len(z))
	defer scratchCandidates.give(list)
	tokens := func(b int) []candidate { // the list is free again when b is the last bin used
		if cut && b == last {
			return border
		}
		c := list[:0]
		for id, x := range w {
			if x > 0 && bin(id) == b {
				c = append(c, candidate{int32(id), float64(z[id]), x})
			}
		}
		slices.SortFunc(c, func(a, b candidate) int {
			switch {
			case a.z > b.z:
				return -1
			case a.z < b.z:
				return 1
			}
			return int(a.id) - int(b.id)
		})
		return c
	}
	keep := func(b int, c []candidate) {
		last, border, cut, mass[b] = b, c, true, 0
		for _, x := range c {
			mass[b] += x.w
		}
	}
	for b, left := 0, d.TopK; left > 0 && b < drawBins; b++ {
		if left <= count[b] {
			keep(b, tokens(b)[:left])
		}
		left -= count[b]
	}
	if d.cutsP() {
		least, sum := float64(d.TopP)*sumOf(mass[:last+1]), 0.0
		for b := 0; b <= last; b++ {
			if sum+mass[b] < least {
				sum += mass[b]
				continue
			}
			c := tokens(b)
			for i, x := range c {
				if sum += x.w; sum >= least {
					c = c[:i+1]
					break
				}
			}
			keep(b, c)
		}
	}
	if d.MinP > 0 {
		first := drawBins // with a token below
		for id, x := range w {
			if x > 0 && x < float64(d.MinP) {
				first = min(first, bin(id))
			}
		}
		if first <= last {
			c := tokens(first)
			if i := slices.IndexFunc(c, func(x candidate) bool { return x.w < float64(d.MinP) }); i >= 0 {
				c = c[:i]
			}
			keep(first, c)
		}
	}
	for mass[last] == 0 {
		last, cut = last-1, false
	}
	u := d.uniform() * sumOf(mass[:last+1])
	at := 0
	for ; at < last && u >= mass[at]; at++ {
		u -= mass[at]
	}
	c := tokens(at)
	for _, x := range c {
		if u -= x.w; u < 0 {
			return x.id
		}
	}
	return c[len(c)-1].id // where the sum rounds up to its end
}
