package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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

func TestFlagsAreChecked(t *testing.T) {
	text := textFile(t)
	for args, want := range map[string]string{
		"-fp8 static":                "-fp8 must be dynamic or delayed, got \"static\"",
		"-format int8":               "-format must be hybrid, e4m3 or e5m2, got \"int8\"",
		"extra":                      `unexpected argument "extra": every value belongs to a flag (-h lists them)`,
		"-steps 0":                   "train: option steps: must be at least 1, got 0",
		"-text " + text + ".missing": "-text: ",
		"-heads 0":                   "heads",
		"-fp8 delayed -history 0 -context 16 -steps 1 -layers 1": "Delayed needs a History of 1 or more, got 0",
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
