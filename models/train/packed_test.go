package train_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// packedData are about 60 documents of 1 to 88 bytes.
func packedData(t testing.TB, o train.Options, order train.Order) *train.Documents {
	t.Helper()
	var text []byte
	for d := range 60 {
		for i := range d * d * 7 % 87 {
			text = append(text, "the sea fan grows in the sea "[(d+i*i/7)%29])
		}
		text = append(text, "\n\n"...)
	}
	path := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(path, text, 0o666))
	tok, err := train.Open(train.OpenOptions{Separator: "\n\n"}, path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	require.Greater(t, tok.Documents(), 50)
	d, err := train.NewDocuments(tok, 256, train.WindowOptions{Context: o.Context, Seed: o.Seed, Order: order, Validation: 0.1})
	require.NoError(t, err)
	require.Greater(t, d.Sequences(), 2)
	return d
}

// newPacked is a run of a real decoder on packed documents, or on other data.
func newPacked(t testing.TB, o train.Options, data train.Data, settings ...train.Setting) (*train.Trainer, *models.Transformer) {
	t.Helper()
	m, err := models.New(models.Config{
		Type: "llama", Vocab: 256, Hidden: 24, FFN: 40, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6,
		Context: 64, NormEps: 1e-5, RopeTheta: 1e4,
	})
	require.NoError(t, err)
	require.NoError(t, m.Init(o.Seed))
	tr, err := train.New(m, data, o, settings...)
	require.NoError(t, err)
	return tr, m
}

func TestPackedWorkersAndSeeds(t *testing.T) {
	defer native.SetWorkers(0)
	o := transformerOptions()
	var results map[string][]float32
	var losses []float64
	for _, workers := range []int{1, 2, 7} {
		native.SetWorkers(workers)
		var seen []float64
		tr, m := newPacked(t, o, packedData(t, o, train.Epochs), train.Each(func(x train.Metric) { seen = append(seen, x.Loss) }))
		_, err := tr.Run(context.Background())
		require.NoError(t, err)
		if results == nil {
			results, losses = bits(m), seen
			require.Less(t, losses[29], losses[0]-1, "it learns")
		}
		require.Equal(t, losses, seen, "%d workers", workers)
		require.Equal(t, results, bits(m), "%d workers", workers)
	}
	o.Seed = 1
	tr, m := newPacked(t, o, packedData(t, o, train.Epochs))
	_, err := tr.Run(context.Background())
	require.NoError(t, err)
	require.NotEqual(t, results, bits(m))
}

func TestPackedRunResumesInTheMiddleOfAnEpoch(t *testing.T) {
	for _, order := range []train.Order{train.Epochs, train.Random} {
		o := transformerOptions() // with dropout; an epoch of some 70 rows is 12 steps
		o.Accumulate = 2
		straight, want := newPacked(t, o, packedData(t, o, order))
		sum, err := straight.Run(context.Background())
		require.NoError(t, err)
		dir := t.TempDir()
		ctx, stop := context.WithCancel(context.Background())
		part, _ := newPacked(t, o, packedData(t, o, order), train.Dir(dir), train.Each(func(m train.Metric) {
			if m.Step == 17 {
				stop()
			}
		}))
		_, err = part.Run(ctx)
		require.ErrorIs(t, err, context.Canceled)
		data := packedData(t, o, order)
		other, _ := newPacked(t, o, data.Windows, train.Dir(dir))
		require.ErrorContains(t, other.Resume(), "the data must be that of the run so far", "not packed")
		rest, got := newPacked(t, o, data, train.Dir(dir))
		require.NoError(t, rest.Resume())
		again, err := rest.Run(context.Background())
		require.NoError(t, err)
		require.Equal(t, bits(want), bits(got))
		require.Equal(t, sum.BestLoss, again.BestLoss)
		require.Equal(t, sum.Tokens, again.Tokens)
	}
}

// apart holds the sequences of packed data in rows of their own, filled up with
// labels that do not count: what packing must not change.
type apart struct {
	context              int
	rows, held           [][2][]int32
	counted, heldCounted int
}

