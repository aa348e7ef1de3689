package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
)

// TestMain builds the program for the tests that run it as a process.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "train")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "train.exe")
	text, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	if err != nil {
		panic(string(text))
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

var program string

func textFile(t *testing.T) string {
	t.Helper()
	var text []byte
	for i := range 2000 {
		text = append(text, "a fan of the sea is a sea fan.\n"[(i*i/5)%31])
	}
	path := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(path, text, 0o666))
	return path
}

// tiny are the flags of a run that takes about a second, most of it in saves.
func tiny(text string, more ...string) []string {
	return append(strings.Fields("-layers 1 -dim 8 -heads 2 -kv-heads 1 -ffn 12 -context 16 -batch 2 -warmup 5 -steps 40 -eval-every 7 -save-every 1 -json -text "+text), more...)
}

// TestFP8RunsResume: the recipe is that of the run, and cannot be changed.
func TestFP8RunsResume(t *testing.T) {
	text := textFile(t)
	args := func(steps, out string, more ...string) []string {
		return append(strings.Fields("-layers 1 -dim 128 -heads 2 -ffn 160 -context 16 -batch 2 -warmup 9 -eval-every 3 -json -steps "+steps+" -out "+out), more...)
	}
	whole, half := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "run")
	do := func(args ...string) error { return run(context.Background(), args, io.Discard, os.Stderr) }
	require.NoError(t, do(args("8", whole, "-fp8", "delayed", "-text", text)...))
	require.NoError(t, do(args("4", half, "-fp8", "delayed", "-text", text)...))
	require.EqualError(t, do("-out", half, "-resume", "-fp8", "dynamic"), "-fp8: must be delayed as in the run so far, got dynamic (leave it out with -resume)")
	require.NoError(t, do("-out", half, "-resume", "-steps", "8", "-json"))
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", "fp8.json"} {
		want, err := os.ReadFile(filepath.Join(whole, "last", name))
		require.NoError(t, err)
		got, err := os.ReadFile(filepath.Join(half, "last", name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), name)
	}
	require.EqualError(t, do(args("8", whole+"2", "-fp8", "int8", "-text", text)...), `-fp8: must be dynamic or delayed, got "int8"`)
}

// files are the bytes of the newest checkpoint, and the metrics without times.
func files(t *testing.T, out string) map[string]string {
	t.Helper()
	dir, err := train.Latest(out)
	require.NoError(t, err)
	all := map[string]string{"dir": filepath.Base(dir)}
	for _, name := range []string{"config.json", "model.safetensors", "optimizer.safetensors", "trainer.json"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		all[name] = string(raw)
	}
	raw, err := os.ReadFile(filepath.Join(out, "metrics.jsonl"))
	require.NoError(t, err)
	var metrics strings.Builder
	for line := range strings.Lines(string(raw)) {
		all := map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(line), &all))
		delete(all, "tokens_per_s")
		delete(all, "step_ms")
		require.NoError(t, json.NewEncoder(&metrics).Encode(all))
	}
	all["metrics.jsonl"] = metrics.String()
	return all
}

