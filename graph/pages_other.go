//go:build !linux

package graph

// adviseHugePages does nothing: only Linux has such a hint.
func adviseHugePages([]byte) {}
