// Constructs of templates against Jinja itself, the chats of a real model, the
// one BOS of case T04, and templates that fail.

package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/tokenizer"
)

func TestConstructsAsJinjaRendersThem(t *testing.T) {
	var golden struct {
		Messages []goldenMessage
		Tools    []json.RawMessage
		Cases    []struct {
			Template string
			Rendered string
			Error    string
		}
	}
	readJSON(t, "testdata/constructs.json", &golden)
	require.NotEmpty(t, golden.Cases)
	tokens := map[string]string{"bos_token": "<s>", "eos_token": "</s>"}
	o := Options{
		AddGenerationPrompt: true,
		Tools:               golden.Tools,
		Now:                 time.Date(2025, 3, 7, 9, 5, 3, 0, time.UTC),
	}
	for _, c := range golden.Cases {
		text := ""
		template, err := New(c.Template, tokens)
		if err == nil {
			text, err = template.Render(conversation(golden.Messages), o)
		}
		if c.Error != "" {
			require.Error(t, err, "%q: Jinja: %s", c.Template, c.Error)
			continue
		}
		require.NoError(t, err, "%q", c.Template)
		require.Equal(t, c.Rendered, text, "%q", c.Template)
	}
	t.Logf("%d constructs", len(golden.Cases))
}

// smolTemplate is tokenizer.chat_template of SmolLM2-135M-Instruct.
const smolTemplate = `{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}`

func TestSmolLM2Chats(t *testing.T) {
	var golden struct {
		Greedy []struct {
			Messages []goldenMessage
			Rendered string
		}
	}
	readJSON(t, filepath.Join("..", "testdata", "smollm2.json"), &golden)
	template, err := New(smolTemplate, map[string]string{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
	require.NoError(t, err)
	chats := 0
	for _, g := range golden.Greedy {
		if g.Messages == nil {
			continue
		}
		chats++
		text, err := template.Render(conversation(g.Messages), Options{AddGenerationPrompt: true})
		require.NoError(t, err)
		require.Equal(t, g.Rendered, text)
	}
	require.Positive(t, chats)
}

func TestT04_OneBOS(t *testing.T) {
	dir := filepath.Join("..", "testdata", "llama3_style")
	tok, err := tokenizer.Open(dir)
	require.NoError(t, err)
	template, err := Open(dir)
	require.NoError(t, err)
	messages := []Message{{Role: "user", Content: "Hello"}}
	text, err := template.Render(messages, Options{})
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(text, "<|begin_of_text|>"))
	ids, err := template.Encode(tok, messages, Options{AddGenerationPrompt: true})
	require.NoError(t, err)
	bos := 0
	for _, id := range ids {
		if id == tok.Special().BOS {
			bos++
		}
	}
	require.Equal(t, 1, bos)
	require.Equal(t, tok.Special().BOS, ids[0])
}

func TestFieldsAndVariables(t *testing.T) {
	template, err := New(`{% for m in messages %}{{ m.role }}:{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %};{% endfor %}{% if thinking %}T{% endif %}{{ extra.a[1] }}`, nil)
	require.NoError(t, err)
	text, err := template.Render([]Message{
		{Role: "user", Content: "x"},
		{Role: "assistant", Fields: map[string]any{"tool_calls": json.RawMessage(`[{"b":1,"a":[2.5,null]}]`)}},
	}, Options{Variables: map[string]any{"thinking": true, "extra": map[string]any{"a": []any{1, "two"}}}})
	require.NoError(t, err)
	require.Equal(t, `user:x;assistant:[{"b": 1, "a": [2.5, null]}];Ttwo`, text)
}

func TestTemplatesThatFail(t *testing.T) {
	for source, part := range map[string]string{
		"{% for m in messages %}":               "template",
		"{{ messages":                           "not closed",
		"{# comment":                            "not closed",
		"{{ 'text }}":                           "string is not closed",
		"{{ raise_exception('roles!') }}":       "the template says: roles!",
		"{% include 'secret' %}":                "template",
		"{% include '../template_test.go' %}":   "template",
		"{{ messages | no_such_filter }}":       "no_such_filter",
		"{{ messages[0].content.no_such() }}":   "no_such",
		"{{ range(99999999) }}":                 "range",
		"{{ strftime_now('%Q') }}":              "%Q",
		"{{ messages | tojson(separators=1) }}": "separators",

		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "macros nested deeper than 100",
		"{{ " + strings.Repeat("(", 101):                  "brackets nested deeper than 100",
		strings.Repeat("x", maxTemplate+1):                "at most 1048576 bytes",
	} {
		template, err := New(source, nil)
		if err == nil {
			_, err = template.Render([]Message{{Role: "user", Content: "hi"}}, Options{})
		}
		require.ErrorContains(t, err, part, "%q", source)
		require.ErrorContains(t, err, "chat: ", "%q", source)
	}
	template, err := New("{{ tools | tojson }}", nil)
	require.NoError(t, err)
	_, err = template.Render(nil, Options{Tools: []json.RawMessage{json.RawMessage(`{"a":`)}})
	require.ErrorContains(t, err, "tool 0")
}

func TestMacros(t *testing.T) {
	template, err := New(`{% macro f(n) %}{{ n }}{{ '\n' }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}`+
		`{% macro w(x) %}<{{ caller() }}{{ x }}>{% endmacro %}{{ f(2) }}{% call w('!') %}{{ eos }}{% endcall %}`, map[string]string{"eos": "E"})
	require.NoError(t, err)
	for range 3 {
		text, err := template.Render(nil, Options{})
		require.NoError(t, err)
		require.Equal(t, "2\n1\n0\n<E!>", text)
	}
}

func TestOpenFolders(t *testing.T) {
	write := func(dir, name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	render := func(dir string) string {
		template, err := Open(dir)
		require.NoError(t, err)
		text, err := template.Render(nil, Options{})
		require.NoError(t, err)
		return text
	}
	dir := t.TempDir()
	_, err := Open(dir)
	require.ErrorContains(t, err, "chat_template")
	write(dir, "tokenizer_config.json", `{"bos_token": {"content": "<b>"}, "eos_token": null,
		"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "{{ bos_token }}D"}]}`)
	require.Equal(t, "<b>D", render(dir))
	write(dir, "chat_template.jinja", "{{ bos_token }}file\n")
	require.Equal(t, "<b>file", render(dir))
	write(dir, "tokenizer_config.json", `{"chat_template": 5}`)
	_, err = Open(dir)
	require.ErrorContains(t, err, "tokenizer_config.json")
}
