package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/backend"
)

func textFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("a fan of the sea is a sea fan. ", 200)), 0o666))
	return path
}

// TestTrainsAndWrites runs the program at a tiny size: the text is learnt, the
// states keep their size while the pages grow, and a second call goes on from
// the run that is there.
func TestTrainsAndWrites(t *testing.T) {
	text := textFile(t)
	for _, kind := range []string{"", "-experts 4", "-attend 0"} {
		dir := filepath.Join(t.TempDir(), "run")
		args := strings.Fields("-text " + text + " -out " + dir + " -layers 4 -dim 32 -heads 2 -context 32 -batch 4 -steps 60 -warmup 10 -lr 1e-2 -n 320 -temperature 0 " + kind)
		var out, log bytes.Buffer
		require.NoError(t, run(context.Background(), args, &out, &log), log.String())
		first := out.String()
		held := regexp.MustCompile(`60 steps, loss (\d\.\d+), held out (\d\.\d+)`).FindStringSubmatch(first)
		require.NotNil(t, held, first)
		require.Less(t, held[2], "1.0", "a text of one sentence is learnt")
		rows := regexp.MustCompile(`(?m)^ +(\d+) +(\d+) +(\d+) +\d+\.\d+$`).FindAllStringSubmatch(first, -1)
		require.Len(t, rows, 3, first) // 100, 300, 320
		require.Equal(t, rows[0][2], rows[2][2], "states do not grow")
		require.Equal(t, kind == "-attend 0", rows[0][3] == rows[2][3], "pages do: %s", first)

		m, _, err := models.Load(filepath.Join(dir, "last"))
		require.NoError(t, err)
		require.Equal(t, "kimi_linear", m.Config.Type)
		require.Equal(t, kind == "-experts 4", m.Config.Experts != nil)

		out.Reset()
		require.NoError(t, run(context.Background(), args, &out, &log), log.String())
		cut := func(s string) string { return s[strings.Index(s, "\n\n"):strings.Index(s, "memory")] }
		require.Equal(t, cut(first), cut(out.String()), "the run that is there writes the same")
	}
}

// TestBackendIsTheOneAskedFor: cuda is a device or an error, never native code,
// and where there is one, f32 writes what native code does.
func TestBackendIsTheOneAskedFor(t *testing.T) {
	args := "-text " + textFile(t) + " -out " + filepath.Join(t.TempDir(), "run") + " -layers 2 -attend 0 -dim 32 -heads 2 -context 32 -batch 4 -steps 60 -warmup 10 -lr 1e-2 -n 100 -temperature 0 -dtype f32 -backend "
	var native, out, log bytes.Buffer
	require.NoError(t, run(context.Background(), strings.Fields(args+"native"), &native, &log), log.String())
	_, missing := backend.Choose(backend.Options{Name: backend.CUDA})
	err := run(context.Background(), strings.Fields(args+"cuda"), &out, &log)
	if missing != nil {
		require.NotEqual(t, "1", os.Getenv("REQUIRE_CUDA"), missing)
		require.EqualError(t, err, "-backend: "+missing.Error())
		return
	}
	require.NoError(t, err)
	text := func(s string) string { return s[strings.Index(s, "\n\n"):strings.Index(s, "memory")] }
	require.Equal(t, text(native.String()), text(out.String()))
}

func TestFlagsAreChecked(t *testing.T) {
	for args, want := range map[string]string{
		"extra":           `unexpected argument "extra": every value belongs to a flag (-h lists them)`,
		"-dim 30":         "-dim: must be a multiple of 8 for each of the 4 -heads, got 30",
		"-heads 0":        "-heads: must be 1 to 1048576, got 0",
		"-experts 1":      "-experts: must be 0 or 2 or more, got 1",
		"-steps 0":        "-steps: must be at least 1, got 0",
		"-n -1":           "-n: must be 0 to 1048576, got -1",
		"-workers -2":     "-workers: must be 0 to 1024, got -2",
		"-layers 99999":   "-layers: must be 1 to 65536, got 99999",
		"-experts 99999":  "-experts: must be 0 to 65536, got 99999",
		"-eval-every -1":  "-eval-every: must be 0 or more, got -1",
		"-backend abacus": `-backend: must be native or cuda, got "abacus"`,
		"-temperature -1": "-temperature: must be 0 or above, got -1",
		"-dtype f64":      `-dtype: must be bf16, f16 or f32, got "f64"`,
	} {
		var out bytes.Buffer
		require.EqualError(t, run(context.Background(), strings.Fields(args), &out, &out), want)
	}
	var out bytes.Buffer
	require.EqualError(t, run(context.Background(), []string{"-prompt", ""}, &out, &out), "-prompt: must have a byte or more")
	require.ErrorContains(t, run(context.Background(), []string{"-text", "no such text", "-out", t.TempDir()}, &out, &out), "-text: ")
}
