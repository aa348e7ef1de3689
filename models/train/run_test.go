package train

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
)

// text is a run on a text of 26 different bytes.
type run struct {
	*Trainer
	model *bigram
	data  *Windows
}

func newRun(t testing.TB, o Options, order Order, settings ...Setting) *run {
	t.Helper()
	var text []byte
	for i := range 600 {
		text = append(text, byte(i*i%26))
	}
	path := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(path, text, 0o666))
	tok, err := Open(OpenOptions{}, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	w, err := NewWindows(tok, 26, WindowOptions{Context: o.Context, Order: order, Validation: 0.1, Seed: o.Seed})
	require.NoError(t, err)
	m := newBigram(t, 26)
	tr, err := New(m, w, o, settings...)
	require.NoError(t, err)
	return &run{tr, m, w}
}

// outcome is all that two equal runs have in common.
type outcome struct {
	Weights map[string][]float32
	M, V    [][]float32
	State   state
	Lines   []Metric
}

func (r *run) outcome(t testing.TB) outcome {
	t.Helper()
	o := outcome{Weights: r.model.weights(), M: r.adam.m, V: r.adam.v, State: r.state}
	if r.dir != "" {
		o.Lines = lines(t, r.dir)
	}
	return o
}

// lines are the metrics without the times.
func lines(t testing.TB, dir string) []Metric {
	t.Helper()
	var ls []Metric
	require.NoError(t, readMetrics(filepath.Join(dir, metricsName), func(m Metric) error {
		m.TokensPerS, m.StepMS = 0, 0
		ls = append(ls, m)
		return nil
	}))
	return ls
}

func stepsIn(t testing.TB, dir string) []int {
	t.Helper()
	steps, err := listSteps(dir)
	require.NoError(t, err)
	return steps
}

func TestN03_ResumeInTheMiddleOfAnEpoch(t *testing.T) {
	for _, order := range []Order{Random, Epochs} {
		o := testOptions(2, 16) // 33 windows: an epoch is 16.5 steps
		o.Accumulate = 2
		straight := newRun(t, o, order, Dir(t.TempDir()))
		_, err := straight.Run(context.Background())
		require.NoError(t, err)

		dir := t.TempDir()
		ctx, stop := context.WithCancel(context.Background())
		part := newRun(t, o, order, Dir(dir), Each(func(m Metric) {
			if m.Step == 7 {
				stop()
			}
		}))
		_, err = part.Run(ctx)
		var in *Interrupted
		require.ErrorAs(t, err, &in)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 7, in.Step)
		require.EqualError(t, err, "train: interrupted after step 7, saved in "+filepath.Join(dir, "step-00000007")+": resume to go on")

		rest := newRun(t, o, order, Dir(dir))
		require.NoError(t, rest.Resume())
		require.Equal(t, 7, rest.Step())
		sum, err := rest.Run(context.Background())
		require.NoError(t, err)
		require.Equal(t, 20, sum.Steps)
		require.Equal(t, straight.outcome(t), rest.outcome(t))
		require.Len(t, lines(t, dir), 20)
	}
}

// TestResumeFromEveryCheckpoint resumes where a killed process would: the
// newest checkpoint is older than the metrics, and temporaries lie about.
func TestResumeAfterAKill(t *testing.T) {
	o := testOptions(3, 8)
	o.Keep = 100
	straight := newRun(t, o, Random, Dir(t.TempDir()))
	_, err := straight.Run(context.Background())
	require.NoError(t, err)
	steps := stepsIn(t, straight.dir)
	require.Equal(t, []int{0, 3, 5, 6, 9, 10, 12, 15, 18, 20}, steps, "every third, and those with a new best")
	for i, s := range steps {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(straight.dir)))
		for _, later := range steps[i+1:] {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, stepName(later))))
		}
		torn := filepath.Join(dir, stepName(s+1)+".tmp-00112233445566aa")
		require.NoError(t, os.Mkdir(torn, 0o777))
		write(t, filepath.Join(torn, "model.safetensors"), []byte("half"))
		f, err := os.OpenFile(filepath.Join(dir, metricsName), os.O_WRONLY|os.O_APPEND, 0)
		require.NoError(t, err)
		_, err = f.WriteString(`{"step":21,"lo`)
		require.NoError(t, errors.Join(err, f.Close()))

		rest := newRun(t, o, Random, Dir(dir))
		require.NoError(t, rest.Resume())
		require.Equal(t, s, rest.Step())
		require.NoDirExists(t, torn)
		_, err = rest.Run(context.Background())
		require.NoError(t, err)
		require.Equal(t, straight.outcome(t), rest.outcome(t), "from step %d", s)
		require.Equal(t, steps, stepsIn(t, dir))
	}
}