func newApart(t *testing.T, d *train.Documents, context, batch int) *apart {
	a := &apart{context: context}
	cut := func(tokens, labels, positions []int32) (rows [][2][]int32, counted int) {
		for i, p := range positions {
			if p == 0 {
				row := [2][]int32{make([]int32, context), make([]int32, context)}
				for k := range row[1] {
					row[1][k] = ops.IgnoreIndex
				}
				rows = append(rows, row)
			}
			row := rows[len(rows)-1]
			row[0][p], row[1][p] = tokens[i], labels[i]
			if labels[i] != ops.IgnoreIndex {
				counted++
			}
		}
		return rows, counted
	}
	tokens, labels, positions := make([]int32, batch*context), make([]int32, batch*context), make([]int32, batch*context)
	require.NoError(t, d.Batch(0, batch, tokens, labels))
	require.NoError(t, d.Positions(0, batch, positions))
	a.rows, a.counted = cut(tokens, labels, positions)
	for i := range d.Held() {
		require.NoError(t, d.HeldRow(i, tokens[:context], labels[:context]))
		require.NoError(t, d.HeldPositions(i, positions[:context]))
		rows, n := cut(tokens[:context], labels[:context], positions[:context])
		a.held, a.heldCounted = append(a.held, rows...), a.heldCounted+n
	}
	return a
}

func (a *apart) Batch(i int64, n int, tokens, labels []int32) error {
	for r, row := range a.rows[:n] {
		copy(tokens[r*a.context:], row[0])
		copy(labels[r*a.context:], row[1])
	}
	return nil
}
func (a *apart) Held() int { return len(a.held) }
func (a *apart) HeldRow(i int, tokens, labels []int32) error {
	copy(tokens, a.held[i][0])
	copy(labels, a.held[i][1])
	return nil
}
func (a *apart) Digest() string { return "apart" }

// TestPackedStepEqualsDocumentsApart trains one step on packed rows and on the
// same sequences in rows of their own, on one graph without packing.
func TestPackedStepEqualsDocumentsApart(t *testing.T) {
	o := transformerOptions()
	o.Steps, o.Dropout, o.Context = 1, 0, 40
	step := func(o train.Options, data train.Data) (x train.Metric, w map[string][]float32) {
		tr, m := newPacked(t, o, data, train.Each(func(m train.Metric) { x = m }))
		sum, err := tr.Run(context.Background())
		require.NoError(t, err)
		x.ValLoss = sum.ValLoss
		return x, bits(m)
	}
	data := packedData(t, o, train.Epochs)
	a := newApart(t, data, o.Context, o.Batch)
	got, weights := step(o, data)
	require.EqualValues(t, a.counted, got.Tokens)
	require.Less(t, got.Tokens, int64(o.Batch*o.Context), "some labels do not count")
	o.Batch = len(a.rows)
	require.Greater(t, o.Batch, 5, "sequences in 3 rows")
	want, wantWeights := step(o, a)
	require.Equal(t, want.Tokens, got.Tokens)
	// The sums run over the same terms with zeros between them, in other blocks
	// of the products: measured 0, 2e-12 and 0.
	t.Logf("loss %.2g, norm %.2g, held out %.2g apart", math.Abs(want.Loss/got.Loss-1), math.Abs(want.GradNorm/got.GradNorm-1), math.Abs(*want.ValLoss / *got.ValLoss - 1))
	require.InEpsilon(t, want.Loss, got.Loss, 5e-7)
	require.InEpsilon(t, want.GradNorm, got.GradNorm, 2e-6)
	require.InEpsilon(t, *want.ValLoss, *got.ValLoss, 2e-6)
	o.Batch = transformerOptions().Batch
	whole, _ := step(o, data.Windows)
	require.Greater(t, math.Abs(whole.GradNorm/got.GradNorm-1), 1e-4, "rows as one sequence are something else")
	for name, w := range wantWeights {
		require.InDeltaSlice(t, w, weights[name], 1e-4, name) // AdamW's first step is the sign of the gradient
	}
}

// TestLossOfARowIsThatOfOneSequence: Loss takes rows as they are.
func TestLossOfARowIsThatOfOneSequence(t *testing.T) {
	o := transformerOptions()
	data := packedData(t, o, train.Epochs)
	packed, _ := newPacked(t, o, data)
	plain, _ := newPacked(t, o, data.Windows)
	tokens, labels := make([]int32, o.Context), make([]int32, o.Context)
	require.NoError(t, data.Batch(0, 1, tokens, labels))
	a, n, err := packed.Loss(context.Background(), tokens, labels)
	require.NoError(t, err)
	b, m, err := plain.Loss(context.Background(), tokens, labels)
	require.NoError(t, err)
	require.Equal(t, b, a)
	require.Equal(t, m, n)
}