func TestKillAtAnyMomentResumesToTheSameBits(t *testing.T) {
	text := textFile(t)
	whole := filepath.Join(t.TempDir(), "whole")
	begin := time.Now()
	require.NoError(t, exec.Command(program, tiny(text, "-out", whole)...).Run())
	took := time.Since(begin)
	want := files(t, whole)
	require.Equal(t, 40, strings.Count(want["metrics.jsonl"], "\n"))

	r := rand.New(rand.NewPCG(1, 2))
	kills, runs := 0, 0
	for kills < 20 {
		out := filepath.Join(t.TempDir(), "out")
		runs++
		for done := false; !done; {
			cmd := exec.Command(program, tiny(text, "-out", out, "-resume")...)
			require.NoError(t, cmd.Start())
			time.Sleep(time.Duration(r.Float64() * 0.3 * float64(took)))
			_ = cmd.Process.Kill() // it may have ended
			done = cmd.Wait() == nil
			if done {
				break
			}
			kills++
			dir, err := train.Latest(out)
			if errors.Is(err, train.ErrNoCheckpoint) {
				continue // killed before the first
			}
			require.NoError(t, err)
			_, _, err = models.Load(dir)
			require.NoError(t, err, "the newest checkpoint loads")
			for _, link := range []string{train.LastName, train.BestName} {
				path := filepath.Join(out, link)
				if _, err := os.Lstat(path); err == nil {
					_, _, err = models.Load(path)
					require.NoError(t, err, "so does what %s points at", link)
				}
			}
		}
		require.Equal(t, want, files(t, out), "after %d kills", kills)
		left, err := filepath.Glob(filepath.Join(out, "step-*.tmp-*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	t.Logf("%d kills in %d runs, each run %v", kills, runs, took)
}

func TestInterruptSavesAndASecondOneEndsAtOnce(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no interrupt can be sent to a process")
	}
	text := textFile(t)
	whole, out := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "out")
	require.NoError(t, exec.Command(program, tiny(text, "-out", whole)...).Run())

	start := func(args ...string) (*exec.Cmd, *bufio.Scanner, *bufio.Scanner) {
		cmd := exec.Command(program, args...)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		stderr, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		return cmd, bufio.NewScanner(stdout), bufio.NewScanner(stderr)
	}
	cmd, stdout, stderr := start(tiny(text, "-out", out)...)
	for range 10 {
		require.True(t, stdout.Scan())
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	for stdout.Scan() {
	}
	var said []string
	for stderr.Scan() {
		said = append(said, stderr.Text())
	}
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 130, exit.ExitCode())
	require.Contains(t, strings.Join(said, "\n"), "resume with\n  go run ./examples/train -out "+out+" -resume")
	require.NoError(t, exec.Command(program, "-out", out, "-resume").Run(), "as it said")
	require.Equal(t, files(t, whole), files(t, out))

	// Nobody reads the lines of this run, so it stands still in a write and
	// cannot stop after a step.
	cmd, _, stderr = start(tiny(text, "-out", filepath.Join(t.TempDir(), "stuck"), "-steps", "1000000", "-save-every", "0", "-eval-every", "0")...)
	time.Sleep(time.Second)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	for range 2 { // the message comes on a line of its own
		require.True(t, stderr.Scan())
	}
	require.Equal(t, "train: stopping after this step; again to end at once", stderr.Text())
	ended := make(chan error)
	go func() { ended <- cmd.Wait() }()
	for again := true; again; {
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		select {
		case err := <-ended:
			require.Error(t, err)
			again = false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// call runs the program inside the test.
func call(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	messages, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	defer messages.Close()
	var out bytes.Buffer
	failed := run(context.Background(), args, &out, messages)
	_, err = messages.Seek(0, io.SeekStart)
	require.NoError(t, err)
	said, err := io.ReadAll(messages)
	require.NoError(t, err)
	return out.String(), string(said), failed
}

func TestLines(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	stdout, _, err := call(t, tiny(textFile(t), "-out", out, "-steps", "8", "-accumulate", "2", "-dropout", "0.1", "-workers", "1")...)
	require.NoError(t, err)
	rows := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Len(t, rows, 9)
	for i, row := range rows[:8] {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(row), &m))
		require.EqualValues(t, i+1, m["step"])
		for _, key := range []string{"loss", "lr", "grad_norm", "tokens_per_s", "step_ms"} {
			require.Contains(t, m, key)
		}
		require.Equal(t, i == 6 || i == 7, m["val_loss"] != nil)
	}
	var sum train.Summary
	require.NoError(t, json.Unmarshal([]byte(rows[8]), &sum))
	require.Equal(t, 8, sum.Steps)
	require.EqualValues(t, 8*2*2*16, sum.Tokens)
	require.Equal(t, filepath.Join(out, "step-00000008"), sum.Checkpoint)
	_, said, err := call(t, "-h")
	require.ErrorContains(t, err, "help")
	for _, name := range strings.Fields("text out steps seed batch context layers dim heads kv-heads ffn lr warmup eval-every save-every keep workers config resume json accumulate dropout early-stop pack document-separator init lora-rank lora-alpha lora-targets merge") {
		require.Contains(t, said, "  -"+name)
	}
}

// TestPack trains on documents from a folder, from one text and from token ids;
// an interrupted run goes on to the same bits.
func TestPack(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		return path
	}
	for i := range 40 {
		write("corpus/"+string(rune('a'+i%26))+strings.Repeat("x", i/26), strings.Repeat("fan ", i%9+1))
	}
	for name, args := range map[string][]string{
		"folder": {"-text", filepath.Join(dir, "corpus")},
		"blank":  {"-text", write("blank.txt", strings.Repeat("a fan\n\nof the sea\n\n\n", 30))},
		"escape": {"-text", write("escape.txt", strings.Repeat("a fan<|end|>\nof the sea<|end|>\n", 20)), "-document-separator", `<|end|>\n`},
		"ids":    {"-text", write("ids.u16", strings.Repeat("a\x00b\x00c\x00\x07\x00d\x00e\x00\x07\x00", 40)), "-document-separator", "7"},
	} {
		whole, out := filepath.Join(dir, name, "whole"), filepath.Join(dir, name, "out")
		flags := append(tiny("none", args...), "-pack", "-steps", "12", "-save-every", "4", "-seed", "3")
		stdout, _, err := call(t, append(flags, "-out", whole)...)
		require.NoError(t, err, name)
		rows := strings.Split(strings.TrimSpace(stdout), "\n")
		var sum train.Summary
		require.NoError(t, json.Unmarshal([]byte(rows[len(rows)-1]), &sum))
		require.Less(t, sum.Tokens, int64(12*2*16), "%s: last tokens of documents have no label", name)

		// What a process that was killed after step 8 leaves.
		require.NoError(t, os.CopyFS(out, os.DirFS(whole)))
		require.NoError(t, os.RemoveAll(filepath.Join(out, "step-00000012")))
		_, _, err = call(t, "-resume", "-out", out)
		require.NoError(t, err, name)
		require.Equal(t, files(t, whole), files(t, out), name)
		if len(args) == 2 {
			_, _, err = call(t, "-resume", "-out", out, "-pack=false")
			require.EqualError(t, err, "-pack: must be true as in the run so far, got false (leave it out with -resume)")
		}
	}
	_, _, err := call(t, "-resume", "-out", filepath.Join(dir, "escape", "out"), "-document-separator", "x")
	require.EqualError(t, err, `-document-separator: must be <|end|>\n as in the run so far, got x (leave it out with -resume)`)
}

func TestConfigAndStartFromAModel(t *testing.T) {
	text, dir := textFile(t), t.TempDir()
	first := filepath.Join(dir, "first")
	_, _, err := call(t, tiny(text, "-out", first, "-steps", "5")...)
	require.NoError(t, err)
	config := filepath.Join(dir, "config.json")
	write := func(text string) { require.NoError(t, os.WriteFile(config, []byte(text), 0o666)) }
	write(`{"text": "` + text + `", "out": "` + filepath.Join(dir, "second") + `", "from": "` + filepath.Join(first, "last") + `",
		"order": "epochs", "train": {"steps": 4, "context": 16, "batch": 2, "schedule": "linear"}}`)
	stdout, _, err := call(t, "-config", config, "-steps", "3")
	require.NoError(t, err)
	require.Contains(t, stdout, "3 steps, 96 tokens")
	m, _, err := models.Load(filepath.Join(dir, "second", "last"))
	require.NoError(t, err)
	require.Equal(t, 8, m.Config.Hidden)
	for args, want := range map[string]string{
		"-dim 9":      "-dim: cannot be given for the model of " + filepath.Join(first, "last") + ", which has its size",
		"-context 17": "-context: must be at most 16, the context of " + filepath.Join(first, "last") + ", got 17",
	} {
		_, _, err = call(t, append([]string{"-config", config, "-out", filepath.Join(dir, "third")}, strings.Fields(args)...)...)
		require.EqualError(t, err, want)
	}
	for text, want := range map[string]string{
		`{"trian": {}}`:                 `-config: ` + config + `: json: unknown field "trian"`,
		`{"train": {"steps": "many"}}`:  `-config: ` + config + `: json: cannot unmarshal string`,
		`{} {}`:                         `-config: ` + config + `: must end after one object`,
		`{"train": {"beta1": 2}}`:       `-config: beta1: must be in [0,1), got 2`,
		`{"order": "backwards"}`:        `-config: order: must be random or epochs, got backwards`,
		`{"model": {"norm_eps": 0}}`:    `-config: model.norm_eps: must be above 0, got 0`,
		`{"model": {"rope_theta": -1}}`: `-config: model.rope_theta: must be above 0, got -1`,
		`{"model": {"vocab": 50}}`:      `token 0 is 97, the model's vocabulary has 50 ids, 0 to 49`,
	} {
		write(text)
		_, _, err = call(t, tiny(textFile(t), "-config", config, "-out", filepath.Join(dir, "fourth"))...)
		require.ErrorContains(t, err, want)
	}
	write(`{"from": "` + dir + `"}`)
	_, _, err = call(t, "-config", config, "-text", text, "-out", filepath.Join(dir, "fourth"))
	require.ErrorContains(t, err, "-init: ")
	require.ErrorContains(t, err, filepath.Join(dir, "config.json"))
	require.NoDirExists(t, filepath.Join(dir, "third"))
	require.NoDirExists(t, filepath.Join(dir, "fourth"))
}

func TestBadInputNamesTheFlag(t *testing.T) {
	text, dir := textFile(t), t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	short := filepath.Join(dir, "short.txt")
	require.NoError(t, os.WriteFile(short, []byte("abc"), 0o666))
	odd := filepath.Join(dir, "odd.u16")
	require.NoError(t, os.WriteFile(odd, []byte("abc"), 0o666))
	ids := filepath.Join(dir, "ids.u16")
	require.NoError(t, os.WriteFile(ids, make([]byte, 200), 0o666))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty"), 0o777))
	out := filepath.Join(dir, "out")
	_, _, err := call(t, tiny(text, "-out", out, "-steps", "3")...)
	require.NoError(t, err)
	before := files(t, out)
	fresh := filepath.Join(dir, "fresh")
	for args, want := range map[string]string{
		"-steps 5 extra":                `unexpected argument "extra": every value belongs to a flag (-h lists them)`,
		"-step 5":                       "flag provided but not defined: -step",
		"-steps five":                   `invalid value "five" for flag -steps: parse error`,
		"-seed -1":                      `invalid value "-1" for flag -seed: parse error`,
		"-steps 0":                      "-steps: must be at least 1, got 0",
		"-batch 0":                      "-batch: must be at least 1, got 0",
		"-context -8":                   "-context: must be at least 1, got -8",
		"-layers 0":                     "-layers: must be 1 to 65536, got 0",
		"-dim 9":                        "-dim: must be a multiple of -heads 2, got 9",
		"-dim 6":                        "-dim: must be an even number for each of the 2 -heads, got 3",
		"-heads 0":                      "-heads: must be 1 to 1048576, got 0",
		"-kv-heads 3":                   "-kv-heads: must divide -heads 2, got 3",
		"-ffn -1":                       "-ffn: must be 1 to 1048576, got -1",
		"-lr 0":                         "-lr: must be above 0, got 0",
		"-lr NaN":                       "-lr: must be above 0, got NaN",
		"-warmup -1":                    "-warmup: must be 0 or more, got -1",
		"-eval-every -1":                "-eval-every: must be 0 or more, got -1",
		"-save-every -1":                "-save-every: must be 0 or more, got -1",
		"-keep 0":                       "-keep: must be at least 1, got 0",
		"-document-separator x":         "-document-separator: needs -pack",
		"-pack -document-separator \\q": `invalid value "\\q" for flag -document-separator: must be a text in which \ begins an escape such as \n, \t or \\`,
		"-pack -document-separator ab":  "-text: " + text + `: is one document, at least 2 are required to be packed: each is a file, or ends with the separator ("ab")`,
		"-pack -text " + short:          "-text: " + short + ": is too short",
		"-pack -text " + file:           "-text: " + file + ": has no tokens: at least one is required",
		"-pack -text " + dir + "/none":  "-text: stat " + dir + "/none: ",
		"-pack -text " + ids:            `-document-separator: must be an id, 0 to 2147483647, in files of token ids, got "\n\n"`,
		"-resume -pack -out " + out:     "-pack: must be false as in the run so far, got true (leave it out with -resume)",
		"-lora-rank 4":                  "-lora-rank: needs -init",
		"-lora-rank -1":                 "-lora-rank: must be 0 to 65536, got -1",
		"-lora-alpha NaN":               "-lora-alpha: must be 0 or more, got NaN",
		"-lora-alpha 4":                 "-lora-alpha: needs -lora-rank",
		"-lora-targets q_proj":          "-lora-targets: needs -lora-rank",
		"-lora-targets q_proj,,v_proj":  `invalid value "q_proj,,v_proj" for flag -lora-targets: must be names with commas between`,
		"-merge":                        "-merge: needs -lora-rank",
		"-init " + dir + "/none":        "-dim: cannot be given for the model of " + dir + "/none, which has its size",
		"-workers -1":                   "-workers: must be 0 to 1024, got -1",
		"-workers 1000000":              "-workers: must be 0 to 1024, got 1000000",
		"-context 1000000000000":        "-context: must be below 2^31, got 1000000000000",
		"-layers 1000000":               "-layers: must be 1 to 65536, got 1000000",
		"-accumulate 0":                 "-accumulate: must be at least 1, got 0",
		"-dropout 1":                    "-dropout: must be in [0,1), got 1",
		"-early-stop -1":                "-early-stop: must be 0 or more, got -1",
		"-early-stop 2 -eval-every 0":   "-early-stop: must be 0 where eval_every is 0, which evaluates after the last step alone, got 2",
		"-config " + dir + "/none":      "-config: open " + dir + "/none: ",
		"-out=":                         "-out: a folder for the run is required",
		"-text=":                        "-text: a text, a file of token ids, or a folder of them is required",
		"-text " + dir + "/none":        "-text: lstat " + dir + "/none: ",
		"-text " + file:                 "-text: " + file + ": has no tokens: at least one is required",
		"-text " + dir + "/empty":       "-text: " + dir + "/empty: the folder has no files: at least one is required",
		"-text " + short:                "-text: " + short + ": is too short: a context of 16 needs at least 17 training tokens, there are 2 (of 3, 0.1 held out)",
		"-text " + odd:                  "-text: " + odd + ": has 3 bytes, not a multiple of the 2 that a uint16 token takes",
		"-context 5000":                 "-text: " + text + ": is too short: a context of 5000 needs at least 5001 training tokens, there are 1800",
		"-out " + file:                  "-out: must be a folder, " + file + " is a file",
		"-out " + file + "/below":       "-out: ",
		"-out " + out:                   "-out: " + out + " holds a run, with checkpoint step-00000003: add -resume to go on, or choose another folder",
		"-resume -dim 16 -out " + out:   "-dim: must be 8 as in the run so far, got 16 (leave it out with -resume)",
		"-resume -lr 1 -out " + out:     "-lr: must be 0.001 as in the run so far, got 1 (leave it out with -resume)",
		"-resume -text " + short + " -context 1 -out " + out: "-context: must be 16 as in the run so far, got 1 (leave it out with -resume)",
	} {
		args := append(tiny(text, "-out", fresh), strings.Fields(args)...)
		_, _, err := call(t, args...)
		require.ErrorContains(t, err, want, "%v", args)
	}
	require.NoDirExists(t, fresh)
	require.Equal(t, before, files(t, out))
	other := filepath.Join(dir, "other.txt")
	require.NoError(t, os.WriteFile(other, bytes.Repeat([]byte("x"), 2000), 0o666))
	_, _, err = call(t, tiny(other, "-resume", "-out", out)...)
	require.ErrorContains(t, err, "the data must be that of the run so far")
	require.Equal(t, before, files(t, out))
}
