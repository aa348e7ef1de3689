//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSmolLM2ResidentMemory runs the program on the file that `make smollm2`
// fetches: packed weights stay in the file's memory, and the rest is small.
// Measured 1.27 times the file with 48 tokens (13 % of the file is the program
// itself, 2.4 MB the cache), the first token after 0.1 s.
func TestSmolLM2ResidentMemory(t *testing.T) {
	path := os.Getenv("SMOLLM2")
	if path == "" {
		found, err := filepath.Glob("../../build/smollm2/*.gguf")
		require.NoError(t, err)
		if len(found) == 0 {
			t.Skip("skipped: there is no build/smollm2/*.gguf (make smollm2 fetches it) and SMOLLM2 names no file")
		}
		path = found[0]
	}
	if testing.Short() {
		t.Skip("skipped: -short")
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "generate")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	run := func(n string) (time.Duration, int64) {
		cmd := exec.Command(program, "-model", path, "-prompt", "Once upon a time", "-n", n, "-temperature", "0")
		start := time.Now()
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return time.Since(start), cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
	}
	first, _ := run("1")
	for range 4 { // the best of some: other programs may be at work
		if again, _ := run("1"); again < first {
			first = again
		}
	}
	_, resident := run("48")
	t.Logf("resident %.1f MB, %.3f times the file; one token after %v", float64(resident)/1e6, float64(resident)/float64(info.Size()), first)
	require.Less(t, float64(resident), 1.3*float64(info.Size()))
	require.Less(t, first, 2*time.Second)
}
