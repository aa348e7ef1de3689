//go:build linux

package models_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/tokenizer/chat"
)

// TestPipesInAFolder: a pipe in the place of any file is an error, not a wait for
// somebody to write to it.
func TestPipesInAFolder(t *testing.T) {
	src := "testdata/golden/llama3"
	for _, name := range []string{"config.json", "model.safetensors.index.json", "model-00001-of-00004.safetensors", "tokenizer.json", "tokenizer_config.json"} {
		dir := filepath.Join(t.TempDir(), "model")
		require.NoError(t, os.CopyFS(dir, os.DirFS(src)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte(`{"model":{"type":"BPE","merges":["a b"],"vocab":{"a":0,"b":1,"ab":2}}}`), 0o600))
		path := filepath.Join(dir, name)
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, unix.Mkfifo(path, 0o600))
		_, err := models.Open(dir)
		require.Error(t, err, name)
		require.Contains(t, err.Error(), name)
		require.NotContains(t, err.Error(), "no such file")
	}
	dir := t.TempDir()
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "chat_template.jinja"), 0o600))
	_, err := chat.Open(dir)
	require.ErrorContains(t, err, "required a regular file, this is p")
}
