package main

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// main runs the op in a plan and prints what it does.
func main() {
	if err := show(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "customop:", err)
		os.Exit(1)
	}
}

func show(args []string) error {
	if len(args) > 0 && slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
		_, err := fmt.Println("customop runs an op that lives outside the module and prints its plan. It has no flags.")
		return err
	}
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: the example has no flags", args[0])
	}
	b := graph.New()
	y := SoftCap(b.Input("x", dtype.Float32, 5), 5)
	plan, err := b.Plan(y)
	if err != nil {
		return err
	}
	run, err := plan.Native()
	if err != nil {
		return err
	}
	x := []float32{-100, -1, 0, 1, 100}
	if err := run.Do(context.Background(), graph.Feeds{"x": x}); err != nil {
		return err
	}
	v, err := run.Value(y)
	if err != nil {
		return err
	}
	_, err = fmt.Print(plan, "x ", x, "\ny ", graph.Data[float32](v), "\n")
	return err
}
