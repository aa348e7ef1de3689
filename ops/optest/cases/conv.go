package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, shortConvCases) }

func shortConvCases() []Case {
	var cs []Case
	for _, s := range []struct {
		b, t, c, w int
		cu         []int32
		state      bool
	}{
		{b: 1, t: 1, c: 1, w: 2},
		{b: 3, t: 2, c: 5, w: 4, state: true}, // shorter than the filter
		{b: 2, t: 65, c: 33, w: 4},
		{b: 1, t: 300, c: 7, w: 3, state: true},
		{cu: []int32{0, 5, 5, 70, 71}, c: 17, w: 4, state: true},
		{cu: []int32{0, 0, 3}, c: 8, w: 4},
	} {
		name, lead, cu := fmt.Sprintf("B %d T %d C %d W %d state %v", s.b, s.t, s.c, s.w, s.state), []int{s.b, s.t}, s.cu
		if cu != nil {
			name, lead = fmt.Sprintf("packed %v C %d W %d state %v", cu, s.c, s.w, s.state), []int{int(cu[len(cu)-1])}
		} else {
			for i := range s.b + 1 {
				cu = append(cu, int32(i*s.t))
			}
		}
		in := []Input{Normal("x", append(lead, s.c)...), Normal("w", s.c, s.w)}
		if s.state {
			in = append(in, Normal("state", len(cu)-1, s.c, s.w-1))
		}
		if s.cu != nil {
			in = append(in, Input{Name: "cu_seqlens", Shape: []int{len(cu)}, I: cu})
		}
		state := func(in []Input) []float64 {
			if s.state {
				return in[2].F
			}
			return nil
		}
		cs = append(cs, Case{Op: "short_conv", Name: name, In: in,
			Build: func(in []*graph.Node) []*graph.Node {
				y, next := shortConv(in, s.state, s.cu != nil)
				return []*graph.Node{y, next}
			},
			Oracle: func(in []Input) [][]float64 {
				y, next := optest.ShortConv(in[0].F, in[1].F, state(in), cu, s.c, s.w)
				return [][]float64{y, next}
			},
			Grad: func(in []Input, d [][]float64) [][]float64 {
				dx, dw, ds := optest.ShortConvGrad(d[0], d[1], in[0].F, in[1].F, state(in), cu, s.c, s.w)
				all := [][]float64{dx, dw}
				if s.state {
					all = append(all, ds)
				}
				return append(all, nil)[:len(in)]
			},
			C: 4, CGrad: 8, // measured 2.0 and 3.5
		})
	}
	bad := func(name, err string, state, packed bool, in ...Input) Case {
		return Case{Op: "short_conv", Name: name, In: in, Err: "short_conv: " + err,
			Build: func(in []*graph.Node) []*graph.Node {
				y, _ := shortConv(in, state, packed)
				return one(y)
			}}
	}
	return append(cs,
		bad("channels", "w must be float32 [C,W] for x [...,C], got x [2,3,5], w float32[4,4]", false, false, Normal("x", 2, 3, 5), Normal("w", 4, 4)),
		bad("width 1", "the width must be 2 or more, got w [5,1]", false, false, Normal("x", 2, 3, 5), Normal("w", 5, 1)),
		bad("state", "state must be float32[2,5,3], got float32[2,5,4]", true, false, Normal("x", 2, 3, 5), Normal("w", 5, 4), Normal("state", 2, 5, 4)),
		bad("no batch", "the first input must have 3 dimensions, batch and tokens first, got [3,5]", false, false, Normal("x", 3, 5), Normal("w", 5, 4)),
		bad("packed with a batch", "packed tokens must have 2 dimensions, tokens first, and cu_seqlens be int32[N+1] with N of 1 or more, got [2,3,5] and int32[2]", false, true,
			Normal("x", 2, 3, 5), Normal("w", 5, 4), Ints("cu_seqlens", 3, 2)))
}

func shortConv(in []*graph.Node, state, packed bool) (y, next *graph.Node) {
	rest := in[2:]
	var s, cu *graph.Node
	if state {
		s, rest = rest[0], rest[1:]
	}
	if packed {
		cu = rest[0]
	}
	return ops.ShortConv(in[0], in[1], s, cu)
}