// stopping ends a context when a held-out row is asked for.
type stopping struct {
	Data
	at   int
	stop func()
}

func (s *stopping) HeldRow(i int, tokens, labels []int32) error {
	if s.at--; s.at == 0 {
		s.stop()
	}
	return s.Data.HeldRow(i, tokens, labels)
}

func TestInterruptedEvaluationIsDoneAgain(t *testing.T) {
	o := testOptions(2, 8)
	straight := newRun(t, o, Random, Dir(t.TempDir()))
	_, err := straight.Run(context.Background())
	require.NoError(t, err)
	dir := t.TempDir()
	ctx, stop := context.WithCancel(context.Background())
	part := newRun(t, o, Random, Dir(dir))
	part.Trainer.data = &stopping{part.data, 10, stop} // of 7 rows an evaluation: in the second
	_, err = part.Run(ctx)
	require.ErrorContains(t, err, "interrupted after step 10")
	require.Len(t, lines(t, dir), 9)
	rest := newRun(t, o, Random, Dir(dir))
	require.NoError(t, rest.Resume())
	_, err = rest.Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, straight.outcome(t), rest.outcome(t))
}

func TestN11_TwoRunsHaveTheSameBits(t *testing.T) {
	o := testOptions(2, 8)
	a, b := newRun(t, o, Random, Dir(t.TempDir())), newRun(t, o, Random, Dir(t.TempDir()))
	o.Seed = 1
	c := newRun(t, o, Random, Dir(t.TempDir()))
	for _, r := range []*run{a, b, c} {
		_, err := r.Run(context.Background())
		require.NoError(t, err)
	}
	require.Equal(t, a.outcome(t), b.outcome(t))
	require.NotEqual(t, a.outcome(t).Lines, c.outcome(t).Lines)
}

func TestKeepAndBest(t *testing.T) {
	o := testOptions(2, 8)
	o.Steps, o.LR, o.EvalEvery, o.SaveEvery, o.Keep, o.Schedule = 40, 3, 4, 4, 2, Constant // too fast: it soon gets worse
	r := newRun(t, o, Random, Dir(t.TempDir()))
	sum, err := r.Run(context.Background())
	require.NoError(t, err)
	require.Less(t, sum.BestStep, 30)
	require.Equal(t, []int{sum.BestStep, 36, 40}, stepsIn(t, r.dir))
	for name, step := range map[string]int{LastName: 40, BestName: sum.BestStep} {
		to, err := os.Readlink(filepath.Join(r.dir, name))
		require.NoError(t, err)
		require.Equal(t, stepName(step), to)
	}
	var best float64
	for _, l := range lines(t, r.dir) {
		if l.ValLoss != nil && (best == 0 || *l.ValLoss < best) {
			best = *l.ValLoss
		}
	}
	require.Equal(t, best, *sum.BestLoss)

	o.EarlyStop = 3
	early := newRun(t, o, Random, Dir(t.TempDir()))
	sum, err = early.Run(context.Background())
	require.NoError(t, err)
	require.True(t, sum.Early)
	require.Equal(t, sum.BestStep+12, sum.Steps)
	again := newRun(t, o, Random, Dir(early.dir))
	require.NoError(t, again.Resume())
	repeated, err := again.Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, sum.Steps, repeated.Steps, "a run that stopped early is over")
}

