// What a user can do wrong with a model, data and settings of their own: New
// says so, or the first save does, before any step is lost.
package train

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
)

// hooked is a bigram with parts of its own.
type hooked struct {
	*bigram
	loss  func(b *graph.Builder, batch, context int) (loss, tokens *graph.Node)
	write func(dir string) error
}

func (w *hooked) Loss(b *graph.Builder, batch, context int, _ float64, _ uint64) (loss, tokens *graph.Node) {
	if w.loss != nil {
		return w.loss(b, batch, context)
	}
	return w.bigram.Loss(b, batch, context, 0, 0)
}

func (w *hooked) WriteFiles(dir string) error {
	if w.write != nil {
		return w.write(dir)
	}
	return w.bigram.WriteFiles(dir)
}

func TestMisuseOfNewIsAnError(t *testing.T) {
	o := testOptions(1, 8)
	for want, try := range map[string]func() (*Trainer, error){
		"train: New: the model is missing (nil)":                         func() (*Trainer, error) { return New(nil, pairRows(), o) },
		"train: New: the data are missing (nil)":                         func() (*Trainer, error) { return New(newBigram(t, 2), nil, o) },
		"train: New: the model has no Params (nil)":                      func() (*Trainer, error) { return New(&bigram{vocab: 2}, pairRows(), o) },
		"train: New: setting 1 is missing (nil)":                         func() (*Trainer, error) { return New(newBigram(t, 2), pairRows(), o, Log(nil), nil) },
		"train: In: the folder is missing (nil): see the error of Claim": func() (*Trainer, error) { return New(newBigram(t, 2), pairRows(), o, In(nil)) },
		"train: New: the data must have a Digest, by which a run in a folder is resumed, got an empty one": func() (*Trainer, error) {
			return New(newBigram(t, 2), &rows{context: 8, tokens: pairRows().tokens, labels: pairRows().labels}, o, Dir(t.TempDir()))
		},
		"train: Dir: the folder of the run must have a name, got an empty one": func() (*Trainer, error) { return New(newBigram(t, 2), pairRows(), o, Dir("")) },
	} {
		_, err := try()
		require.EqualError(t, err, want)
	}
	for _, none := range []Model{autocast.Train(nil, autocast.Options{}), autocast.Train((*bigram)(nil), autocast.Options{}), &autocast.Model{}, (*models.Opened)(nil), &models.Opened{}, models.Opened{}, &models.Adapted{}, autocast.Train(&models.Transformer{}, autocast.Options{})} {
		_, err := New(none, pairRows(), o)
		require.EqualError(t, err, "train: New: the model is missing (nil)")
	}
	_, err := New(newBigram(t, 2), (*Windows)(nil), o)
	require.EqualError(t, err, "train: New: the data are missing (nil)")

	tok := openTokens(t, OpenOptions{}, write(t, filepath.Join(t.TempDir(), "text"), make([]byte, 100)))
	w, err := NewWindows(tok, 2, WindowOptions{Context: o.Context, Order: Random})
	require.NoError(t, err)
	require.NoError(t, tok.Close())
	for _, settings := range [][]Setting{nil, {Dir(t.TempDir())}} {
		_, err = New(newBigram(t, 2), w, o, settings...)
		require.EqualError(t, err, "train: the first micro-batch: "+errNoTokens.Error())
	}
	_, err = NewWindows(tok, 2, WindowOptions{Context: o.Context, Order: Random})
	require.Equal(t, errNoTokens, err)
}

