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

	"github.com/nikolalohinski/gonja/v2/exec"
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

func rendered(source string) (string, error) {
	template, err := New(source, nil)
	if err != nil {
		return "", err
	}
	return template.Render([]Message{{Role: "user", Content: "hi"}}, Options{})
}

func TestTemplatesThatFail(t *testing.T) {
	for source, part := range map[string]string{
		"{% for m in messages %}":               "template",
		"{{ messages":                           "not closed",
		"{# comment":                            "not closed",
		"{{ 'text }}":                           "string is not closed",
		"{{ raise_exception('roles!') }}":       "the template says: roles!",
		"{% include 'secret' %}":                `'include' not found (or beginning not provided) near "include", in "{% include 'secret' %}"`,
		"a\n{{ 'b' }} {{ f(*messages) }}":       `near "*", in "{{ f(*messages) }}"`,
		"{% include '../template_test.go' %}":   "template",
		"{{ messages | no_such_filter }}":       "no_such_filter",
		"{{ messages[0].content.no_such() }}":   "no_such",
		"{% do messages.append(1) %}":           "unknown method 'append'", // Jinja's sandbox changes no list either
		"{{ messages.reverse() }}":              "unknown method 'reverse'",
		"{{ range(99999999) }}":                 "range",
		"{{ strftime_now('%Q') }}":              "%Q",
		"{{ messages | tojson(separators=1) }}": "separators",

		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "macros nested deeper than 100",
		"{{ " + strings.Repeat("(", 101):                  "brackets nested deeper than 100",
		strings.Repeat("x", maxTemplate+1):                "at most 1048576 bytes",
	} {
		_, err := rendered(source)
		require.ErrorContains(t, err, part, "%q", source)
		require.ErrorContains(t, err, "chat: ", "%q", source)
	}
	template, err := New("{{ tools | tojson }}", nil)
	require.NoError(t, err)
	for raw, part := range map[string]string{`{"a":`: "tool 0", strings.Repeat("[", 1<<20): "nested deeper than 200"} {
		_, err = template.Render(nil, Options{Tools: []json.RawMessage{json.RawMessage(raw)}})
		require.ErrorContains(t, err, part)
	}
	itself := map[string]any{}
	itself["a"] = itself
	_, err = template.Render(nil, Options{Variables: itself})
	require.ErrorContains(t, err, "nested deeper than 200")
}

// TestTemplatesThatTakeTooMuch holds what ends the process, or runs without end, in
// the engine alone.
func TestTemplatesThatTakeTooMuch(t *testing.T) {
	repeat := strings.Repeat
	for source, part := range map[string]string{
		// Recursion.
		"{% include '/template' %}":                               "'include' not found",
		"{% extends '/template' %}":                               "'extends' not found",
		"{% block a %}{{ self.a() }}{% endblock %}":               "'block' not found",
		"{% macro\tf() %}{{ f() }}{% endmacro %}{{ f() }}":        "macros nested deeper than 100",
		"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}": "not callable",
		"{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}":   "more than",
		repeat("{% if 1 %}", 101):                                 "blocks nested deeper than 100",
		"{{ 1" + repeat(" and 1", 1<<12) + " }}":                  "a tag of at most 16384 bytes",
		// Values that double.
		"{% set ns = namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}": "more than",
		"{% set x = 'a' %}" + repeat("{% with x = x + x %}", 40) + repeat("{% endwith %}", 40):            "more than",
		"{% set x %}ab{% endset %}" + repeat("{% set x %}{{ x }}{{ x }}{% endset %}", 40):                 "more than",
		"{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('a') }}":                                        "more than",
		"{% set x = [1] %}" + repeat("{% set x = [x, x] %}", 60) + "{{ x }}":                              "more than",
		"{{ 'a'" + repeat(" ~ 'a'", 300) + " }}":                                                          "at most 256 of + and ~",
		// Values of any length at once.
		"{{ 'a' * 10000000000 }}":                                    "more than",
		"{{ 3 * ['a' * 10000] * 10000 }}":                            "more than",
		"{{ 1" + repeat(" * 1", 65) + " }}":                          "at most 64 of *",
		"{{ 'a' | center(10000000000) }}":                            "center: a value of more than",
		"{{ 'a\na' | indent(10000000000) }}":                         "indent: a value of more than",
		"{{ [1] | batch(10000000000, 'x') | list }}":                 "batch: a value of more than",
		"{{ [1] | slice(10000000000) | list }}":                      "slice: a value of more than",
		"{{ ('a' * 10000) | replace('', 'b' * 100000) }}":            "replace: a value of more than",
		"{% set x = 'a' * 10000 %}{{ x.replace('', 'b' * 100000) }}": "replace: a value of more than",
		"{% set x = 'b' * 100000 %}{{ x.join(range(10000)) }}":       "join: a value of more than",
		"{{ range(10000) | join('b' * 100000) }}":                    "join: a value of more than",
		"{{ 'a'.zfill(10000000000) }}":                               "zfill: a value of more than",
		"{{ '{:>9999999999}'.format('a') }}":                         "format: a width",
		"{{ lipsum(100000000) }}":                                    "lipsum",
		"{% filter center(10000000000) %}x{% endfilter %}":           "center: a value of more than",
		// Rounds.
		"{% set x = 'x' * 4000000 %}{% for i in range(99999) %}{{ x }}{% endfor %}": "more than",
		// Ways around the bounds.
		"{% set bound_keep = range %}":             "the name bound_keep is reserved",
		"{% macro bound_print(x) %}{% endmacro %}": "the name bound_print is reserved",
		"{{ messages)~(messages }}":                "bracket ) is not opened",
		"{{ messages, messages }}":                 "required one value to print, got 2",
	} {
		_, err := rendered(source)
		require.ErrorContains(t, err, part, "%.80q", source)
	}
	b := newBudget(0)
	round := &exec.VarArgs{Args: []*exec.Value{exec.AsValue(maxWork / 2)}}
	for i, want := range []string{"", "", "more than 268435456 bytes of text and values"} {
		_, err := b.round(round)
		require.Equal(t, want != "", err != nil, i)
		if err != nil {
			require.EqualError(t, err, want)
		}
	}
	b.bytes, b.end = maxWork, time.Now()
	_, err := b.round(round)
	require.EqualError(t, err, "not done after 10s")
}

