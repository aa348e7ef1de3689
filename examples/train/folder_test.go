package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/train"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(raw)
}

func TestNewRunKeepsTheFilesOfAFolder(t *testing.T) {
	text := textFile(t)
	for _, resume := range []bool{false, true} {
		for _, name := range []string{"metrics.jsonl", "loss.csv", "loss.png", "last", "best", "best/", "run.json"} {
			out := t.TempDir()
			path := filepath.Join(out, name)
			args := tiny(text, "-out", out, "-steps", "2")
			want := "-out: " + path + " is there, but no checkpoint of a run: a new run needs a folder without it"
			if name == "run.json" {
				want = "-out: " + path + " is there, but no checkpoint: add -resume if it is of a run that ended before its first, or choose another folder"
			}
			if resume {
				args = append(args, "-resume")
				if name == "run.json" {
					want = "-resume: " + path + ": invalid character 'm' looking for beginning of value"
				}
			}
			if strings.HasSuffix(name, "/") {
				put(t, filepath.Join(path, "inside"), "mine\n")
			} else {
				put(t, path, "mine\n")
			}
			_, _, err := call(t, args...)
			require.EqualError(t, err, want)
			list, err := os.ReadDir(out)
			require.NoError(t, err)
			require.Len(t, list, 1)
			if !list[0].IsDir() {
				require.Equal(t, "mine\n", read(t, path))
			}
		}
	}
}

// TestTwoNewRunsInOneFolder: the one that comes second writes nothing.
func TestTwoNewRunsInOneFolder(t *testing.T) {
	text, out := textFile(t), filepath.Join(t.TempDir(), "out")
	var runs [3]*exec.Cmd
	for i := range runs {
		runs[i] = exec.Command(program, tiny(text, "-out", out, "-steps", "3", "-seed", string(rune('1'+i)))...)
		require.NoError(t, runs[i].Start())
	}
	winner := ""
	for i, r := range runs {
		if r.Wait() == nil {
			require.Empty(t, winner)
			winner = string(rune('1' + i))
		}
	}
	require.NotEmpty(t, winner)
	require.Contains(t, read(t, filepath.Join(out, runName)), `"seed": `+winner)
	_, _, err := call(t, "-resume", "-out", out, "-steps", "4")
	require.NoError(t, err)

	if runtime.GOOS == "windows" {
		return // it has no lock
	}
	held := filepath.Join(t.TempDir(), "held")
	folder, err := train.Claim(held)
	require.NoError(t, err)
	for _, more := range []string{"-json", "-resume"} {
		_, _, err = call(t, tiny(text, "-out", held, more)...)
		require.EqualError(t, err, "-out: "+held+": must not be written to by another run: it is locked")
	}
	list, err := os.ReadDir(held)
	require.NoError(t, err)
	require.Empty(t, list)
	require.NoError(t, folder.Close())
}

func TestRunIsNotInsideItsData(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	put(t, filepath.Join(text, "a"), read(t, textFile(t)))
	link := filepath.Join(dir, "link")
	outs := []string{text, filepath.Join(text, "run"), filepath.Join(text, "deep", "er", "run"), filepath.Join(text, "..", "text", "run")}
	if os.Symlink(text, link) == nil {
		outs = append(outs, filepath.Join(link, "run"))
	}
	for _, out := range outs {
		_, _, err := call(t, tiny(text, "-out", out, "-steps", "2")...)
		require.EqualError(t, err, "-out: must not be inside the folder of -text, "+text+", whose files are the data, got "+filepath.Clean(out))
	}
	list, err := os.ReadDir(text)
	require.NoError(t, err)
	require.Len(t, list, 1)
	// Beside it, or in a hidden folder, which is no data, it goes on.
	for _, out := range []string{text + "run", filepath.Join(text, ".runs", "1")} {
		_, _, err = call(t, tiny(text, "-out", out, "-steps", "2")...)
		require.NoError(t, err)
		_, _, err = call(t, "-out", out, "-resume", "-steps", "3")
		require.NoError(t, err)
	}
}

func TestResumeNamesWhatIsWrong(t *testing.T) {
	text, out := textFile(t), filepath.Join(t.TempDir(), "out")
	_, _, err := call(t, tiny(text, "-out", out, "-steps", "3")...)
	require.NoError(t, err)
	path, step := filepath.Join(out, runName), filepath.Join(out, "step-00000003")
	settings := read(t, path)
	refused := func(want string, args ...string) {
		t.Helper()
		before := files(t, out)
		_, _, err := call(t, append([]string{"-out", out, "-resume"}, args...)...)
		require.ErrorContains(t, err, want)
		require.Equal(t, before, files(t, out))
	}
	refused("option steps must be at least 3, the steps done so far, got 1", "-steps", "1")
	refused(`-fp8: must be "" as in the run so far, got dynamic (leave it out with -resume)`, "-fp8", "dynamic")
	require.Equal(t, settings, read(t, path))

	stdout, _, err := call(t, "-out", out, "-resume")
	require.NoError(t, err)
	require.Contains(t, stdout, "3 steps, 96 tokens, nothing was left to do\n")
	require.Contains(t, stdout, "model in "+filepath.Join(out, "best")+"\n")

	put(t, path, "null\n")
	refused("-resume: " + path + ": must be an object, got null")
	require.NoError(t, os.Remove(path))
	refused("-resume: "+path+" is missing, the settings of the run with checkpoint step-00000003: put it back, or give them with -config", "-text", text)
	config := filepath.Join(t.TempDir(), "kept.json")
	put(t, config, settings)
	_, _, err = call(t, "-out", out, "-resume", "-config", config)
	require.NoError(t, err)
	require.Equal(t, settings, read(t, path))

	metrics := filepath.Join(out, "metrics.jsonl")
	whole := read(t, metrics)
	put(t, metrics, "{\"step\":1,\n"+whole)
	_, _, err = call(t, "-out", out, "-resume", "-steps", "4")
	require.ErrorContains(t, err, metrics+": line 1: must be the metric of a step")
	require.Equal(t, "{\"step\":1,\n"+whole, read(t, metrics))
	put(t, metrics, whole)

	model := filepath.Join(step, "config.json")
	kept := read(t, model)
	put(t, model, strings.Replace(kept, "8", "9", 1))
	refused(model + ": must be as the checkpoint was saved, ")
	require.NoError(t, os.Remove(model))
	_, _, err = call(t, "-out", out, "-resume")
	require.ErrorContains(t, err, "a file of the checkpoint must be readable: open "+model)
	put(t, model, kept)

	// A folder in the place of a link is not what the summary names.
	best := filepath.Join(out, "best")
	require.NoError(t, os.Remove(best))
	require.NoError(t, os.Mkdir(best, 0o777))
	stdout, _, err = call(t, "-out", out, "-resume")
	require.NoError(t, err)
	require.Contains(t, stdout, "model in "+step+"\n")
	require.Equal(t, settings, read(t, path))
}
