package ops

import "github.com/seafan/seafan/graph"

// Reshape shows the same elements under another shape, without a copy. The op
// itself is graph.Reshape: a view, which no executor runs.
func Reshape(x *graph.Node, shape ...int) *graph.Node {
	return graph.Apply(graph.Reshape{Shape: shape}, x)
}
