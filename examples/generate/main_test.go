package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/backend"
)

// byteModel saves a small model of bytes with a chat template.
func byteModel(t *testing.T) string {
	t.Helper()
	m, err := models.New(models.Config{
		Type: "llama", Vocab: 256, Hidden: 16, FFN: 32, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 8,
		Context: 200, NormEps: 1e-6, RopeTheta: 1e4, EOS: []int32{255},
	})
	require.NoError(t, err)
	require.NoError(t, m.Init(1))
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, m.Save(dir))
	return dir
}

func runIt(t *testing.T, in string, args ...string) (out, errOut string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	err = run(context.Background(), args, strings.NewReader(in), &o, &e)
	return o.String(), e.String(), err
}

func TestBadInputNamesTheFlag(t *testing.T) {
	dir := byteModel(t)
	nothing := filepath.Join(t.TempDir(), "nothing")
	text := filepath.Join(t.TempDir(), "text.gguf")
	require.NoError(t, os.WriteFile(text, []byte("just some text, no model"), 0o666))
	noTokenizer := filepath.Join("..", "..", "models", "testdata", "golden", "qwen2")
	for want, args := range map[string][]string{
		"-model must name a model folder or a .gguf file":                                                   {},
		"-prompt must hold some text":                                                                       {"-model", dir},
		"-system is for a chat: it needs -chat":                                                             {"-model", dir, "-prompt", "a", "-system", "b"},
		`-backend must be native or cuda, got "abacus"`:                                                     {"-model", dir, "-prompt", "a", "-backend", "abacus"},
		`-dtype must be bf16 or f32 where the native code computes, got "f16"`:                              {"-model", dir, "-prompt", "a", "-backend", "native", "-dtype", "f16"},
		`-dtype must be bf16, f16 or f32, got "f8"`:                                                         {"-model", dir, "-prompt", "a", "-dtype", "f8"},
		`-cache must be f32, f16 or bf16, got "f8"`:                                                         {"-model", dir, "-prompt", "a", "-cache", "f8"},
		"-logprobs needs -json":                                                                             {"-model", dir, "-prompt", "a", "-logprobs"},
		"-n must be 0 or above, got -1":                                                                     {"-model", dir, "-prompt", "a", "-n", "-1"},
		"-context must be 0 or above, got -1":                                                               {"-model", dir, "-prompt", "a", "-context", "-1"},
		"-context must be 1 to 200, got 201":                                                                {"-model", dir, "-prompt", "a", "-context", "201"},
		"-context: generate: the context is full: a prompt of 6 tokens, a context of 4":                     {"-model", dir, "-prompt", "abcdef", "-context", "4"},
		"-stop must hold some text":                                                                         {"-model", dir, "-prompt", "a", "-stop", "b", "-stop", ""},
		"-workers must be 0 to 1024, got -2":                                                                {"-model", dir, "-prompt", "a", "-workers", "-2"},
		"-workers must be 0 to 1024, got 1000000":                                                           {"-model", dir, "-prompt", "a", "-workers", "1000000"},
		"-temperature must be 0 or above, got -1":                                                           {"-model", dir, "-prompt", "a", "-temperature", "-1"},
		"-top-k must be 0 (all) or above, got -1":                                                           {"-model", dir, "-prompt", "a", "-top-k", "-1"},
		"-top-p must be 0 to 1, got 2":                                                                      {"-model", dir, "-prompt", "a", "-top-p", "2"},
		"-min-p must be 0 to 1, got 2":                                                                      {"-model", dir, "-prompt", "a", "-min-p", "2"},
		"-repetition-penalty must be 0 (off) or above, got -3":                                              {"-model", dir, "-prompt", "a", "-repetition-penalty", "-3"},
		`unexpected argument "more": every value belongs to a flag (-h lists them)`:                         {"-model", dir, "-prompt", "a", "more"},
		"-model: models: stat " + nothing + ": no such file or directory":                                   {"-model", nothing, "-prompt", "a"},
		"-model: tokenizer: " + noTokenizer + ": required tokenizer.json or tokenizer.model, found neither": {"-model", noTokenizer, "-prompt", "a"},
		"-chat: chat: " + dir + ": required chat_template.jinja or a chat_template in tokenizer_config.json, found neither": {"-model", dir, "-chat"},
	} {
		_, _, err := runIt(t, "", args...)
		require.EqualError(t, err, want)
	}
	_, _, err := runIt(t, "", "-model", text, "-prompt", "a")
	require.ErrorContains(t, err, "-model: ")
	require.ErrorContains(t, err, text)
	_, _, err = runIt(t, "", "-model", dir, "-prompt", "a", "-adapter", nothing)
	require.ErrorContains(t, err, "-adapter: models: adapter "+nothing)
	_, errOut, err := runIt(t, "", "-h")
	require.ErrorIs(t, err, flag.ErrHelp)
	for _, name := range []string{"-model", "-prompt", "-chat", "-system", "-backend", "-n", "-stop"} {
		require.Contains(t, errOut, name)
	}
}