func TestNotFiniteStopsTheRun(t *testing.T) {
	o := testOptions(2, 8)
	dir := t.TempDir()
	var r *run
	r = newRun(t, o, Random, Dir(dir), Each(func(m Metric) {
		if m.Step == 7 {
			graph.Data[float32](r.model.params.Get("bias").Tensor())[0] = float32(math.NaN())
		}
	}))
	sum, err := r.Run(context.Background())
	good := filepath.Join(dir, "step-00000006")
	require.EqualError(t, err, "train: step 8: the loss is NaN, must be finite; the last good checkpoint is "+good)
	var nf *NotFinite
	require.ErrorAs(t, err, &nf)
	require.Equal(t, 7, sum.Steps)
	last, err := Latest(dir)
	require.NoError(t, err)
	require.Equal(t, good, last)
	again := newRun(t, o, Random, Dir(dir))
	require.NoError(t, again.Resume())
	_, err = again.Run(context.Background())
	require.NoError(t, err)
	straight := newRun(t, o, Random)
	_, err = straight.Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, straight.model.weights(), again.model.weights())
}

func TestFailedSaveKeepsTheOldCheckpoint(t *testing.T) {
	o := testOptions(2, 8)
	o.EvalEvery = 0
	r := newRun(t, o, Random, Dir(t.TempDir()))
	r.model.fail = func() error {
		if r.Step() == 6 {
			return errors.New("no space left on device")
		}
		return nil
	}
	_, err := r.Run(context.Background())
	require.ErrorContains(t, err, "train: checkpoint of step 6: ")
	require.ErrorContains(t, err, "no space left on device")
	require.Equal(t, []int{0, 3}, stepsIn(t, r.dir))
	list, err := filepath.Glob(filepath.Join(r.dir, "*.tmp*"))
	require.NoError(t, err)
	require.Empty(t, list)
	again := newRun(t, o, Random, Dir(r.dir))
	require.NoError(t, again.Resume())
	require.Equal(t, 3, again.Step())
}

func TestMetricsAndPlots(t *testing.T) {
	dir := t.TempDir()
	var bar bytes.Buffer
	r := newRun(t, testOptions(2, 8), Random, Dir(dir), Progress(&bar))
	_, err := r.Run(context.Background())
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(dir, metricsName))
	require.NoError(t, err)
	var line map[string]any
	rows := strings.Split(strings.TrimSpace(string(raw)), "\n")
	require.Len(t, rows, 20)
	require.NoError(t, json.Unmarshal([]byte(rows[4]), &line))
	for _, key := range []string{"step", "loss", "lr", "grad_norm", "tokens_per_s", "step_ms", "val_loss"} {
		require.Contains(t, line, key)
	}
	require.NotContains(t, rows[3], "val_loss")

	f, err := os.Open(filepath.Join(dir, "loss.csv"))
	require.NoError(t, err)
	defer f.Close()
	sc := bufio.NewScanner(f)
	require.True(t, sc.Scan())
	require.Equal(t, "step,loss,val_loss,lr,grad_norm", sc.Text())
	n := 0
	for sc.Scan() {
		n++
	}
	require.Equal(t, 20, n)
	img, err := os.Open(filepath.Join(dir, "loss.png"))
	require.NoError(t, err)
	defer img.Close()
	pic, err := png.Decode(img)
	require.NoError(t, err)
	require.Greater(t, pic.Bounds().Dx(), 400)
	require.Contains(t, bar.String(), "20/20")
	require.Contains(t, bar.String(), "tokens/s")
}

func TestNothingIsOverwritten(t *testing.T) {
	o := testOptions(2, 8)
	first := newRun(t, o, Random, Dir(t.TempDir()))
	_, err := first.Run(context.Background())
	require.NoError(t, err)
	before := first.outcome(t)
	second := newRun(t, o, Random, Dir(first.dir))
	_, err = second.Run(context.Background())
	require.EqualError(t, err, "train: "+first.dir+" holds a run of 20 steps: resume it, or choose another folder")
	require.Equal(t, before.Lines, lines(t, first.dir))

	file := write(t, filepath.Join(t.TempDir(), "file"), nil)
	_, err = newRun(t, o, Random, Dir(file)).Run(context.Background())
	require.ErrorContains(t, err, "train: the folder of the run must be writable: mkdir "+file)
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "absent")} {
		err = newRun(t, o, Random, Dir(dir)).Resume()
		require.ErrorIs(t, err, ErrNoCheckpoint)
	}
}

