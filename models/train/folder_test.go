package train

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/checkpoint"
)

// tree are the paths below dir, with what stands in the files and links.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		var raw []byte
		switch {
		case d.IsDir():
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			require.NoError(t, err)
			raw = []byte("-> " + to)
		default:
			raw, err = os.ReadFile(path)
			require.NoError(t, err)
		}
		all[path] = string(raw)
		return nil
	}))
	return all
}

func TestNewRunRefusesAFolderWithItsNames(t *testing.T) {
	for _, name := range []string{"metrics.jsonl", "loss.csv", "loss.png", "last", "best", "step-00000000", "best/", "step-00000007/"} {
		dir := t.TempDir()
		path := filepath.Join(dir, filepath.FromSlash(name))
		if strings.HasSuffix(name, "/") {
			require.NoError(t, os.Mkdir(path, 0o777))
		} else {
			write(t, path, []byte("mine"))
		}
		before := tree(t, dir)
		r := newRun(t, testOptions(2, 8), Random, Dir(dir))
		_, err := r.Run(context.Background())
		if name == "step-00000007/" {
			require.EqualError(t, err, "train: "+dir+" holds a run of 7 steps: resume it, or choose another folder")
		} else {
			require.EqualError(t, err, "train: "+path+" is there, but no checkpoint of a run: a new run needs a folder without it")
		}
		require.Equal(t, before, tree(t, dir))
	}
	// Other files are none of its business, those named like temporaries too.
	dir := t.TempDir()
	for _, name := range []string{"notes", "loss.csv.tmp", "best.tmp", "last.tmp-mine"} {
		write(t, filepath.Join(dir, name), []byte("mine"))
	}
	before := tree(t, dir)
	o := testOptions(2, 8)
	o.Steps = 3
	sum, err := newRun(t, o, Random, Dir(dir)).Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, stepName(sum.BestStep)), sum.Best)
	after := tree(t, dir)
	for path, text := range before {
		require.Equal(t, text, after[path])
	}
}

// TestNoLinkOverAFolder: what took the place of a link after the run began
// stays, and no temporary is left.
func TestNoLinkOverAFolder(t *testing.T) {
	o := testOptions(2, 8)
	o.Steps = 3
	first := newRun(t, o, Random, Dir(t.TempDir()))
	_, err := first.Run(context.Background())
	require.NoError(t, err)
	best, last := filepath.Join(first.dir, BestName), filepath.Join(first.dir, LastName)
	require.NoError(t, errors.Join(os.Remove(best), os.Mkdir(best, 0o777), os.Remove(last)))
	write(t, last, []byte("mine"))
	stray := filepath.Join(first.dir, "loss.png.tmp-0123456789abcdef")
	write(t, stray, nil)
	o.Steps = 6
	again := newRun(t, o, Random, Dir(first.dir))
	require.NoError(t, again.Resume())
	_, err = again.Run(context.Background())
	require.NoError(t, err)
	raw, err := os.ReadFile(last)
	require.NoError(t, err)
	require.Equal(t, "mine", string(raw))
	require.NoFileExists(t, stray, "a killed run left it")
	left, err := filepath.Glob(filepath.Join(first.dir, "*.tmp*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestClaimedFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	f, err := Claim(dir)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoDirExists(t, dir, "nothing was written to it")
	f, err = Claim(dir)
	require.NoError(t, err)
	write(t, filepath.Join(dir, "mine"), nil)
	require.NoError(t, f.Fresh())
	o := testOptions(2, 8)
	o.Steps = 3
	_, err = newRun(t, o, Random, In(f)).Run(context.Background())
	require.NoError(t, err)
	require.NotNil(t, f.lock)
	require.NoError(t, newRun(t, o, Random, In(f)).Resume(), "it is held still")
	require.EqualError(t, f.Fresh(), dir+" holds a run of 3 steps: resume it, or choose another folder")

	// What In holds is not what Dir names: another run might be there.
	r := newRun(t, o, Random)
	for _, settings := range [][]Setting{{In(f), Dir("x")}, {Dir("x"), In(f)}} {
		_, err = New(r.model, r.data, o, settings...)
		require.ErrorContains(t, err, "train: Dir and In: a run must have one folder, got ")
	}
	late, err := New(r.model, r.data, o, In(f))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	const closed = " was closed: Claim holds it again"
	_, err = New(r.model, r.data, o, In(f))
	require.EqualError(t, err, "train: the folder "+dir+closed)
	require.EqualError(t, late.Resume(), "train: resume: the folder "+dir+closed)
	_, err = late.Run(context.Background())
	require.EqualError(t, err, "train: the folder "+dir+closed)
	require.EqualError(t, f.Fresh(), "the folder "+dir+closed)
	require.EqualError(t, f.Close(), "the folder "+dir+closed)
}

func TestDamagedMetricsAreNamed(t *testing.T) {
	o := testOptions(2, 8)
	o.Steps = 5
	first := newRun(t, o, Random, Dir(t.TempDir()))
	_, err := first.Run(context.Background())
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(first.dir, metricsName))
	require.NoError(t, err)
	rows := slices.Collect(strings.Lines(string(raw)))
	require.Len(t, rows, 5)
	o.Steps = 6
	for _, c := range []struct {
		line, want string
	}{
		{"garbage\n", "line 2: must be the metric of a step: invalid character"},
		{"\n", "line 2: must be the metric of a step: unexpected end"},
		{rows[1][:20] + "\n", "line 2: must be the metric of a step: unexpected end"},
		{rows[0], "line 2: must be of a step after 1, got 1"},
		{"{}\n", "line 2: must be of a step after 1, got 0"},
	} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(first.dir)))
		path := filepath.Join(dir, metricsName)
		require.NoError(t, os.WriteFile(path, []byte(rows[0]+c.line+strings.Join(rows[2:], "")), 0o666))
		before := tree(t, dir)
		r := newRun(t, o, Random, Dir(dir))
		weights := r.model.weights()
		require.ErrorContains(t, r.Resume(), "train: resume: "+path+": "+c.want)
		require.Equal(t, before, tree(t, dir))
		require.Equal(t, weights, r.model.weights())
	}
	// Behind the step of the checkpoint all goes, whatever it is.
	require.NoError(t, os.WriteFile(filepath.Join(first.dir, metricsName), []byte(string(raw)+"garbage\n"+`{"st`), 0o666))
	r := newRun(t, o, Random, Dir(first.dir))
	require.NoError(t, r.Resume())
	_, err = r.Run(context.Background())
	require.NoError(t, err)
	require.Len(t, lines(t, first.dir), 6)
}

