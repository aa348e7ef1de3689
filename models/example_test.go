// The package in use, as its documentation shows it.

package models_test

import (
	"context"
	"fmt"
	"log"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// A classifier on a model: a head of one's own on the features of the last token
// of each row. The model is usually one of Open with Widen.
func ExampleTransformer_Features() {
	const rows, length, classes = 2, 4, 3
	m, err := models.New(models.Config{
		Type: "llama", Vocab: 256, Hidden: 16, FFN: 32, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 8,
		Context: 64, NormEps: 1e-5, RopeTheta: 1e4,
	})
	if err != nil {
		log.Fatal(err)
	}
	b := graph.New(graph.Share(m.Params()))
	h := m.Features(b, b.Input("tokens", dtype.Int32, rows, length), models.Dropout{})
	last := ops.Embedding(b.Input("last", dtype.Int32, rows), ops.Reshape(h, rows*length, m.Config.Hidden)) // rows by number
	loss, _ := ops.CrossEntropy(ops.Linear(last, b.Param("score.weight", classes, m.Config.Hidden)), b.Input("labels", dtype.Int32, rows))
	if err := m.Init(0); err != nil { // the head too; what has a value keeps it
		log.Fatal(err)
	}
	grads, err := b.Grad(loss, b.Params()...)
	if err != nil {
		log.Fatal(err)
	}
	plan, err := b.Plan(append([]*graph.Node{loss}, grads...)...)
	if err != nil {
		log.Fatal(err)
	}
	run, err := plan.Native()
	if err != nil {
		log.Fatal(err)
	}
	feeds := graph.Feeds{
		"tokens": []int32{5, 6, 7, 0, 8, 9, 10, 11}, "last": []int32{2, 7}, // the first row has three tokens
		"labels": []int32{0, 2},
	}
	if err := run.Do(context.Background(), feeds); err != nil {
		log.Fatal(err)
	}
	value, err := run.Value(loss)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d gradients, loss %.1f\n", len(grads), graph.Data[float32](value)[0])
	// Output: 12 gradients, loss 1.1
}