// TestBackendIsTheOneAskedFor: cuda is a device or an error, never native code.
func TestBackendIsTheOneAskedFor(t *testing.T) {
	dir := byteModel(t)
	_, missing := backend.Choose(backend.Options{Name: backend.CUDA})
	out, _, err := runIt(t, "", "-model", dir, "-prompt", "Hello", "-n", "5", "-temperature", "0", "-backend", "cuda", "-dtype", "f32")
	if missing != nil {
		require.NotEqual(t, "1", os.Getenv("REQUIRE_CUDA"), missing)
		require.EqualError(t, err, "-backend: "+missing.Error())
		return
	}
	require.NoError(t, err)
	native, _, err := runIt(t, "", "-model", dir, "-prompt", "Hello", "-n", "5", "-temperature", "0", "-backend", "native")
	require.NoError(t, err)
	require.Equal(t, native, out)
}

func TestCompletionAndItsLines(t *testing.T) {
	dir := byteModel(t)
	out, errOut, err := runIt(t, "", "-model", dir, "-prompt", "Hello", "-n", "5", "-seed", "3")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(out, "Hello"))
	require.Regexp(t, `^\[prompt 5 tokens, \d+ tokens/s; \d tokens, [\d.]+ tokens/s; (length|stop)\]\n$`, errOut)
	lines, _, err := runIt(t, "", "-model", dir, "-prompt", "Hello", "-n", "5", "-seed", "3", "-json", "-logprobs")
	require.NoError(t, err)
	text := "Hello"
	var last map[string]any
	for line := range strings.Lines(lines) {
		last = map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(line), &last))
		if s, ok := last["text"].(string); ok {
			text += s
			require.Less(t, last["logprob"], 0.0)
		}
	}
	require.Equal(t, strings.TrimSuffix(out, "\n"), text)
	require.Equal(t, true, last["summary"])
	require.EqualValues(t, 5, last["prompt_tokens"])
}

func TestChatAnswersEveryLine(t *testing.T) {
	dir := byteModel(t)
	template := `{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}a:{% endif %}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o666))
	out, _, err := runIt(t, "one\n\ntwo\n", "-model", dir, "-chat", "-system", "S", "-n", "3", "-seed", "1", "-json")
	require.NoError(t, err)
	var prompts []float64
	for line := range strings.Lines(out) {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		if v["summary"] == true {
			prompts = append(prompts, v["prompt_tokens"].(float64))
		}
	}
	require.Len(t, prompts, 2, "an empty line asks nothing")
	require.EqualValues(t, len("s:S;u:one;a:"), prompts[0])
	require.Greater(t, prompts[1], prompts[0]+float64(len("u:two;a:")))
	// A first message from the flag, then the input.
	out, _, err = runIt(t, "two\n", "-model", dir, "-chat", "-prompt", "one", "-n", "2")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(out, "> one\n"))
	require.Equal(t, 3, strings.Count(out, "> "))
}

// TestChatTellsWhyTheInputEnds: a line without end, or an input that cannot be
// read, is not the end of the talk.
func TestChatTellsWhyTheInputEnds(t *testing.T) {
	dir := byteModel(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(`{{ messages[-1].content }}`), 0o666))
	_, _, err := runIt(t, "a\n"+strings.Repeat("b", 2<<20), "-model", dir, "-chat", "-n", "2")
	require.EqualError(t, err, "-chat: the input: a line must be shorter than 1048576 bytes")
}

func TestAdapterChangesTheText(t *testing.T) {
	dir := byteModel(t)
	plain, _, err := runIt(t, "", "-model", dir, "-prompt", "Hello", "-n", "20", "-temperature", "0")
	require.NoError(t, err)
	m, err := models.Open(dir)
	require.NoError(t, err)
	ad, err := m.Adapt(models.LoRA{Rank: 2, Alpha: 400}, 1)
	require.NoError(t, err)
	for _, p := range m.Params().All() {
		if !p.Frozen {
			for i := range graph.Data[float32](p.Tensor()) {
				graph.Data[float32](p.Tensor())[i] = float32(i%7) - 3
			}
		}
	}
	adapter := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, ad.Save(adapter))
	adapted, _, err := runIt(t, "", "-model", dir, "-adapter", adapter, "-prompt", "Hello", "-n", "20", "-temperature", "0")
	require.NoError(t, err)
	require.NotEqual(t, plain, adapted)
	_, _, err = runIt(t, "", "-model", adapter, "-prompt", "Hello")
	require.ErrorContains(t, err, "and then the adapter on it (-adapter "+adapter+" beside the -model)")
}
