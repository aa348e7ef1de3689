// What is missing: every call on nothing gives its error.
package seafan_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/models/tokenizer/chat"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops"
)

// TestMissingReceiversAreErrors calls every method that can give an error on a nil
// pointer and on a zero value, with arguments that are missing too: none panics,
// and nil always gives an error. Methods without an error are Go's own to panic,
// and so is a nil Node: a Builder never returns one.
func TestMissingReceiversAreErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, typ := range []reflect.Type{
		reflect.TypeFor[autocast.Calibrator](), reflect.TypeFor[autocast.Model](),
		reflect.TypeFor[graph.Builder](), reflect.TypeFor[graph.Native](), reflect.TypeFor[graph.Param](),
		reflect.TypeFor[graph.Params](), reflect.TypeFor[graph.Plan](), reflect.TypeFor[graph.Tape](),
		reflect.TypeFor[models.Adapted](), reflect.TypeFor[models.Opened](), reflect.TypeFor[models.Transformer](),
		reflect.TypeFor[checkpoint.Checkpoint](), reflect.TypeFor[checkpoint.FP8Weight](), reflect.TypeFor[checkpoint.Tensor](),
		reflect.TypeFor[generate.Request](), reflect.TypeFor[generate.Session](),
		reflect.TypeFor[tokenizer.Tokenizer](), reflect.TypeFor[chat.Template](),
		reflect.TypeFor[train.Documents](), reflect.TypeFor[train.Folder](), reflect.TypeFor[train.Tokens](),
		reflect.TypeFor[train.Trainer](), reflect.TypeFor[train.Windows](),
	} {
		called := 0
		for _, receiver := range []reflect.Value{reflect.Zero(reflect.PointerTo(typ)), reflect.New(typ)} {
			for i := range receiver.NumMethod() {
				name, m := receiver.Type().Method(i).Name, receiver.Method(i)
				out := m.Type().NumOut()
				if _, promoted := typ.MethodByName(name); promoted && receiver.IsNil() {
					continue // of what is embedded: the language finds it through the pointer
				}
				if out == 0 || m.Type().Out(out-1) != reflect.TypeFor[error]() {
					continue
				}
				called++
				require.NotPanics(t, func() {
					results := call(m)
					require.False(t, receiver.IsNil() && results[out-1].IsNil(), "%s.%s of nil gave no error", typ, name)
				}, "%s.%s, nil: %v", typ, name, receiver.IsNil())
			}
		}
		require.NotZero(t, called, typ)
	}
	for i, f := range []any{
		graph.Recompute, graph.Rewrite, graph.RewriteInto, graph.RewriteOutputs, graph.Verify, ops.Share, ops.NewRotaryTable,
		ops.NewFusedDecode, ops.NewKDAWeights, ops.NewKDAState,
		autocast.FP8, autocast.BF16, autocast.BF16x6, autocast.Compare, autocast.FP8Inference, autocast.NewCalibrator, autocast.ParseCalibration, autocast.StoreFP8,
		models.ReadConfig, models.ParseConfig, models.KimiLinear, models.Load, models.AdapterBase, models.Open, models.Tokenizer, models.Pack,
		models.TokenizerFiles, models.New, checkpoint.Open, checkpoint.OpenReaderAt, checkpoint.WriteDir, checkpoint.Save,
		checkpoint.Read[float32], generate.New, generate.Template, tokenizer.FromGGUF, tokenizer.FromJSON, tokenizer.Open,
		tokenizer.FromSentencePiece, tokenizer.Train, chat.Open, train.Latest, train.NewDocuments, train.NewWindows, train.Open, train.New,
		train.ReplaceFile,
	} {
		require.NotPanics(t, func() {
			results := call(reflect.ValueOf(f))
			require.False(t, results[len(results)-1].IsNil(), "function %d gave no error", i)
		}, i)
	}
}

// call gives f a context, a name and, else, zero values; one of them to a variadic f.
func call(f reflect.Value) []reflect.Value {
	var in []reflect.Value
	for i := range f.Type().NumIn() {
		a := f.Type().In(i)
		switch {
		case a == reflect.TypeFor[context.Context]():
			in = append(in, reflect.ValueOf(context.Background()))
		case a.Kind() == reflect.String:
			in = append(in, reflect.ValueOf("a"))
		case f.Type().IsVariadic() && i == f.Type().NumIn()-1:
			in = append(in, reflect.Zero(a.Elem()))
		default:
			in = append(in, reflect.Zero(a))
		}
	}
	return f.Call(in)
}
