//go:build unix && !darwin

package train

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fullDisk is set in the process that meets the limit.
const fullDisk = "SEAFAN_TEST_FULL_DISK"

// TestFullDiskKeepsTheOldCheckpoint lets the system refuse to write any file
// beyond 1,000 bytes from the checkpoint of step 6 on. It does so in a process
// of its own: the limit holds for the log of the test binary too.
func TestFullDiskKeepsTheOldCheckpoint(t *testing.T) {
	if os.Getenv(fullDisk) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), fullDisk+"=1")
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", said)
		require.Contains(t, string(said), "PASS")
		return
	}
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &limit))
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	o := testOptions(2, 8)
	o.EvalEvery = 0
	r := newRun(t, o, Random, Dir(t.TempDir()))
	r.model.fail = func() error {
		if r.Step() < 6 {
			return nil
		}
		return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1000, Max: limit.Max})
	}
	_, err := r.Run(context.Background())
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &limit))
	require.ErrorContains(t, err, "train: checkpoint of step 6: ")
	require.ErrorIs(t, err, unix.EFBIG)
	require.Equal(t, []int{0, 3}, stepsIn(t, r.dir))
	list, err := filepath.Glob(filepath.Join(r.dir, "*.tmp*"))
	require.NoError(t, err)
	require.Empty(t, list)

	straight := newRun(t, o, Random, Dir(t.TempDir()))
	again := newRun(t, o, Random, Dir(r.dir))
	require.NoError(t, again.Resume())
	for _, x := range []*run{straight, again} {
		_, err = x.Run(context.Background())
		require.NoError(t, err)
	}
	require.Equal(t, straight.outcome(t), again.outcome(t))
}
