//go:build linux

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhatNoMemoryHoldsIsAnError: sizes that the machine cannot hold end the run
// before anything of that size is asked for.
func TestWhatNoMemoryHoldsIsAnError(t *testing.T) {
	text := textFile(t)
	for want, flags := range map[string][]string{
		"an arena of ": {"-batch", "5000000", "-context", "100"},
		"weights of ":  {"-dim", "262144", "-heads", "2048", "-layers", "16", "-context", "16"},
	} {
		_, _, err := call(t, append([]string{"-text", text, "-out", filepath.Join(t.TempDir(), "out"), "-steps", "1"}, flags...)...)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, " cannot be had: this machine has ")
	}
}
