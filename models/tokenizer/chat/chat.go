// Package chat renders conversations with the Jinja template that ships with a
// model, as transformers' apply_chat_template does. It stands apart from
// package tokenizer so that only those who chat import a template engine.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/exec"

	"github.com/seafan/seafan/models/tokenizer"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string
	Content string
	// Fields are what a template reads besides role and content, such as
	// tool_calls; values are those of encoding/json.
	Fields map[string]any
}

// Options are what a template may read besides the messages.
type Options struct {
	// AddGenerationPrompt ends the text where the model is to answer.
	AddGenerationPrompt bool
	// Tools are descriptions of tools as JSON; the order of keys is kept.
	Tools []json.RawMessage
	// Variables are further names of the template, such as enable_thinking.
	Variables map[string]any
	// Now is the time that strftime_now tells; zero: the time of the call.
	Now time.Time
}

// Template is a parsed chat template. It is safe for concurrent use.
type Template struct {
	template  *exec.Template
	constants map[string]any // bos_token, eos_token, ...; literals of the template
	toolUse   *Template      // in its place where there are tools; nil: none
}

// New parses a template. tokens are the special tokens by the name under which
// templates know them, bos_token and so on.
func New(source string, tokens map[string]string) (*Template, error) {
	p, err := prepare(source)
	if err != nil {
		return nil, fmt.Errorf("chat: template: %w", err)
	}
	t, err := parse(p.source)
	if err != nil {
		return nil, fmt.Errorf("chat: template: %w", err)
	}
	constants := p.literals
	for name, token := range tokens {
		constants[name] = token
	}
	return &Template{template: t, constants: constants}, nil
}

// Open reads the template of a model folder: chat_template.jinja, else the
// chat_template of tokenizer_config.json, of several the one named default. One
// named tool_use, there or in additional_chat_templates, serves conversations with
// tools.
func Open(dir string) (*Template, error) {
	config := configJSON{}
	path := filepath.Join(dir, "tokenizer_config.json")
	data, err := tokenizer.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("chat: %w", err)
	default:
		if err := json.Unmarshal(data, &config); err != nil {
			return nil, fmt.Errorf("chat: %s: %w", path, err)
		}
	}
	var read [2]*Template
	for i, x := range []struct{ source, file string }{
		{config.ChatTemplate["default"], "chat_template.jinja"},
		{config.ChatTemplate["tool_use"], filepath.Join("additional_chat_templates", "tool_use.jinja")},
	} {
		switch file, err := tokenizer.ReadFile(filepath.Join(dir, x.file)); {
		case err == nil:
			x.source = string(file)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("chat: %w", err)
		case x.source == "":
			continue
		}
		if read[i], err = New(x.source, config.tokens()); err != nil {
			return nil, fmt.Errorf("%w (in %s)", err, dir)
		}
	}
	if read[0] == nil {
		return nil, fmt.Errorf("chat: %s: required chat_template.jinja or a chat_template in tokenizer_config.json, found neither", dir)
	}
	read[0].toolUse = read[1]
	return read[0], nil
}

// Render returns the text of a conversation. The template alone says whether
// it starts with a BOS token.
func (t *Template) Render(messages []Message, o Options) (string, error) {
	if t == nil || t.template == nil {
		return "", errors.New("chat: the template is missing: New and Open make one")
	}
	if len(o.Tools) > 0 && t.toolUse != nil {
		t = t.toolUse
	}
	now := o.Now
	if now.IsZero() {
		now = time.Now()
	}
	tools, err := toolValues(o.Tools)
	if err != nil {
		return "", fmt.Errorf("chat: tools: %w", err)
	}
	turns, err := messageValues(messages)
	if err != nil {
		return "", fmt.Errorf("chat: %w", err)
	}
	data := map[string]any{
		"messages":              turns,
		"tools":                 tools,
		"documents":             nil,
		"add_generation_prompt": o.AddGenerationPrompt,
		"raise_exception":       raiseException,
		"strftime_now":          strftimeNow(now),
	}
	for name, value := range t.constants {
		data[name] = value
	}
	for name, variable := range o.Variables {
		if data[name], err = value(variable); err != nil {
			return "", fmt.Errorf("chat: %s: %w", name, err)
		}
	}
	given := []any{turns, tools}
	for name := range o.Variables {
		given = append(given, data[name])
	}
	maps.Copy(data, newBudget(len(turns), given...).functions())
	var out strings.Builder
	if err := t.execute(&out, data); err != nil {
		return "", fmt.Errorf("chat: template: %w", err)
	}
	return out.String(), nil
}

// execute turns a panic of the engine into an error: a template is input.
func (t *Template) execute(out *strings.Builder, data map[string]any) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	return t.template.Execute(out, exec.NewContext(data))
}

// Encode renders a conversation and returns its ids. The tokenizer adds no
// special tokens of its own, so that a BOS written by the template stays the
// only one.
func (t *Template) Encode(tok *tokenizer.Tokenizer, messages []Message, o Options) ([]int32, error) {
	text, err := t.Render(messages, o)
	if err != nil {
		return nil, err
	}
	return tok.Encode(text, tokenizer.EncodeOptions{})
}

// configJSON is what a template needs of tokenizer_config.json.
type configJSON struct {
	ChatTemplate templateJSON `json:"chat_template"`
	BOS          tokenJSON    `json:"bos_token"`
	EOS          tokenJSON    `json:"eos_token"`
	Unk          tokenJSON    `json:"unk_token"`
	Pad          tokenJSON    `json:"pad_token"`
	Sep          tokenJSON    `json:"sep_token"`
	Cls          tokenJSON    `json:"cls_token"`
	Mask         tokenJSON    `json:"mask_token"`
}

func (c configJSON) tokens() map[string]string {
	all := map[string]string{}
	for name, token := range map[string]tokenJSON{
		"bos_token": c.BOS, "eos_token": c.EOS, "unk_token": c.Unk, "pad_token": c.Pad,
		"sep_token": c.Sep, "cls_token": c.Cls, "mask_token": c.Mask,
	} {
		if token != "" {
			all[name] = string(token)
		}
	}
	return all
}

// tokenJSON is a string, or an object with the content.
type tokenJSON string

func (t *tokenJSON) UnmarshalJSON(data []byte) error {
	var object struct{ Content string }
	if data[0] == '{' {
		err := json.Unmarshal(data, &object)
		*t = tokenJSON(object.Content)
		return err
	}
	return json.Unmarshal(data, (*string)(t))
}

// templateJSON is a template, or a list of named ones.
type templateJSON map[string]string

func (t *templateJSON) UnmarshalJSON(data []byte) error {
	var named []struct{ Name, Template string }
	var err error
	if data[0] == '[' {
		err = json.Unmarshal(data, &named)
	} else {
		named = append(named, struct{ Name, Template string }{Name: "default"})
		err = json.Unmarshal(data, &named[0].Template)
	}
	*t = templateJSON{}
	for _, n := range named {
		(*t)[n.Name] = n.Template
	}
	return err
}
