package graph_test

import (
	"context"
	"testing"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// FuzzBuilder builds graphs from bytes: each byte pair picks an op and inputs.
// Whatever comes, nothing panics; a graph without error passes Verify, and its
// plan runs.
func FuzzBuilder(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 1, 1, 2, 0, 3, 2, 4, 1, 5, 3})
	f.Add([]byte{2, 0, 2, 1, 6, 0, 7, 0, 3, 3, 1, 2, 8, 1, 9, 9})
	f.Add([]byte{6, 1, 6, 1, 2, 2, 5, 0, 4, 4, 1, 1})
	f.Fuzz(func(t *testing.T, code []byte) {
		b := graph.New()
		nodes := []*graph.Node{b.Input("x", dtype.Float32, 2, 3), b.Param("w", 2, 3)}
		pick := func(i byte) *graph.Node { return nodes[int(i)%len(nodes)] }
		for i := 0; i+1 < len(code) && len(nodes) < 60; i += 2 {
			op, at := code[i], code[i+1]
			n := pick(at)
			switch op % 10 {
			case 0:
				n = graph.Apply(scale{float64(at)}, n)
			case 1:
				n = graph.Apply(graph.Add{}, n, pick(at/2))
			case 2:
				nodes = append(nodes, graph.ApplyAll("pair", pair{}, n)[:2]...)
				continue
			case 3:
				n = graph.Apply(graph.Reshape{Shape: []int{int(at % 7), 3}}, n)
			case 4:
				n = graph.Apply(total{}, n)
			case 5:
				n = graph.Apply(fill{[]int{2, 3}}, graph.Apply(total{}, n))
			case 6:
				n = b.Scope("s%d", at%3).Param("p", 2, int(at%4))
			case 7:
				n = b.Input(string(rune('a'+at%5)), dtype.Float32, 2, 3)
			case 8:
				n = graph.Apply(graph.Reshape{Shape: []int{6}}, n)
			case 9:
				n = graph.Apply(graph.Add{}, graph.Apply(graph.Reshape{Shape: []int{2, 3}}, n), pick(at+1))
			}
			nodes = append(nodes, n)
		}
		loss := graph.Apply(total{}, nodes[len(nodes)-1])
		if b.Err() != nil {
			if graph.Verify(b) == nil {
				t.Fatal("a graph with an error passes Verify")
			}
			return
		}
		outs := []*graph.Node{loss}
		if grads, err := b.Grad(loss, nodes[1]); err == nil {
			outs = append(outs, grads...)
		}
		if b.Err() != nil {
			return
		}
		if err := graph.Verify(b); err != nil {
			t.Fatal(err)
		}
		for _, p := range b.Store().All() {
			p.Touch()
		}
		plan, err := b.Plan(outs...)
		if err != nil {
			t.Fatal(err)
		}
		run, err := plan.Native(graph.Poison())
		if err != nil {
			t.Fatal(err)
		}
		feeds := graph.Feeds{}
		for _, in := range plan.Inputs() {
			feeds[in.Name()] = make([]float32, in.Type().Size())
		}
		if err := run.Do(context.Background(), feeds); err != nil {
			t.Fatal(err)
		}
		if again, err := graph.Rewrite(b, nil); err != nil || graph.Verify(again) != nil {
			t.Fatal(err)
		}
	})
}
