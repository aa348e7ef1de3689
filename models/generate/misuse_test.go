// What a user can do wrong with a session and with a model of their own: every call
// gives an error that says so.
package generate_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
	"github.com/seafan/seafan/ops"
)

// other is a model with a Packed of its own.
type other struct {
	*models.Transformer
	packed func(b *graph.Builder, s models.Packed) *graph.Node
}

func (o other) Packed(b *graph.Builder, s models.Packed) *graph.Node { return o.packed(b, s) }

// boundless is a model that forgets its context.
type boundless struct{ *models.Transformer }

func (boundless) Limits() (vocab, context int, eos []int32) { return 256, 0, nil }

// TestMisuseOfASessionIsAnError: New says what is wrong with a model of one's own,
// and what is missing is named.
func TestMisuseOfASessionIsAnError(t *testing.T) {
	m := small(t, 3)
	const must = "generate: Packed of the model must give logits float32[1,256], for 1 requests and the vocabulary of Limits, got "
	for want, packed := range map[string]func(b *graph.Builder, s models.Packed) *graph.Node{
		must + "none (nil)":                       func(*graph.Builder, models.Packed) *graph.Node { return nil },
		must + "reshape float32[256,1]":           func(b *graph.Builder, s models.Packed) *graph.Node { return ops.Reshape(m.Packed(b, s), 256, 1) },
		"generate: x: invalid is no element type": func(b *graph.Builder, s models.Packed) *graph.Node { return b.Input("x", dtype.Invalid, 1) },
	} {
		for _, compute := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			_, err := generate.New(other{m, packed}, generate.Options{Compute: compute})
			require.EqualError(t, err, want)
		}
	}
	_, err := generate.New(boundless{m}, generate.Options{})
	require.EqualError(t, err, "generate: Limits of the model must give a vocabulary and a context of 1 or more, got 256 and 0")
	for _, none := range []generate.Model{nil, (*models.Transformer)(nil), &models.Transformer{}, (*models.Opened)(nil), &models.Opened{}, models.Opened{}, &models.Adapted{}} {
		_, err := generate.New(none, generate.Options{})
		require.EqualError(t, err, "generate: New: the model is missing (nil)")
	}
	_, err = generate.New(m, generate.Options{Compile: func(*graph.Plan) (graph.Executor, error) { return nil, nil }})
	require.EqualError(t, err, "generate: Options.Compile gave no executor (nil)")
	_, err = generate.Template(nil)
	require.EqualError(t, err, "generate: Template: the model is missing (nil)")

	long, err := models.New(models.Config{Type: "llama", Vocab: 8, Hidden: 8, FFN: 8, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 4, Context: 1 << 20, NormEps: 1e-6, RopeTheta: 1e4})
	require.NoError(t, err)
	require.NoError(t, long.Init(1))
	_, err = generate.New(long, generate.Options{Requests: 1 << 16})
	require.ErrorContains(t, err, "generate: graph: Native: a state (kv.0.k) of 1024.00GiB cannot be had: this machine has ")

	s, err := generate.New(m, generate.Options{Context: 20})
	require.NoError(t, err)
	for _, n := range []*generate.Snapshot{nil, {}} {
		_, err = s.Restore(n)
		require.EqualError(t, err, "generate: Restore: the snapshot is missing: Request.Snapshot makes one")
	}
	var none context.Context
	for want, text := range map[string]func() (generate.Token, error){
		"generate: the tokenizer is missing (nil or empty)": func() (tok generate.Token, err error) {
			for tok, err = range s.Text(context.Background(), &tokenizer.Tokenizer{}, []int32{1}, generate.TextOptions{Max: 1}) {
			}
			return tok, err
		},
		"generate: the context is missing (nil)": func() (tok generate.Token, err error) {
			for tok, err = range s.Text(none, tokenizer.Byte(), []int32{1}, generate.TextOptions{Max: 1}) {
			}
			return tok, err
		},
	} {
		_, err := text()
		require.EqualError(t, err, want)
	}
	require.Len(t, write(t, s, []int32{1}, generate.Sampling{}, 3), 3)

	r, err := s.Add([]int32{1}, generate.Sampling{})
	require.NoError(t, err)
	second, err := generate.New(m, generate.Options{})
	require.NoError(t, err)
	for _, foreign := range []*generate.Request{r, {}} {
		_, err = second.Follow(foreign, []int32{1, 2}, generate.Sampling{})
		require.EqualError(t, err, "generate: Follow: the request must be of the same session, it is of another")
	}
}
