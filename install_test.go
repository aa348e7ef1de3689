package seafan_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

const hello = `package main

import (
	"context"
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
)

func main() {
	b := graph.New()
	x := b.Input("x", dtype.Float32, 3)
	y := ops.Add(x, x)
	plan, err := b.Plan(y)
	if err != nil {
		panic(err)
	}
	run, err := plan.Native()
	if err != nil {
		panic(err)
	}
	if err := run.Do(context.Background(), graph.Feeds{"x": []float32{1, 2, 3}}); err != nil {
		panic(err)
	}
	v, err := run.Value(y)
	if err != nil {
		panic(err)
	}
	fmt.Print(graph.Data[float32](v))
}
`

// TestN06_FreshModule runs a program of a module that knows only ours: what
// gorgonia needs on this Go comes along.
func TestN06_FreshModule(t *testing.T) {
	here, err := os.Getwd()
	require.NoError(t, err)
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	sum, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	// The requirements are those that go get would add; the tool lines stay out.
	text := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(mod), "module example.com/hello")
	text = regexp.MustCompile(`(?m)^tool .*$`).ReplaceAllString(text, "")
	text += "\nrequire github.com/seafan/seafan v0.0.0\n\nreplace github.com/seafan/seafan => " + here + "\n"
	dir := t.TempDir()
	for name, data := range map[string]string{"go.mod": text, "go.sum": string(sum), "main.go": hello} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(data), 0o666))
	}
	run := exec.Command("go", "run", "-mod=mod", ".")
	run.Dir = dir
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "[2 4 6]", string(out))
}
