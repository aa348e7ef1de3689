package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/backend"
)

func textFile(t *testing.T) string {
	t.Helper()
	var text []byte
	for i := range 4000 {
		text = append(text, "a fan of the sea is a sea fan.\n"[(i*i/5)%31])
	}
	path := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(path, text, 0o666))
	return path
}

func TestBothRunsSideBySide(t *testing.T) {
	for _, recipe := range []string{"dynamic", "delayed"} {
		var out bytes.Buffer
		args := strings.Fields("-layers 1 -dim 128 -heads 2 -ffn 160 -context 16 -batch 2 -steps 6 -eval-every 3 -eval-rows 4 -fp8 " + recipe + " -text " + textFile(t))
		require.NoError(t, run(context.Background(), args, &out, &out))
		text := out.String()
		require.Contains(t, text, "7 of 8 linears")
		require.Regexp(t, `(?m)^ +6 +\d\.\d{4} +\d\.\d{4} +[+-]\d+\.\d\d %$`, text)
		require.Regexp(t, `(?m)^worst layer: model\.layers\.0\..*\.weight, error 0\.0\d+ of its output$`, text)
		require.Contains(t, text, "without a usable maximum: 0")
	}
}

// Where there is a device, the model is evaluated there too; asked for without one, it is named before any training.
func TestEvaluatesOnADevice(t *testing.T) {
	for _, recipe := range []string{"dynamic", "delayed"} {
		var out bytes.Buffer
		args := strings.Fields("-layers 1 -dim 128 -heads 2 -ffn 160 -context 16 -batch 2 -steps 6 -eval-every 3 -eval-rows 4 -dtype f32 -backend cuda -fp8 " + recipe + " -text " + textFile(t))
		_, missing := backend.Choose(backend.Options{Name: backend.CUDA})
		err := run(context.Background(), args, &out, &out)
		if missing != nil {
			require.NotEqual(t, "1", os.Getenv("REQUIRE_CUDA"), missing)
			require.EqualError(t, err, "-backend: "+missing.Error())
			require.Empty(t, out.String())
			continue
		}
		require.NoError(t, err)
		at := regexp.MustCompile(`(?m)^held-out loss with FP8 linears, 4 rows: native (\d\.\d+), cuda (\d\.\d+) \(asked for, .*, f32\)$`).FindStringSubmatch(out.String())
		require.NotNil(t, at, out.String())
		require.Equal(t, at[1], at[2])
	}
}

func TestFlagsAreChecked(t *testing.T) {
	text, short := textFile(t), filepath.Join(t.TempDir(), "short")
	require.NoError(t, os.WriteFile(short, []byte("one"), 0o666))
	for args, want := range map[string]string{
		"-fp8 static":                "-fp8 must be dynamic or delayed, got \"static\"",
		"-dtype f64":                 `-dtype must be bf16, f16 or f32, got "f64"`,
		"-backend abacus":            `-backend: backend must be native or cuda, got "abacus"`,
		"-format int8":               "-format must be hybrid, e4m3 or e5m2, got \"int8\"",
		"extra":                      `unexpected argument "extra": every value belongs to a flag (-h lists them)`,
		"-steps 0":                   "-steps must be at least 1, got 0",
		"-text " + text + ".missing": "-text: ",
		"-text " + short:             "-text: " + short + ": is too short",
		"-margin 65":                 "-history, -margin: the margin must be -64 to 64, got 65",
		"-heads 0":                   "-heads must be 1 to 1048576, got 0",
		"-heads 3":                   "-dim must be a multiple of 6, an even number for each of the 3 -heads, got 256",
		"-dim 0":                     "-dim must be 1 to 1048576, got 0",
		"-eval-rows -1":              "-eval-rows must be 0 or more, got -1",
		"-fp8 delayed -history 0 -context 16 -steps 1 -layers 1": "-history must be 1 to 65536, got 0",
	} {
		if !strings.Contains(args, "-text") {
			args += " -text " + text
		}
		if strings.HasPrefix(args, "extra") {
			args = "extra"
		}
		var out bytes.Buffer
		err := run(context.Background(), strings.Fields(args), &out, &out)
		require.ErrorContains(t, err, want, args)
	}
}

// full is where nothing more can be written.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestAResultThatIsNotWrittenIsAnError(t *testing.T) {
	const args = "-steps 1 -layers 1 -dim 128 -heads 2 -ffn 128 -context 8 -batch 1 -backend native -text "
	require.ErrorIs(t, run(context.Background(), strings.Fields(args+textFile(t)), full{}, io.Discard), io.ErrShortWrite)
}
