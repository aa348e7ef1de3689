// The chat goldens: rendered text and ids exactly as transformers gives them.

package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/tokenizer"
)

type goldenChat struct {
	Name               string
	Messages           []goldenMessage
	Rendered           string
	IDs                []int32
	RenderedGeneration string  `json:"rendered_generation"`
	IDsGeneration      []int32 `json:"ids_generation"`
}

type goldenMessage struct{ Role, Content string }

func conversation(messages []goldenMessage) []Message {
	var all []Message
	for _, m := range messages {
		all = append(all, Message{Role: m.Role, Content: m.Content})
	}
	return all
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, v))
}

func TestGoldenChats(t *testing.T) {
	for _, folder := range []string{"llama3_style", "qwen_style"} {
		dir := filepath.Join("..", "testdata", folder)
		tok, err := tokenizer.Open(dir)
		require.NoError(t, err)
		template, err := Open(dir)
		require.NoError(t, err)
		var golden struct{ Chats []goldenChat }
		readJSON(t, filepath.Join(dir, "chat.json"), &golden)
		require.NotEmpty(t, golden.Chats)
		for _, c := range golden.Chats {
			t.Run(folder+"/"+c.Name, func(t *testing.T) {
				for _, want := range []struct {
					generation bool
					text       string
					ids        []int32
				}{{false, c.Rendered, c.IDs}, {true, c.RenderedGeneration, c.IDsGeneration}} {
					o := Options{AddGenerationPrompt: want.generation}
					text, err := template.Render(conversation(c.Messages), o)
					require.NoError(t, err)
					require.Equal(t, want.text, text)
					ids, err := template.Encode(tok, conversation(c.Messages), o)
					require.NoError(t, err)
					require.Equal(t, want.ids, ids)
				}
			})
		}
		t.Logf("%s: %d chats", folder, len(golden.Chats))
	}
}
