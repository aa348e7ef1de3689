// Fuzz target: a template that is wrong is an error, never a panic.

package chat

import (
	"encoding/json"
	"testing"
)

func FuzzTemplate(f *testing.F) {
	for _, source := range []string{
		smolTemplate,
		"{%- for m in messages -%}\n  {{ m.content | trim + ('x' if loop.first else '\\n') }}\n{%- endfor %}",
		"{% macro f(a, b='\\u00e9') %}{{ a[-1] }}{{ b }}{% endmacro %}{{ f(messages) }}{# c #}{% raw %}{{ }}{% endraw %}",
		"{{ messages | tojson(indent=2) }}{{ 'a,b'.split(',')[::-1] | join('-') }}{% set ns = namespace(x=1) %}{% set ns.x = 2 %}",
		"{% macro f(x, *y) %}{{ f(x ~ x * 2) }}{% endmacro %}{{ f('a', 2 * 3 if y else 4) }}{% with b = [1] %}{% do b.append(b) %}{% endwith %}",
		"{{ {'a': [1, 2.5, none]} | string }}{% if tools is defined and not false %}{{ tools }}{% elif true %}{% else %}{% endif %}",
	} {
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source string) {
		template, err := New(source, map[string]string{"bos_token": "<s>"})
		if err != nil {
			return
		}
		// Both outcomes are right; what counts is that there is one.
		_, _ = template.Render([]Message{{Role: "user", Content: "Hi"}, {Role: "assistant"}},
			Options{Tools: []json.RawMessage{json.RawMessage(`{"b": [1, {}], "a": null}`)}})
	})
}
