// Bounds on what a template may do. A template comes with a model and is input:
// none may end the process by an endless recursion or by filling memory, nor
// keep it busy without end. The calls counted here are written into the template
// when it is prepared.

package chat

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/exec"
)

// Bounds on a template's text. Published ones are at most tens of kilobytes, nest
// fewer than ten deep and join a few values. The engine calls itself for each operand, bracket,
// block and macro, and Go cannot recover from a stack that overflows.
const (
	maxTemplate = 1 << 20 // bytes
	maxTag      = 1 << 14 // bytes of a tag without its string literals: some thousand operands
	maxJoins    = 256     // + and ~ in a tag, whose result is as long as all that they join
	maxBrackets = 100     // nested in one tag
	maxBlocks   = 100     // nested
	maxMacros   = 100     // running inside each other
	maxRange    = 100000  // values of a range, as in Jinja's sandbox
)

// Bounds on one rendering. A conversation takes some ten steps a message, and a
// template prints and keeps what it is given a few times: maxValue and maxWork are
// what it may do beyond that, and newBudget adds the size of what is given. A loop
// that gathers, set ns.x = ns.x ~ message.content, keeps all it has so far in each
// round: messages times their bytes are two such loops, up to maxGather, which
// is one over 1000 messages of 2 kB.
const (
	maxSteps  = 1 << 20          // rounds of loops, calls of macros, assignments and prints
	maxValue  = 1 << 22          // bytes of a value that gets a name
	maxWork   = 1 << 28          // bytes of all that is printed and gets a name, one after the other
	maxGather = 1 << 30          // bytes of what gets a name, in front of those of maxWork
	maxTime   = 10 * time.Second // looked at in every step
)

// reserved matches names such as those of budget's functions: no template may use
// them, so none can take their place.
var reserved = regexp.MustCompile(`\bbound_\w*`)

// budget is what one rendering has left.
type budget struct {
	steps, bytes int // see maxSteps, maxWork
	gathers      int // see maxGather
	most         int // bytes of a value
	macros       int // that run
	end          time.Time
}

// newBudget makes the budget of a rendering of so many messages that is given these
// values.
func newBudget(messages int, given ...any) *budget {
	b := &budget{steps: maxSteps, bytes: maxWork, most: maxValue, end: time.Now().Add(maxTime)}
	for _, v := range given {
		n, _ := sizeOf(exec.AsValue(v), maxWork) // what is larger ends at its first use
		n = min(n, maxWork)
		b.bytes += 16 * n // so often may it be printed or get a name
		b.most += n
		b.gathers = min(b.gathers+messages*n, maxGather)
	}
	return b
}

// functions are the calls that prepare writes into a template.
func (b *budget) functions() map[string]any {
	return map[string]any{
		"bound_print": b.print, "bound_keep": b.keep, "bound_round": b.round,
		"bound_macro": b.macro, "bound_endmacro": b.endMacro, "bound_times": b.times, "bound_plus": plus,
	}
}

// step counts a step that prints or keeps n bytes.
func (b *budget) step(n int) error {
	b.steps--
	b.bytes -= n
	switch {
	case b.steps < 0:
		return fmt.Errorf("more than %d steps", maxSteps)
	case b.bytes < 0:
		return fmt.Errorf("more than %d bytes of text and values", maxWork)
	case time.Now().After(b.end):
		return fmt.Errorf("not done after %s", maxTime)
	}
	return nil
}

// print counts and returns what is printed.
func (b *budget) print(params *exec.VarArgs) (*exec.Value, error) {
	if len(params.Args) != 1 || len(params.KwArgs) > 0 {
		return nil, fmt.Errorf("required one value to print, got %d", len(params.Args)+len(params.KwArgs))
	}
	n, err := sizeOf(params.Args[0], b.bytes)
	if err == nil {
		err = b.step(n)
	}
	return params.Args[0], err
}

// keep counts values that get a name.
func (b *budget) keep(params *exec.VarArgs) (any, error) { return "", b.kept(params.Args) }

