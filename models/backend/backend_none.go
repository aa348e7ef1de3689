//go:build !gpu

package backend

import (
	"errors"

	"github.com/seafan/seafan/graph"
)

func findDevice() (string, error) {
	return "", errors.New("this program was built without the tag gpu, so it looked for no CUDA driver")
}

func compiler(Options) func(*graph.Plan) (graph.Executor, error) { return nil }
