//go:build !linux

package graph

// adviseHugePages does nothing: only Linux has such a hint.
func adviseHugePages([]byte) {}

// dropPages does nothing: other systems keep no such promise.
func dropPages([]byte) {}

// machineMemory is not known.
func machineMemory() int { return 0 }
