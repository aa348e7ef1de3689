// The templates of published models, where a folder has some, beside transformers.

package chat

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPublishedTemplates renders every *.jinja in the folder that CHAT_TEMPLATES
// names, which are not ours to keep here: with and without system message, tools
// and their results, thinking, several turns, contents in parts. The text is that
// of transformers' apply_chat_template, or an error; one of transformers is one here.
func TestPublishedTemplates(t *testing.T) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "python3"
	}
	files, err := filepath.Glob(filepath.Join(os.Getenv("CHAT_TEMPLATES"), "*.jinja"))
	require.NoError(t, err)
	if os.Getenv("CHAT_TEMPLATES") == "" || len(files) == 0 {
		t.Skip("skipped: CHAT_TEMPLATES names no folder of *.jinja files")
	}
	out, err := exec.Command(python, append([]string{"testdata/published.py"}, files...)...).Output()
	require.NoError(t, err)
	var golden struct {
		Tools         []json.RawMessage
		Conversations [][]map[string]json.RawMessage
		Cases         []struct {
			File         string
			Conversation int
			Tools        bool
			Prompt       bool
			Variables    map[string]any
			Rendered     string
			Error        string
		}
	}
	require.NoError(t, json.Unmarshal(out, &golden))
	require.NotEmpty(t, golden.Cases)
	tokens := map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
	equal, refused := 0, map[string]string{}
	for _, c := range golden.Cases {
		var messages []Message
		for _, fields := range golden.Conversations[c.Conversation] {
			m := Message{Fields: map[string]any{}}
			for name, field := range fields {
				m.Fields[name] = field
			}
			messages = append(messages, m)
		}
		source, err := os.ReadFile(c.File)
		require.NoError(t, err)
		text := ""
		template, err := New(string(source), tokens)
		if err == nil {
			o := Options{AddGenerationPrompt: c.Prompt, Variables: c.Variables}
			if c.Tools {
				o.Tools = golden.Tools
			}
			text, err = template.Render(messages, o)
		}
		switch {
		case err != nil && c.Error == "":
			refused[filepath.Base(c.File)] = err.Error()
		case err == nil && c.Error != "":
			t.Logf("%s, conversation %d: transformers says %s", filepath.Base(c.File), c.Conversation, c.Error)
		case err == nil:
			require.Equal(t, c.Rendered, text, "%s, conversation %d, tools %v, prompt %v, %v", c.File, c.Conversation, c.Tools, c.Prompt, c.Variables)
			equal++
		}
	}
	for name, err := range refused {
		t.Logf("%s: %s", name, err)
	}
	t.Logf("%d templates, %d texts equal, %d templates with constructs that are refused", len(files), equal, len(refused))
}