// TestLongConversationsAreGathered: into a text or a list that grows with each
// message, as templates do that look for something first.
func TestLongConversationsAreGathered(t *testing.T) {
	messages := make([]Message, 1000)
	for i := range messages {
		messages[i] = Message{Role: "user", Content: strings.Repeat("a", 1000)}
	}
	for source, want := range map[string]string{
		"{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x ~ m.content %}{% endfor %}{{ ns.x | length }}": "1000000",
		"{% set ns = namespace(x=[]) %}{% for m in messages %}{% set ns.x = ns.x + [m] %}{% endfor %}{{ ns.x | length }}":       "1000",
	} {
		template, err := New(source, nil)
		require.NoError(t, err)
		text, err := template.Render(messages, Options{})
		require.NoError(t, err)
		require.Equal(t, want, text)
	}
}

func TestProducts(t *testing.T) {
	for source, want := range map[string]string{
		"{{ 2*3 }} {{ -2*3 }} {{ 7/2*2 }} {{ 1+2*3-4*-5 }} {{ 5//2*2 }} {{ 6 % 4 * 2 }} {{ 2.5*2 }} {{ (1+2)*(3+4)*2 }}":  "6 -6 7.0 27 4 4 5.0 42",
		"{{ 'ab'*2~'c' }} {{ 3*'x' }} {{ [1]*2 }} {{ 'a'*-1 }} {{ 2*'a'|length }} {{ messages|length*2 }}":                "ababc xxx [1, 1]  2 2",
		"{{ 2 * 3 if 1*0 else 4 * 5 }} {{ [2*3, {'a': 4*5}] }} {{ 2*3 == 6 and 1*1 > 0 }}":                                "20 [6, {'a': 20}] True",
		"{% set n = 2 * 3 %}{{ n }}{% for i in range(2*2) %}{{ i*i }}{% endfor %}{% if 2*0 %}x{% elif 2*1 %}y{% endif %}": "60149y",
		"{% macro f(a, *rest) %}{{ a*2 }}{{ rest[0]*2 }}{% endmacro %}{{ f(2*3, 4) }}":                                    "128",
		"{{ 1" + strings.Repeat(" * 1", 64) + " }}":                                                                       "1",
		"{{ 'a' if false }}|{{ ('b' if true) }}":                                                                          "|b",
	} {
		text, err := rendered(source)
		require.NoError(t, err, source)
		require.Equal(t, want, text, source)
	}
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
	withTools := func() string {
		template, err := Open(dir)
		require.NoError(t, err)
		text, err := template.Render(nil, Options{Tools: []json.RawMessage{json.RawMessage("{}")}})
		require.NoError(t, err)
		return text
	}
	require.Equal(t, "T", withTools())
	write(dir, "chat_template.jinja", "{{ bos_token }}file\n")
	require.Equal(t, "<b>file", render(dir))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "additional_chat_templates"), 0o700))
	write(dir, "additional_chat_templates/tool_use.jinja", "{{ eos_token }}{{ tools | length }}")
	require.Equal(t, "1", withTools())
	write(dir, "tokenizer_config.json", `{"chat_template": 5}`)
	_, err = Open(dir)
	require.ErrorContains(t, err, "tokenizer_config.json")
}
