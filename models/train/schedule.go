// The learning rate by step.

package train

import "math"

// Schedule is how the learning rate goes down after the warm-up.
type Schedule string

const (
	Cosine   Schedule = "cosine"   // half a cosine from LR to MinLR*LR at the last step
	Linear   Schedule = "linear"   // a straight line between the same points
	Constant Schedule = "constant" // LR throughout
)

func (s Schedule) known() bool { return s == Cosine || s == Linear || s == Constant }

// Rate is the learning rate of step i, counted from 0. With W = Warmup and
// S = Steps it is
//
//	LR (i+1)/W                                   for i < W
//	LR (m + (1-m) (1 + cos(pi (i-W)/(S-W)))/2)   after that, m = MinLR
//
// for Cosine, and LR (1 - (1-m) (i-W)/(S-W)) for Linear. At and after step S it
// stays where it ends.
func (o Options) Rate(i int) float64 {
	if i < o.Warmup {
		return o.LR * float64(i+1) / float64(o.Warmup)
	}
	at := min(1, float64(i-o.Warmup)/float64(max(1, o.Steps-o.Warmup)))
	low := o.MinLR * o.LR
	switch o.Schedule {
	case Cosine:
		return low + 0.5*(o.LR-low)*(1+math.Cos(math.Pi*at))
	case Linear:
		return low + (o.LR-low)*(1-at)
	}
	return o.LR
}
