// Filters, methods and functions of Python that the engine has not, or has
// with another result.

package chat

import (
	"fmt"
	"maps"
	"strings"
	"unicode"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/parser"
)

var filters = map[string]exec.FilterFunction{
	"tojson":   toJSON,
	"reverse":  reverseFilter,
	"default":  defaultFilter,
	"d":        defaultFilter,
	"items":    itemsFilter,
	"dictsort": dictSortFilter,
	"list":     listFilter,
	"string":   stringFilter,
	"replace":  replaceFilter,

	"trim":       ofText("trim"),
	"upper":      ofText("upper"),
	"lower":      ofText("lower"),
	"title":      ofText("title"),
	"capitalize": ofText("capitalize"),
}

// ofText is the engine's filter, which takes texts alone, on str() of a value.
func ofText(name string) exec.FilterFunction {
	f, _ := builtins.Filters.Get(name)
	return func(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
		return f(e, stringFilter(e, in, nil), params)
	}
}

// newEnvironment is the engine's environment with ours in front; built once.
func newEnvironment() *exec.Environment {
	functions := exec.EmptyContext().Update(builtins.GlobalFunctions).Update(builtins.GlobalVariables)
	functions.Set("range", rangeFunction)
	functions.Set("lipsum", nil) // text of any length
	ours := maps.Clone(filters)
	for _, name := range strings.Fields("batch center indent join slice truncate wordwrap") {
		ours[name] = boundedFilter(name, grows)
	}
	ours["format"] = boundedFilter("format", formats)
	structures := map[string]parser.ControlStructureParser{} // none that loads a template, or has blocks that call themselves
	for _, name := range strings.Fields("break call continue do filter for if macro raw set with") {
		structures[name], _ = builtins.ControlStructures.Get(name)
	}
	methods := builtins.Methods
	methods.Str = exec.NewMethodSet(stringMethods())
	methods.Dict = exec.NewMethodSet(dictMethods)
	methods.Int = exec.NewMethodSet(map[string]exec.Method[int]{}) // none that templates use
	copyList, _ := builtins.Methods.List.Get("copy")
	methods.List = exec.NewMethodSet(map[string]exec.Method[[]any]{"copy": copyList}) // none that changes a list, as in Jinja's sandbox
	return &exec.Environment{
		Context:           functions,
		Filters:           exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters).Update(exec.NewFilterSet(ours)),
		Tests:             builtins.Tests,
		ControlStructures: exec.NewControlStructureSet(structures),
		Methods:           methods,
	}
}

var environment = newEnvironment()