func (b *budget) kept(values []*exec.Value) error {
	for _, v := range values {
		n, err := sizeOf(v, b.most)
		if err == nil {
			free := min(n, b.gathers)
			b.gathers -= free
			err = b.step(n - free)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// round counts a round of a loop whose body holds so much plain text.
func (b *budget) round(params *exec.VarArgs) (any, error) {
	return "", b.step(params.First().Integer())
}

// macro counts a call of a macro: the bytes of its plain text, and its arguments.
func (b *budget) macro(params *exec.VarArgs) (any, error) {
	if b.macros++; b.macros > maxMacros {
		return nil, fmt.Errorf("macros nested deeper than %d", maxMacros)
	}
	if err := b.step(params.First().Integer()); err != nil {
		return nil, err
	}
	return "", b.kept(params.Args[1:])
}

func (b *budget) endMacro(*exec.VarArgs) (any, error) {
	b.macros--
	return "", nil
}

// times is the operator *: it multiplies numbers, and repeats texts and lists.
func (b *budget) times(params *exec.VarArgs) (any, error) {
	if len(params.Args) != 2 {
		return nil, fmt.Errorf("required two operands of *, got %d", len(params.Args))
	}
	x, y := params.Args[0], params.Args[1]
	if x.IsInteger() && (y.IsString() || y.IsList()) {
		x, y = y, x
	}
	switch {
	case x.IsString() || x.IsList():
		if !y.IsInteger() {
			return nil, fmt.Errorf("required an integer to repeat a value, got %s", y.String())
		}
		n, err := sizeOf(x, b.most)
		count := max(0, y.Integer())
		if err == nil && count > b.most/max(1, n) {
			err = tooLong(b.most)
		}
		switch {
		case err != nil:
			return nil, err
		case x.IsString():
			return strings.Repeat(x.String(), count), nil
		}
		all := list{}
		for range count {
			for i := range x.Len() {
				all = append(all, x.Index(i).Interface())
			}
		}
		return all, nil
	case x.IsFloat() || y.IsFloat():
		return x.Float() * y.Float(), nil
	}
	return x.Integer() * y.Integer(), nil
}

// plus is the operator +, which joins no text with another kind of value.
func plus(params *exec.VarArgs) (any, error) {
	if len(params.Args) != 2 {
		return nil, fmt.Errorf("required two operands of +, got %d", len(params.Args))
	}
	x, y := params.Args[0], params.Args[1]
	switch {
	case x.IsString() && y.IsString():
		return x.String() + y.String(), nil
	case x.IsList() && y.IsList():
		all := list{}
		for _, v := range []*exec.Value{x, y} {
			for i := range v.Len() {
				all = append(all, v.Index(i).Interface())
			}
		}
		return all, nil
	case x.IsInteger() && y.IsInteger():
		return x.Integer() + y.Integer(), nil
	case x.IsNumber() && y.IsNumber():
		return x.Float() + y.Float(), nil
	}
	return nil, fmt.Errorf("required two texts, lists or numbers for +, got %s and %s", kindOf(x), kindOf(y))
}

// kindOf is what a value is, for an error.
func kindOf(v *exec.Value) string {
	switch {
	case v.IsNil():
		return "nothing"
	case v.IsString():
		return "a text"
	case v.IsList():
		return "a list"
	case v.IsDict():
		return "an object"
	}
	return v.String()
}

func tooLong(most int) error { return fmt.Errorf("a value of more than %d bytes", most) }

// sizeOf is about the bytes of a value as text. More than most is an error, and so
// is a value that holds itself.
func sizeOf(v *exec.Value, most int) (int, error) {
	n, err := 0, error(nil)
	measure(v, 0, func(more int) bool {
		if n += more; n > most {
			err = tooLong(most)
		}
		return err == nil
	})
	return n, err
}

// measure calls add with the size of each part of a value until add says false,
// and reports whether it never did.
func measure(v *exec.Value, depth int, add func(int) bool) bool {
	switch {
	case v.IsNil() || v.IsError():
		return add(8)
	case v.IsString():
		return add(len(v.String()))
	case depth > maxDepth:
		return add(1 << 62) // it may hold itself
	case v.IsDict():
		for _, pair := range pairsOf(v) {
			if !add(8+len(pair.Key.String())) || !measure(pair.Value, depth+1, add) {
				return false
			}
		}
		return add(8)
	case v.IsList():
		for i := range v.Len() {
			if !add(16) || !measure(v.Index(i), depth+1, add) {
				return false
			}
		}
	}
	return add(8)
}

// grows bounds what a filter or method makes that can be as long as the product
// of what it gets: join, or center, where a number counts as itself.
func grows(in *exec.Value, params *exec.VarArgs) error {
	n, err := sizeOf(in, maxWork)
	args := 1
	for _, v := range given(params) {
		size, _ := sizeOf(v, maxWork)
		if v.IsInteger() {
			size = v.Integer()
		}
		args += min(max(size, 0), 2*maxWork)
	}
	if err == nil && args > maxWork/(n+1) {
		err = tooLong(maxWork)
	}
	return err
}

// wide finds a width in a format that no text needs.
var wide = regexp.MustCompile(`[0-9]{5}`)

// formats is grows for a format, whose numbers are printed.
func formats(in *exec.Value, params *exec.VarArgs) error {
	if wide.MatchString(in.String()) {
		return fmt.Errorf("a width of five digits or more")
	}
	return grows(in, &exec.VarArgs{Args: slices.DeleteFunc(given(params), (*exec.Value).IsInteger)})
}

// given are the values of a call, those with names last.
func given(params *exec.VarArgs) []*exec.Value {
	return slices.AppendSeq(slices.Clone(params.Args), maps.Values(params.KwArgs))
}

// boundedFilter is the engine's filter behind a check of what it gets.
func boundedFilter(name string, check func(*exec.Value, *exec.VarArgs) error) exec.FilterFunction {
	f, _ := builtins.Filters.Get(name)
	return func(e *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
		if err := check(in, params); err != nil {
			return exec.AsValue(fmt.Errorf("%s: %w", name, err))
		}
		return f(e, in, params)
	}
}

// boundedMethod is m behind a check of what it gets.
func boundedMethod[T any](name string, m exec.Method[T], check func(*exec.Value, *exec.VarArgs) error) exec.Method[T] {
	return func(self T, value *exec.Value, params *exec.VarArgs) (any, error) {
		if err := check(value, params); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return m(self, value, params)
	}
}