func TestResumeRefusesDamageThatReads(t *testing.T) {
	o := testOptions(2, 8)
	o.Steps, o.Keep, o.EvalEvery = 6, 9, 0
	first := newRun(t, o, Random, Dir(t.TempDir()))
	_, err := first.Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, []int{0, 3, 6}, stepsIn(t, first.dir))
	save := func(path string, a *adamW) {
		require.NoError(t, checkpoint.Save(path, slices.Values(a.entries()), checkpoint.SaveOptions{}))
	}
	moment := func(of func(a *adamW) [][]float32, x float32) func(dir string) {
		return func(dir string) {
			at := of(first.adam)[0]
			was := at[1]
			at[1] = x
			save(filepath.Join(dir, optimizerName), first.adam)
			at[1] = was
		}
	}
	m, v := func(a *adamW) [][]float32 { return a.m }, func(a *adamW) [][]float32 { return a.v }
	name := first.adam.params[0].Name
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	swap := func(name string) func(dir string) {
		return func(dir string) {
			raw, err := os.ReadFile(filepath.Join(dir, "..", stepName(3), name))
			require.NoError(t, err)
			write(t, filepath.Join(dir, name), raw)
		}
	}
	for _, c := range []struct {
		file, want string
		change     func(dir string)
	}{
		{optimizerName, name + ".v must be finite and 0 or more, element 1 is -1", moment(v, -1)},
		{optimizerName, name + ".v must be finite and 0 or more, element 1 is NaN", moment(v, nan)},
		{optimizerName, name + ".v must be finite and 0 or more, element 1 is +Inf", moment(v, inf)},
		{optimizerName, name + ".m must be finite, element 1 is NaN", moment(m, nan)},
		{optimizerName, name + ".m must be finite, element 1 is +Inf", moment(m, inf)},
		{optimizerName, "must be as the checkpoint was saved, ", swap(optimizerName)},
		{weightsName, "must be as the checkpoint was saved, ", swap(weightsName)},
		{trainerName, "state.step must be that of the folder, got 3", swap(trainerName)},
		{weightsName, "must be as the checkpoint was saved, ", func(dir string) {
			path := filepath.Join(dir, weightsName)
			raw, err := os.ReadFile(path)
			require.NoError(t, err)
			raw[len(raw)-1] ^= 1
			write(t, path, raw)
		}},
	} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(first.dir)))
		step := filepath.Join(dir, stepName(6))
		c.change(step)
		before := tree(t, dir)
		r := newRun(t, o, Random, Dir(dir))
		weights := r.model.weights()
		err := r.Resume()
		require.ErrorContains(t, err, filepath.Join(step, c.file)+": ")
		require.ErrorContains(t, err, c.want)
		require.Equal(t, before, tree(t, dir))
		require.Equal(t, weights, r.model.weights())
		require.Zero(t, r.adam.m[0][0])
		require.Zero(t, r.Step())
	}
}

func TestSums(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "below"), 0o777))
	write(t, filepath.Join(dir, "below", "a"), []byte("123456789"))
	write(t, filepath.Join(dir, "empty"), nil)
	s, err := sumFiles(dir)
	require.NoError(t, err)
	// The check value of CRC-32C in the catalogue of parametrised CRCs.
	require.Equal(t, sums{"below/a": {9, "e3069283"}, "empty": {0, "00000000"}}, s)
	require.NoError(t, s.check(dir))
	require.NoError(t, sums(nil).check(dir))
	require.ErrorContains(t, sums{"../a": {}}.check(dir), `files must have paths inside the folder, got "../a"`)
	require.NoError(t, os.Remove(filepath.Join(dir, "empty")))
	require.ErrorContains(t, s.check(dir), "a file of the checkpoint must be readable: open "+filepath.Join(dir, "empty"))
}

// TestCurvesOfAnyLosses draws numbers for which a mark on an axis and the next one
// are the same float64, which the marks must not wait for.
func TestCurvesOfAnyLosses(t *testing.T) {
	for _, loss := range []string{"0", "1", "1e17", "1.7976931348623157e308", "-1e308", "5e-324"} {
		for _, step := range []string{"1", "9223372036854775807"} {
			dir := t.TempDir()
			line := `{"step":` + step + `,"loss":` + loss + `,"val_loss":` + loss + "}\n"
			write(t, filepath.Join(dir, metricsName), []byte(line+line))
			require.NoError(t, WriteLosses(dir))
			require.FileExists(t, filepath.Join(dir, curveName))
		}
	}
}
