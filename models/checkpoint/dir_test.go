// Tests of WriteDir, one of which kills processes that write.

package checkpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fillWith writes a folder whose files must agree.
func fillWith(value int) func(tmp string) error {
	return func(tmp string) error {
		if err := os.Mkdir(filepath.Join(tmp, "state"), 0o777); err != nil {
			return err
		}
		if err := save(tmp, SaveOptions{MaxShardBytes: 16}, layers(6, float32(value))...); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(tmp, "state", "step"), []byte(strconv.Itoa(value)), 0o666)
	}
}

// requireFill checks that a folder is one of fillWith's and returns its value.
func requireFill(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "state", "step"))
	require.NoError(t, err)
	value, err := strconv.Atoi(string(text))
	require.NoError(t, err)
	requireLayers(t, dir, 6, float32(value))
	return value
}

func siblings(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	var out []string
	for _, f := range list {
		out = append(out, f.Name())
	}
	return out
}

func TestWriteDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs", "last")
	for i := range 3 {
		require.NoError(t, WriteDir(dir+string(filepath.Separator), fillWith(i)))
		require.Equal(t, i, requireFill(t, dir))
		require.Equal(t, []string{"last"}, siblings(t, dir))
	}
	bad := errors.New("out of ideas")
	err := WriteDir(dir, func(tmp string) error {
		require.NoError(t, fillWith(9)(tmp))
		return bad
	})
	require.ErrorIs(t, err, bad)
	require.ErrorContains(t, err, dir)
	require.Equal(t, 2, requireFill(t, dir))
	require.Equal(t, []string{"last"}, siblings(t, dir))
	require.Panics(t, func() { WriteDir(dir, func(string) error { panic("fill") }) })
	require.Equal(t, []string{"last"}, siblings(t, dir))

	file := put(t, filepath.Join(t.TempDir(), "file"), nil)
	require.ErrorContains(t, WriteDir(file, fillWith(1)), "it exists and is not a folder")
	require.ErrorContains(t, WriteDir("/", fillWith(1)), "a folder with a name is required")
	require.ErrorContains(t, WriteDir("..", fillWith(1)), "a folder with a name is required")
}

// TestReplaceByRename covers the systems without an exchange.
func TestReplaceByRename(t *testing.T) {
	root := t.TempDir()
	dir, tmp := filepath.Join(root, "d"), filepath.Join(root, "d.tmp-0123456789abcdef")
	require.NoError(t, WriteDir(dir, fillWith(1)))
	require.NoError(t, os.Mkdir(tmp, 0o777))
	require.NoError(t, fillWith(2)(tmp))
	require.NoError(t, replaceByRename(tmp, dir))
	require.Equal(t, 2, requireFill(t, dir))
	require.Equal(t, []string{"d"}, siblings(t, dir))
	require.Error(t, replaceByRename(tmp, dir)) // tmp is gone: the old one is put back
	require.Equal(t, 2, requireFill(t, dir))
}

func TestRecoverDir(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "d")
	make := func(name string, value int) {
		path := filepath.Join(root, name)
		require.NoError(t, os.Mkdir(path, 0o777))
		require.NoError(t, fillWith(value)(path))
	}
	// Killed between the two renames.
	make("d.tmp-old", 1)
	make("d.tmp-0123456789abcdef", 2)
	make("d.tmp-mine", 3)
	make("dd.tmp-0123456789abcdef", 4)
	make("d.tmp-x.tmp-0123456789abcdef", 5)
	kept := []string{"d", "d.tmp-mine", "d.tmp-x.tmp-0123456789abcdef", "dd.tmp-0123456789abcdef"}
	require.NoError(t, RecoverDir(dir))
	require.Equal(t, kept, siblings(t, dir))
	require.Equal(t, 1, requireFill(t, dir))
	// Killed before the old one was removed.
	make("d.tmp-old", 6)
	require.NoError(t, RecoverDir(dir))
	require.Equal(t, kept, siblings(t, dir))
	require.Equal(t, 1, requireFill(t, dir))
	require.NoError(t, RecoverDir(filepath.Join(root, "no", "such", "folder")))
}

const killedDir = "SEAFAN_TEST_WRITE_DIR"

// TestWriteDirKilled kills a process that writes one folder after another, at
// 20 moments; the folder is whole each time and never goes back.
func TestWriteDirKilled(t *testing.T) {
	if dir := os.Getenv(killedDir); dir != "" {
		for i := requireFill(t, dir); ; i++ {
			require.NoError(t, WriteDir(dir, fillWith(i+1)))
		}
	}
	dir := filepath.Join(t.TempDir(), "last")
	require.NoError(t, WriteDir(dir, fillWith(0)))
	last, killedInside := 0, 0
	for i := range 20 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWriteDirKilled$")
		cmd.Env = append(os.Environ(), killedDir+"="+dir)
		require.NoError(t, cmd.Start())
		time.Sleep(time.Duration(30+7*i) * time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		if len(siblings(t, dir)) > 1 {
			killedInside++
		}
		require.NoError(t, RecoverDir(dir))
		require.Equal(t, []string{"last"}, siblings(t, dir))
		value := requireFill(t, dir)
		require.GreaterOrEqual(t, value, last)
		last = value
	}
	require.Positive(t, last, "no process got as far as writing")
	t.Logf("%d folders written, %d of 20 processes killed inside a write", last, killedInside)
	require.False(t, strings.Contains(strings.Join(siblings(t, dir), " "), "tmp"))
}