func TestResumeRefusesAnotherRun(t *testing.T) {
	o := testOptions(2, 8)
	first := newRun(t, o, Random, Dir(t.TempDir()))
	_, err := first.Run(context.Background())
	require.NoError(t, err)
	step := filepath.Join(first.dir, stepName(20))
	for want, change := range map[string]func(o *Options){
		"option batch must be 2 as in the run so far, got 3":                                        func(o *Options) { o.Batch = 3 },
		"option lr must be 0.05 as in the run so far, got 0.06":                                     func(o *Options) { o.LR = 0.06 },
		`option compute must be "` + string(first.Compute()) + `" as in the run so far, got "bf16"`: func(o *Options) { o.Compute = BF16 },
		`option schedule must be "cosine" as in the run so far, got "linear"`:                       func(o *Options) { o.Schedule = Linear },
		"option seed must be 0 as in the run so far, got 18446744073709551615":                      func(o *Options) { o.Seed = math.MaxUint64 },
	} {
		o := o
		change(&o)
		other := newRun(t, o, Random, Dir(first.dir))
		before := other.model.weights()
		require.EqualError(t, other.Resume(), "train: resume: "+step+": "+want)
		require.Equal(t, before, other.model.weights())
	}
	require.ErrorContains(t, newRun(t, o, Epochs, Dir(first.dir)).Resume(), "the data must be that of the run so far (digest ")
	more := o
	more.Steps, more.SaveEvery, more.Keep, more.EvalEvery, more.EarlyStop = 25, 1, 9, 7, 4
	longer := newRun(t, more, Random, Dir(first.dir))
	require.NoError(t, longer.Resume())
	sum, err := longer.Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, 25, sum.Steps)

	require.EqualError(t, newRun(t, o, Random, Dir(first.dir)).Resume(),
		"train: resume: "+filepath.Join(first.dir, stepName(25))+": option steps must be at least 25, the steps done so far, got 20")

	more.EarlyStop = 0 // there are no rows to evaluate
	small := newBigram(t, 25)
	tr, err := New(small, &rows{context: 8, digest: first.data.Digest(), tokens: [][]int32{make([]int32, 8)}, labels: [][]int32{make([]int32, 8)}}, more, Dir(first.dir))
	require.NoError(t, err)
	before := small.weights()
	require.ErrorContains(t, tr.Resume(), "is float32[26")
	require.ErrorContains(t, tr.Resume(), "in the checkpoint, float32[25")
	require.Equal(t, before, small.weights())
}