// rangeFunction is range as a list: the engine's leaves a goroutine behind
// when a loop ends early.
func rangeFunction(params *exec.VarArgs) (any, error) {
	bounds := []int{0, 0, 1}
	for _, arg := range params.Args {
		if !arg.IsInteger() {
			return nil, fmt.Errorf("range: required integers, got %s", arg.String())
		}
	}
	switch n := len(params.Args); n {
	case 1:
		bounds[1] = params.Args[0].Integer()
	case 2, 3:
		for i, arg := range params.Args {
			bounds[i] = arg.Integer()
		}
	default:
		return nil, fmt.Errorf("range: required one to three integers, got %d", n)
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if step == 0 {
		return nil, fmt.Errorf("range: step is 0")
	}
	all := list{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(all) == maxRange {
			return nil, fmt.Errorf("range: more than %d values", maxRange)
		}
		all = append(all, i)
	}
	return all, nil
}

func reverseFilter(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsString() {
		r := []rune(in.String())
		for i, j := 0, len(r)-1; i < j; i, j = i+1, j-1 {
			r[i], r[j] = r[j], r[i]
		}
		return exec.AsValue(string(r))
	}
	if !in.IsList() {
		return exec.AsValue(fmt.Errorf("reverse: required a list or a string, got %s", in.String()))
	}
	reversed := make(list, in.Len())
	for i := range reversed {
		reversed[len(reversed)-1-i] = in.Index(i).Interface()
	}
	return exec.AsValue(reversed)
}

// defaultFilter takes the place of undefined values, with true also of false
// ones. The engine does not tell undefined from none.
func defaultFilter(_ *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	otherwise, boolean := exec.AsValue(""), false
	if len(params.Args) > 0 {
		otherwise = params.Args[0]
	}
	if len(params.Args) > 1 {
		boolean = params.Args[1].IsTrue()
	}
	if v, ok := params.KwArgs["default_value"]; ok {
		otherwise = v
	}
	if v, ok := params.KwArgs["boolean"]; ok {
		boolean = v.IsTrue()
	}
	if in.IsError() || in.IsNil() || boolean && !in.IsTrue() {
		return otherwise
	}
	return in
}

func listFilter(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	out := list{}
	if in.IsString() {
		for _, r := range in.String() {
			out = append(out, string(r))
		}
		return exec.AsValue(out)
	}
	in.Iterate(func(_, _ int, key, _ *exec.Value) bool {
		out = append(out, key.Interface())
		return true
	}, func() {})
	return exec.AsValue(out)
}

// stringFilter is str(): objects and lists as Python writes them.
func stringFilter(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	if !in.IsList() && !in.IsDict() {
		return exec.AsValue(in.String())
	}
	w := jsonWriter{itemEnd: ", ", keyEnd: ": ", python: true}
	if err := w.write(in, ""); err != nil {
		return exec.AsValue(fmt.Errorf("string: %w", err))
	}
	return exec.AsValue(w.out.String())
}

func itemsFilter(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	if !in.IsDict() && !in.IsNil() && !in.IsError() {
		return exec.AsValue(fmt.Errorf("items: required an object, got %s", kindOf(in)))
	}
	return exec.AsValue(itemsOf(in))
}

func dictSortFilter(_ *exec.Evaluator, in *exec.Value, _ *exec.VarArgs) *exec.Value {
	items := list{}
	sorted := exec.ValuesList{}
	for _, pair := range pairsOf(in) {
		sorted = append(sorted, pair.Key)
	}
	sortFolded(sorted)
	for _, key := range sorted {
		entry, _ := in.GetItem(key.Interface())
		items = append(items, list{key.Interface(), entry.Interface()})
	}
	return exec.AsValue(items)
}

func itemsOf(v *exec.Value) list {
	items := list{}
	for _, pair := range pairsOf(v) {
		items = append(items, list{pair.Key.Interface(), pair.Value.Interface()})
	}
	return items
}

// dictMethods keep the order of keys.
var dictMethods = map[string]exec.Method[map[string]any]{
	"items": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
		return itemsOf(self), nil
	},
	"keys": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
		keys := list{}
		for _, pair := range pairsOf(self) {
			keys = append(keys, pair.Key.Interface())
		}
		return keys, nil
	},
	"values": func(_ map[string]any, self *exec.Value, _ *exec.VarArgs) (any, error) {
		values := list{}
		for _, pair := range pairsOf(self) {
			values = append(values, pair.Value.Interface())
		}
		return values, nil
	},
	"get": func(_ map[string]any, self *exec.Value, params *exec.VarArgs) (any, error) {
		if len(params.Args) < 1 || len(params.Args) > 2 {
			return nil, fmt.Errorf("get: required a key and perhaps a default, got %d arguments", len(params.Args))
		}
		if v, ok := self.GetItem(params.Args[0].Interface()); ok {
			return v.Interface(), nil
		}
		if len(params.Args) == 2 {
			return params.Args[1].Interface(), nil
		}
		return nil, nil
	},
}

type stringMethod = exec.Method[string]

// overridden are the string methods that the engine asks more arguments for.
var overridden = map[string]stringMethod{
	"strip":   trimmer(strings.Trim, strings.TrimFunc),
	"lstrip":  trimmer(strings.TrimLeft, strings.TrimLeftFunc),
	"rstrip":  trimmer(strings.TrimRight, strings.TrimRightFunc),
	"split":   split,
	"replace": replaceMethod,

	"startswith": ends(strings.HasPrefix),
	"endswith":   ends(strings.HasSuffix),

	"count": func(self string, _ *exec.Value, params *exec.VarArgs) (any, error) {
		return strings.Count(self, params.First().String()), nil
	},
}

