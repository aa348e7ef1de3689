package main

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/backend"
)

var update = flag.Bool("update", false, "rewrite the golden plans")

// TestPlansAreGolden compares the plans of a step of generation and of a
// training step with texts: a change of the graph, of lifetimes or of the arena
// shows as a diff.
func TestPlansAreGolden(t *testing.T) {
	const model = "../../models/testdata/golden/llama3"
	for name, args := range map[string]string{
		"generate.txt": "-batch 2 -context 64 -tokens 8",
		"train.txt":    "-train -batch 2 -context 16",
		"generate.dot": "-batch 1 -context 16 -dot",
	} {
		var out strings.Builder
		require.NoError(t, run(append(strings.Fields(args), "-model", model), &out, io.Discard))
		_, text, _ := strings.Cut(out.String(), "\n") // the first line names this machine's kernel
		path := filepath.Join("testdata", name)
		if *update {
			require.NoError(t, os.MkdirAll("testdata", 0o777))
			require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), text, "%s; where the change is meant: go test ./examples/plan -update", name)
	}
}

// Where there is a device, the plan says which step runs where, by which kernels.
func TestPlanOfADevice(t *testing.T) {
	var out strings.Builder
	_, missing := backend.Choose(backend.Options{Name: backend.CUDA})
	err := run(strings.Fields("-batch 2 -context 64 -backend cuda -model ../../models/testdata/golden/llama3"), &out, io.Discard)
	if missing != nil {
		require.NotEqual(t, "1", os.Getenv("REQUIRE_CUDA"), missing)
		require.EqualError(t, err, "-backend: "+missing.Error())
		return
	}
	require.NoError(t, err)
	require.Regexp(t, `(?m)^cuda: .*, compute bf16: \d+ of \d+ steps on the device`, out.String())
}

func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":            "-model must name a model folder",
		"-model none": "-model: models: stat none/config.json: no such file or directory",
		"-model ../../models/testdata/golden/llama3 -backend x": `-backend: backend must be native or cuda, got "x"`,
		"-model x -batch 0":                          "-batch must be 1 to 2^24, got 0",
		"-model x -tokens -1":                        "-tokens must be 0 to 2^24, got -1",
		"-model x -context 0":                        "-context must be 1 to 2^24, got 0",
		"-model x more":                              `unexpected argument "more": every value belongs to a flag (-h lists them)`,
		"-model x -tokens 3":                         "-tokens must be 0 or at least -batch 8, got 3",
		"-model x -train -tokens 9":                  "-tokens must be left out with -train, whose step has -batch times -context",
		"-model x -dot -backend cuda":                "-dot must be without -backend: the graph is one for every backend",
		"-model x -batch twelve":                     `invalid value "twelve" for flag -batch: parse error`,
		"-model x -batch 16777216 -context 16777216": "-batch times -context must be at most 2^31, got 16777216 times 16777216",
	} {
		require.EqualError(t, run(strings.Fields(args), io.Discard, io.Discard), want)
	}
}