func TestCorruptCheckpointIsNamed(t *testing.T) {
	o := testOptions(2, 8)
	o.Steps = 3
	first := newRun(t, o, Random, Dir(t.TempDir()))
	_, err := first.Run(context.Background())
	require.NoError(t, err)
	replace := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte {
			require.Contains(t, string(b), old)
			return []byte(strings.Replace(string(b), old, new, 1))
		}
	}
	half := func(b []byte) []byte { return b[:len(b)/2] }
	none := func([]byte) []byte { return nil }
	for _, c := range []struct {
		file, want string
		change     func([]byte) []byte
	}{
		{trainerName, "unexpected EOF", half},
		{trainerName, "EOF", none},
		{trainerName, `unknown field "stap"`, replace(`"step"`, `"stap"`)},
		{trainerName, "must end after one object", func(b []byte) []byte { return append(b, '{') }},
		{trainerName, "format must be 1, got 7", replace(`"format": 1`, `"format": 7`)},
		{trainerName, `data must be a digest, got ""`, replace(`"data": "`+first.data.Digest(), `"data": "`)},
		{trainerName, "option beta2: must be in [0,1), got 9", replace(`"beta2": 0.95`, `"beta2": 9`)},
		{trainerName, "state.step must be 0 or more, got -3", replace(`"step": 3`, `"step": -3`)},
		{trainerName, "state.updates and state.skipped must be 0 or more and together step, 3, got 2 and 0", replace(`"updates": 3`, `"updates": 2`)},
		{trainerName, "state.tokens must be 0 or more, got -48", replace(`"tokens": 48`, `"tokens": -48`)},
		{trainerName, "state.best_step must be 0 to 3, got 4", replace(`"best_step": 3`, `"best_step": 4`)},
		{trainerName, "state.stale must be 0 or more, got -1", replace(`"stale": 0`, `"stale": -1`)},
		{weightsName, "safetensors", half},
		{weightsName, "safetensors", none},
		{optimizerName, "safetensors", half},
		{optimizerName, "must hold the tensor table.m float32[26,26], it does not", replace("table.m", "tabel.m")},
		{weightsName, "table is int32[26,26] in the checkpoint, float32[26,26] in the model", replace(`"F32","shape":[26,26]`, `"I32","shape":[26,26]`)},
	} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(first.dir)))
		path := filepath.Join(dir, stepName(3), c.file)
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, c.change(raw), 0o666))
		r := newRun(t, o, Random, Dir(dir))
		before := r.model.weights()
		err = r.Resume()
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, before, r.model.weights(), "nothing was read: %s", c.want)
	}
	// What is damaged has a checkpoint before it.
	for _, name := range []string{trainerName, weightsName, optimizerName} {
		dir := t.TempDir()
		require.NoError(t, os.CopyFS(dir, os.DirFS(first.dir)))
		newest := filepath.Join(dir, stepName(3))
		require.NoError(t, os.Truncate(filepath.Join(newest, name), 9))
		err := newRun(t, o, Random, Dir(dir)).Resume()
		require.ErrorContains(t, err, "; move "+newest+" away to go on from "+stepName(0))
		require.NoError(t, os.Rename(newest, filepath.Join(t.TempDir(), "damaged")))
		r := newRun(t, o, Random, Dir(dir))
		require.NoError(t, r.Resume())
		_, err = r.Run(context.Background())
		require.NoError(t, err)
		require.Equal(t, first.model.weights(), r.model.weights())
	}
	// A tensor too many.
	path := filepath.Join(first.dir, stepName(3), optimizerName)
	entries := append(first.adam.entries(), checkpoint.Values("extra", []float32{1}, 1))
	require.NoError(t, checkpoint.Save(path, func(yield func(checkpoint.Entry) bool) {
		for _, e := range entries {
			if !yield(e) {
				return
			}
		}
	}, checkpoint.SaveOptions{}))
	require.ErrorContains(t, newRun(t, o, Random, Dir(first.dir)).Resume(), "holds extra, which the model does not have")
}

func TestN09_MemoryIsFlatOver2000Steps(t *testing.T) {
	o := testOptions(2, 8)
	o.Steps, o.EvalEvery, o.SaveEvery = 2000, 100, 1000
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var at200, at2000 uint64
	var objects [2]uint64
	mallocs := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.Mallocs
	}
	r := newRun(t, o, Random, Dir(t.TempDir()), Each(func(m Metric) {
		switch m.Step {
		case 200:
			at200 = heap()
		case 301:
			objects[0] = mallocs()
		case 399:
			objects[1] = mallocs()
		case 2000:
			at2000 = heap()
		}
	}))
	_, err := r.Run(context.Background())
	require.NoError(t, err)
	t.Logf("heap after 200 steps %d, after 2000 %d; %.1f allocations a step", at200, at2000, float64(objects[1]-objects[0])/98)
	require.InEpsilon(t, float64(at200), float64(at2000), 0.05)
	require.Less(t, (objects[1]-objects[0])/98, uint64(30))
}

func TestRunWithoutDir(t *testing.T) {
	o := testOptions(2, 8)
	r := newRun(t, o, Random)
	ctx, stop := context.WithTimeout(context.Background(), time.Nanosecond)
	defer stop()
	<-ctx.Done()
	_, err := r.Run(ctx)
	require.EqualError(t, err, "train: interrupted after step 0: context deadline exceeded")
	sum, err := r.Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, 20, sum.Steps)
	require.Empty(t, sum.Checkpoint)
}
