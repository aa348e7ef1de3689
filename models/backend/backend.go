// Package backend chooses what computes a plan: native code or a CUDA device.
// The one idea: this is the only place that chooses. A program asks by name and
// gets that backend or an error; without a name the environment may wish, and
// else a device is used where there is one.
package backend

import (
	"fmt"
	"io"
	"os"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// Variable is the environment variable that names a backend softly: it is used
// when it can be had, with one warning when not.
const Variable = "SEAFAN_BACKEND"

// The names of backends.
const (
	Native = "native"
	CUDA   = "cuda"
)

// Options say what is asked for.
type Options struct {
	Name    string      // Native or CUDA: that one or an error; empty: see package
	Compute dtype.DType // of CUDA's activations; default BFloat16
	Strict  bool        // of CUDA: a node without a kernel is an error
	Random  bool        // of CUDA: weights without memory on the host are random, to measure speed
	Warn    io.Writer   // where the warning goes; nil: nowhere
}

// Backend is what was chosen.
type Backend struct {
	Name string // Native or CUDA
	Why  string // what decided, and on what device
	// Compile makes the executor of a plan.
	Compile func(*graph.Plan) (graph.Executor, error)
}

// Choose decides. An explicit name is strict.
func Choose(o Options) (Backend, error) {
	native := Backend{Name: Native, Compile: func(p *graph.Plan) (graph.Executor, error) { return p.Native() }}
	switch o.Name {
	case Native:
		native.Why = "asked for"
		return native, nil
	case CUDA:
		device, err := findDevice()
		if err != nil {
			return Backend{}, fmt.Errorf("backend cuda was asked for: %w", err)
		}
		return Backend{CUDA, "asked for, " + device, compiler(o)}, nil
	case "":
	default:
		return Backend{}, fmt.Errorf("backend must be %s or %s, got %q", Native, CUDA, o.Name)
	}
	wish := os.Getenv(Variable)
	if wish == Native {
		native.Why = Variable + "=" + Native
		return native, nil
	}
	device, err := findDevice()
	switch {
	case wish != "" && wish != CUDA:
		native.Why = fmt.Sprintf("%s=%q is not known (%s, %s)", Variable, wish, Native, CUDA)
	case err == nil:
		return Backend{CUDA, device, compiler(o)}, nil
	case wish == "":
		native.Why = err.Error()
		return native, nil
	default:
		native.Why = fmt.Sprintf("%s=%s cannot be met: %v", Variable, CUDA, err)
	}
	if o.Warn != nil {
		fmt.Fprintln(o.Warn, "warning:", native.Why+"; running natively")
	}
	return native, nil
}
