//go:build gpu

package backend

import (
	"errors"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/cuda"
)

func findDevice() (string, error) {
	list, reason := cuda.Devices()
	if len(list) == 0 {
		return "", errors.New(reason)
	}
	return list[0].String(), nil
}

func compiler(o Options) func(*graph.Plan) (graph.Executor, error) {
	return func(p *graph.Plan) (graph.Executor, error) {
		return cuda.Compile(p, cuda.Options{Compute: o.Compute, Strict: o.Strict, Random: o.Random})
	}
}