// stringMethods is the engine's set with the overridden ones in it.
func stringMethods() map[string]stringMethod {
	all := map[string]stringMethod{}
	for _, name := range strings.Fields(`capitalize casefold center encode endswith expandtabs find format isalnum
		isalpha isascii isdecimal isdigit islower isnumeric isprintable isspace istitle isupper join ljust lower
		partition removeprefix removesuffix rfind rjust rpartition rsplit splitlines startswith swapcase title
		upper zfill`) {
		if m, ok := builtins.Methods.Str.Get(name); ok {
			all[name] = m
		}
	}
	for _, name := range strings.Fields("center expandtabs join ljust rjust zfill") {
		all[name] = boundedMethod(name, all[name], grows)
	}
	all["format"] = boundedMethod("format", all["format"], formats)
	for name, m := range overridden {
		all[name] = m
	}
	return all
}

func trimmer(cut func(s, set string) string, cutFunc func(string, func(rune) bool) string) stringMethod {
	return func(self string, _ *exec.Value, params *exec.VarArgs) (any, error) {
		if len(params.Args) == 0 || params.Args[0].IsNil() {
			return cutFunc(self, unicode.IsSpace), nil
		}
		return cut(self, params.Args[0].String()), nil
	}
}

// ends is startswith or endswith, of one text or any of several.
func ends(has func(s, with string) bool) stringMethod {
	return func(self string, _ *exec.Value, params *exec.VarArgs) (any, error) {
		if len(params.Args) != 1 {
			return nil, fmt.Errorf("required one text, or a tuple of texts, got %d arguments", len(params.Args))
		}
		with := params.Args[0]
		if !with.IsList() {
			return has(self, with.String()), nil
		}
		for i := range with.Len() {
			if has(self, with.Index(i).String()) {
				return true, nil
			}
		}
		return false, nil
	}
}

// split is str.split(sep, maxsplit).
func split(self string, _ *exec.Value, params *exec.VarArgs) (any, error) {
	limit := -1
	if len(params.Args) > 1 {
		limit = params.Args[1].Integer()
	}
	if v, ok := params.KwArgs["maxsplit"]; ok {
		limit = v.Integer()
	}
	if len(params.Args) == 0 || params.Args[0].IsNil() {
		if limit >= 0 {
			return nil, fmt.Errorf("split: maxsplit without a separator is not supported")
		}
		return listOf(strings.Fields(self)), nil
	}
	sep := params.Args[0].String()
	if sep == "" {
		return nil, fmt.Errorf("split: empty separator")
	}
	if limit < 0 {
		return listOf(strings.Split(self, sep)), nil
	}
	return listOf(strings.SplitN(self, sep, limit+1)), nil
}

func listOf(parts []string) list {
	all := make(list, len(parts))
	for i, s := range parts {
		all[i] = s
	}
	return all
}

// replaceMethod is str.replace(old, new, count).
func replaceMethod(self string, _ *exec.Value, params *exec.VarArgs) (any, error) {
	if len(params.Args) < 2 {
		return nil, fmt.Errorf("replace: required two strings, got %d arguments", len(params.Args))
	}
	count := -1
	if len(params.Args) > 2 {
		count = params.Args[2].Integer()
	}
	old, with := params.Args[0].String(), params.Args[1].String()
	if len(with) > maxWork/(strings.Count(self, old)+1) {
		return nil, fmt.Errorf("replace: %w", tooLong(maxWork))
	}
	return strings.Replace(self, old, with, count), nil
}

func replaceFilter(_ *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	if in.IsError() {
		return in
	}
	text, err := replaceMethod(in.String(), in, params)
	if err != nil {
		return exec.AsValue(err)
	}
	return exec.AsValue(text)
}

// sortFolded sorts by the keys in lower case.
func sortFolded(keys exec.ValuesList) {
	for i := 1; i < len(keys); i++ {
		for j := i; j > 0 && strings.ToLower(keys[j].String()) < strings.ToLower(keys[j-1].String()); j-- {
			keys[j], keys[j-1] = keys[j-1], keys[j]
		}
	}
}
