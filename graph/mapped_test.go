//go:build linux || darwin

// A weight that lies in a mapped file.

package graph_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
)

// TestAMappedWeightWhoseFileIsShortened gives an error, not the end of the
// process, and another graph of the same process runs on.
func TestAMappedWeightWhoseFileIsShortened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w")
	require.NoError(t, os.WriteFile(path, make([]byte, 4<<16), 0o666))
	f, err := os.Open(path)
	require.NoError(t, err)
	mem, err := syscall.Mmap(int(f.Fd()), 0, 4<<16, syscall.PROT_READ, syscall.MAP_SHARED)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	b := graph.New()
	w := b.Param("w", 1<<16)
	require.NoError(t, w.Param().Adopt(mem))
	require.Error(t, w.Param().Adopt(mem[:4]))
	plan, err := b.Plan(graph.Apply(scale{2}, w))
	require.NoError(t, err)
	run, err := plan.Native()
	require.NoError(t, err)
	require.NoError(t, run.Do(context.Background(), nil))
	require.NoError(t, os.Truncate(path, 0))
	require.ErrorContains(t, run.Do(context.Background(), nil), "cannot be read: was the file of a mapped weight shortened?")
	require.NoError(t, syscall.Munmap(mem))
}
