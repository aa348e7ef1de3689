//go:build !gpu

package cuda

import (
	"context"

	"github.com/seafan/seafan/graph"
)

// Executor runs a plan on a device; this build has none.
type Executor struct{}

// Compile fails: there is no driver in this build.
func Compile(*graph.Plan, Options) (*Executor, error) { return nil, errNoTag }

// Do fails as Compile does.
func (*Executor) Do(context.Context, graph.Feeds) error { return errNoTag }

// Value fails as Compile does.
func (*Executor) Value(*graph.Node) (graph.Tensor, error) {
	return graph.Tensor{}, errNoTag
}

// Profile fails as Compile does.
func (*Executor) Profile(context.Context, graph.Feeds, int) (Profile, error) {
	return Profile{}, errNoTag
}

// Close has nothing to free.
func (*Executor) Close() error { return nil }

// Stats is empty.
func (*Executor) Stats() Stats { return Stats{} }

func (*Executor) String() string { return "cuda: " + noTag + "\n" }
