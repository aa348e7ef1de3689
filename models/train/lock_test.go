//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly || windows

package train

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOneRunAFolder(t *testing.T) {
	o := testOptions(2, 8)
	var first, second *run
	first = newRun(t, o, Random, Dir(t.TempDir()), Each(func(m Metric) {
		if m.Step == 10 {
			want := first.dir + ": must not be written to by another run: it is locked"
			require.EqualError(t, second.Resume(), "train: resume: "+want)
			_, err := second.Run(context.Background())
			require.EqualError(t, err, "train: "+want)
		}
	}))
	second = newRun(t, o, Random, Dir(first.dir))
	_, err := first.Run(context.Background())
	require.NoError(t, err)
	require.NoError(t, second.Resume())
}

// TestOneTrainerAtATimeInAFolder: those that are given one Folder are told apart
// too, a resumed one before it runs.
func TestOneTrainerAtATimeInAFolder(t *testing.T) {
	f, err := Claim(t.TempDir())
	require.NoError(t, err)
	defer f.Close()
	const refused = ": must not be written to by two trainers at once: another one has resumed in it, and has it until its Run ends"
	o := testOptions(2, 8)
	o.Steps = 3
	_, err = newRun(t, o, Random, In(f)).Run(context.Background())
	require.NoError(t, err)
	o.Steps = 6
	first, second := newRun(t, o, Random, In(f)), newRun(t, o, Random, In(f))
	require.NoError(t, first.Resume())
	require.NoError(t, first.Resume())
	before := stepsIn(t, f.path)
	require.EqualError(t, second.Resume(), "train: resume: "+f.path+refused)
	_, err = second.Run(context.Background())
	require.EqualError(t, err, "train: "+f.path+refused)
	require.Equal(t, before, stepsIn(t, f.path))
	require.Zero(t, second.Step())
	_, err = first.Run(context.Background())
	require.NoError(t, err)
	require.NoError(t, second.Resume())
	require.Equal(t, 6, second.Step())
}

// lockedHere is set, to a folder, in the process that holds it until it is killed.
const lockedHere = "SEAFAN_TEST_LOCKED_FOLDER"

// TestAKilledRunLeavesNoLock: a folder is another process's as long as that lives.
func TestAKilledRunLeavesNoLock(t *testing.T) {
	if dir := os.Getenv(lockedHere); dir != "" {
		_, err := Claim(dir)
		require.NoError(t, err)
		os.Stdout.WriteString("held\n")
		_, err = io.ReadAll(os.Stdin) // until the end of the other process, if that does not kill this one
		require.NoError(t, err)
		return
	}
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), lockedHere+"="+dir)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "held\n", line)
	_, err = Claim(dir)
	require.EqualError(t, err, dir+": must not be written to by another run: it is locked")
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	f, err := Claim(dir)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