func TestMisuseOfLossIsAnError(t *testing.T) {
	const must = "train: Loss of the model must give the loss and the number of labels that count, float32 scalars of its graph, got as number "
	good := newBigram(t, 26)
	part := func(i int, of func(b *graph.Builder) *graph.Node) func(b *graph.Builder, batch, context int) (loss, tokens *graph.Node) {
		return func(b *graph.Builder, batch, context int) (*graph.Node, *graph.Node) {
			r := [2]*graph.Node{}
			r[0], r[1] = good.Loss(b, batch, context, 0, 0)
			r[i] = of(b)
			return r[0], r[1]
		}
	}
	for want, loss := range map[string]func(b *graph.Builder, batch, context int) (loss, tokens *graph.Node){
		must + "1 none (nil)":           part(0, func(*graph.Builder) *graph.Node { return nil }),
		must + "2 none (nil)":           part(1, func(*graph.Builder) *graph.Node { return nil }),
		must + "1 table float32[26,26]": part(0, func(b *graph.Builder) *graph.Node { return b.Node("table") }),
		must + "2 tokens int32[8,8]":    part(1, func(b *graph.Builder) *graph.Node { return b.Node("tokens") }),
		must + "2 n float32[]":          part(1, func(b *graph.Builder) *graph.Node { return graph.New().Const("n", 1) }),
		"train: Loss of the model must read the input tokens int32[8,8], it has none of that name": func(b *graph.Builder, batch, context int) (*graph.Node, *graph.Node) {
			labels := b.Input("labels", dtype.Int32, batch, context)
			return ops.CrossEntropy(ops.Embedding(labels, b.Param("table", 26, 26)), labels)
		},
		"train: Loss of the model may read labels, step, tokens (int32[8,8], step int64[1]), not the input ids int32[8,8]": func(b *graph.Builder, batch, context int) (*graph.Node, *graph.Node) {
			r := graph.ApplyAll("bigram", bigramOp{}, b.Param("table", 26, 26), b.Param("bias", 26),
				b.Input("ids", dtype.Int32, batch, context), b.Input("labels", dtype.Int32, batch, context))
			return r[0], r[1]
		},
		"train: Loss of the model may read labels, step, tokens (int32[8,8], step int64[1]), not the input mask float32[8,8,26]": func(b *graph.Builder, batch, context int) (*graph.Node, *graph.Node) {
			logits := ops.Add(ops.Embedding(b.Input("tokens", dtype.Int32, batch, context), b.Param("table", 26, 26)),
				b.Input("mask", dtype.Float32, batch, context, 26))
			return ops.CrossEntropy(logits, b.Input("labels", dtype.Int32, batch, context))
		},
	} {
		_, err := New(&hooked{bigram: good, loss: loss}, newRun(t, testOptions(8, 8), Random).data, testOptions(8, 8))
		require.EqualError(t, err, want)
	}

	o, err := models.Open("../testdata/golden/llama_untied_bias")
	require.NoError(t, err)
	defer o.Close()
	_, err = New(o, pairRows(), testOptions(1, 8))
	require.ErrorContains(t, err, "train: the model has no weight to train, ")
	require.ErrorContains(t, err, " are frozen: models.Open freezes all unless models.Widen is among its options, Adapt and OpenAdapter all but the adapters of the model that they return")
}

// TestAModelThatCannotResumeIsRefusedAtOnce: the save before the first step
// wants what Resume would.
func TestAModelThatCannotResumeIsRefusedAtOnce(t *testing.T) {
	o := testOptions(2, 8)
	for want, write := range map[string]func(m *bigram, dir string) error{
		"WriteFiles of the model: checkpoint: stat ": func(*bigram, string) error { return nil },
		"WriteFiles of the model: model.safetensors: must hold the tensor bias float32[26], it does not": func(m *bigram, dir string) error {
			only := &bigram{params: graph.NewParams()}
			p, err := only.params.Add("table", graph.T(dtype.Float32, 26, 26), false)
			p.Tensor()
			require.NoError(t, err)
			return only.WriteFiles(dir)
		},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		r := newRun(t, o, Random, Dir(dir))
		r.Trainer.model = &hooked{bigram: r.model, write: func(to string) error { return write(r.model, to) }}
		_, err := r.Run(context.Background())
		require.ErrorContains(t, err, "train: checkpoint of step 0: ")
		require.ErrorContains(t, err, want)
		require.Zero(t, r.Step())
		_, err = os.Stat(dir)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}

func TestAFailedEvaluationSaysWhen(t *testing.T) {
	d := pairRows()
	held := make([]int32, d.context)
	held[3] = 9
	d.tokens, d.labels, d.held = append(d.tokens, held), append(d.labels, make([]int32, d.context)), 1
	o := testOptions(1, d.context)
	o.EvalEvery = 3
	tr, err := New(newBigram(t, 2), d, o)
	require.NoError(t, err)
	_, err = tr.Run(context.Background())
	require.ErrorContains(t, err, "train: evaluation after step 3: ")
}

func TestMisuseOfATrainerIsAnError(t *testing.T) {
	var tr *run
	var second, third error
	tr = newRun(t, testOptions(2, 8), Random, Each(func(Metric) {
		_, second = tr.Run(context.Background())
		third = tr.Resume()
	}))
	var none context.Context
	_, err := tr.Run(none)
	require.EqualError(t, err, "train: Run: the context is missing (nil)")
	_, err = tr.Run(context.Background())
	require.NoError(t, err)
	require.EqualError(t, second, "train: Run: the trainer is running already: neither the function of Each nor another goroutine may call Run")
	require.EqualError(t, third, "train: Resume: the trainer is running already: neither the function of Each nor another goroutine may call Resume")
	err = tr.Resume()
	require.ErrorIs(t, err, ErrNoCheckpoint)
	require.EqualError(t, err, "train: resume: the trainer has no folder, New takes it by Dir or In: no checkpoint")
}
