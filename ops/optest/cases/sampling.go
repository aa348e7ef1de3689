package cases

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

func init() { tables = append(tables, samplingCases, nllCases) }

// samplings are what the requests of a case ask for in turn.
var samplings = []optest.Sampling{
	{}, {Temperature: 1, Seed: 1}, {Temperature: 0.7, TopK: 5, Seed: 1 << 40}, {Temperature: 1, TopP: 0.9, Seed: 3}, {Temperature: 2, MinP: 0.05, Seed: 4},
	{Temperature: 1, TopK: 40, TopP: 0.5, MinP: 0.1, Seed: 5}, {Temperature: 1, Penalty: 1.5, Seed: 6}, {Temperature: 0, Penalty: 3}, {Temperature: 30, TopP: 0.99, Seed: 7}, {Temperature: 20, TopK: 1 << 30, Seed: 8},
}

func samplingCases() []Case {
	var cs []Case
	for _, s := range []struct{ rows, v int }{{1, 1}, {10, 63}, {20, 1000}, {10, 50257}} {
		words := (s.v + 31) / 32
		draws, seen := make([]int32, s.rows*8), optest.Ints(fmt.Sprint("seen", s), s.rows*words, 1<<31-1)
		for r := range s.rows {
			of(samplings[r%len(samplings)], r).Put(draws[r*8:])
		}
		in := []Input{Normal("logits", s.rows, s.v), {Name: "draws", Shape: []int{s.rows, 8}, I: draws}, {Name: "seen", Shape: []int{s.rows, words}, I: seen}}
		for i := range in[0].F {
			in[0].F[i] *= 3
		}
		for _, n := range []int{2, 3} {
			cs = append(cs, Case{Op: "sampling", Name: fmt.Sprint(s, " inputs ", n), In: in[:n], C: 0,
				Build: func(in []*graph.Node) []*graph.Node { return one(ops.Sampling(in[0], in[1], in[2:]...)) },
				Oracle: func(in []Input) [][]float64 {
					tokens := make([]float64, s.rows)
					for r := range tokens {
						o, set := samplings[r%len(samplings)], map[int]bool{}
						for id := range s.v {
							set[id] = n > 2 && seen[r*words+id/32]>>(id%32)&1 != 0
						}
						o.Number = uint32(r)
						for _, x := range []*float64{&o.Penalty, &o.Temperature, &o.TopP, &o.MinP} {
							*x = float64(float32(*x)) // as a Draw holds them
						}
						token, _ := o.Draw(in[0].F[r*s.v:][:s.v], set)
						tokens[r] = float64(token)
					}
					return [][]float64{tokens}
				}})
		}
	}
	sample := func(in []*graph.Node) []*graph.Node { return one(ops.Sampling(in[0], in[1], in[2:]...)) }
	return append(cs,
		Case{Op: "sampling", Name: "draws of another number of requests", In: []Input{Normal("logits", 2, 5), Ints("draws", 2, 3, 8)}, Build: sample,
			Err: "sampling: draws must be int32 [R,8] for logits [R,V], got logits float32[2,5], draws int32[3,8]"},
		Case{Op: "sampling", Name: "seen too short", In: []Input{Normal("logits", 2, 65), Ints("draws", 2, 2, 8), Ints("seen", 2, 2, 2)}, Build: sample,
			Err: "sampling: seen must be int32[2,3], a bit for each of logits float32[2,65], got int32[2,2]"})
}

// of is a Sampling as a body takes it.
func of(s optest.Sampling, number int) ops.Draw {
	d := ops.Draw{Penalty: 1, Temperature: float32(s.Temperature), TopK: int32(s.TopK), TopP: float32(s.TopP), MinP: float32(s.MinP), Number: int32(number), Seed: s.Seed}
	if s.Penalty != 0 {
		d.Penalty = float32(s.Penalty)
	}
	return d
}

func nllCases() []Case {
	var cs []Case
	for _, s := range []struct{ n, v int }{{1, 1}, {5, 63}, {65, 129}, {20, 1000}} {
		ids := Ints("ids", s.v, s.n)
		for i := 2; i < s.n; i += 5 {
			ids.I[i] = int32(-i)
		}
		cs = append(cs, Case{Op: "nll", Name: fmt.Sprint(s), In: []Input{Normal("logits", s.n, s.v), ids}, C: 3,
			Build:  func(in []*graph.Node) []*graph.Node { return one(ops.NLL(in[0], in[1])) },
			Oracle: func(in []Input) [][]float64 { return [][]float64{optest.NLL(in[0].F, in[1].I, s.v)} }})
	}
	return append(cs, Case{Op: "nll", Name: "ids", In: []Input{Normal("logits", 2, 3, 4), Ints("ids", 4, 3)},
		Build: func(in []*graph.Node) []*graph.Node { return one(ops.NLL(in[0], in[1])) },
		Err:   "nll: ids must be int32 [...] for logits [...,V], got logits float32[2,3,4], ids int32[3]"})
}
