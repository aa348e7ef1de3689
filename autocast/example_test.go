package autocast_test

import (
	"fmt"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

// A pass takes a graph before its gradient is taken, and tells what it did.
func ExampleFP8() {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 32, 256)
	mlp := b.Scope("mlp")
	h := ops.SwiGLU(ops.Linear(x, mlp.Param("gate_proj.weight", 512, 256)), ops.Linear(x, mlp.Param("up_proj.weight", 512, 256)))
	logits := ops.Linear(ops.Linear(h, mlp.Param("down_proj.weight", 256, 512)), b.Param("lm_head.weight", 128, 256))
	loss, _ := ops.CrossEntropy(logits, b.Input("labels", dtype.Int32, 32))
	b.Output("loss", loss)

	g, report, err := autocast.FP8(b, autocast.Options{
		Recipe: autocast.Delayed{History: 16},
		Filter: autocast.Filter{Exclude: []string{"*.down_proj.weight"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(report.Explain())
	_, err = g.Grad(g.Out("loss"), g.Params()...)
	fmt.Println(err)
	// Output:
	// fp8, delayed (history 16, max), hybrid: 2 of 4 linears, 61.5% of their work
	// weight                shape      decision   reason
	// mlp.gate_proj.weight  [512,256]  fp8        eligible
	// mlp.up_proj.weight    [512,256]  fp8        eligible
	// mlp.down_proj.weight  [256,512]  as it was  excluded by "*.down_proj.weight"
	// lm_head.weight        [128,256]  as it was  output head
	// <nil>
}
