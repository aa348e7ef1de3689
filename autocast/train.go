package autocast

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
)

// Trainable is a model that a trainer trains, as train.Model has it.
type Trainable interface {
	Params() *graph.Params
	Loss(b *graph.Builder, batch, context int, dropout float64, seed uint64) (loss, tokens *graph.Node)
	WriteFiles(dir string) error
}

// Model is a model whose loss goes through FP8: every graph that a trainer asks
// for, for training and for evaluation, comes with FP8 linears. The states of
// the recipe are among Params, beside the weights, and in every checkpoint.
type Model struct {
	Trainable
	options Options
	report  *Report
}

// Train wraps a model, of which FP8 must take a linear.
func Train(m Trainable, o Options) *Model { return &Model{Trainable: m, options: o} }

// Missing reports that there is no model in m; see graph.Missing.
func (m *Model) Missing() bool { return m == nil || graph.Missing(m.Trainable) }

var errNoModel = errors.New("autocast: the model is missing (nil)")

// Loss builds the loss of the model beside b and rebuilds it in b, which must be
// empty, with FP8 linears.
func (m *Model) Loss(b *graph.Builder, batch, context int, dropout float64, seed uint64) (loss, tokens *graph.Node) {
	if m.Missing() {
		return b.Fail(errNoModel), b.Fail(errNoModel)
	}
	src := b.Sibling()
	loss, tokens = m.Trainable.Loss(src, batch, context, dropout, seed)
	err := src.Err()
	if err == nil {
		if _, m.report, err = fp8(src, m.options, b); err == nil {
			err = m.report.some()
		}
		if err != nil {
			err = fmt.Errorf("autocast: FP8: %w", err)
		}
	}
	if err != nil {
		return b.Fail(err), b.Fail(err)
	}
	return b.Node(loss.Name()), b.Node(tokens.Name())
}

// OnDisk lists the tensors of a checkpoint that make up a parameter, as the model
// has it: itself, where the model does not say.
func (m *Model) OnDisk(param string) []string {
	if d, ok := m.Trainable.(interface{ OnDisk(param string) []string }); ok {
		return d.OnDisk(param)
	}
	return []string{param}
}

// Joined tells of a parameter that a checkpoint has in another order, as the model
// does.
func (m *Model) Joined(param string) (name string, shape []int, read func(rows func(dst []float32, first, n int) error) error, ok bool) {
	if j, is := m.Trainable.(interface {
		Joined(param string) (string, []int, func(rows func(dst []float32, first, n int) error) error, bool)
	}); is {
		return j.Joined(param)
	}
	return "", nil, nil, false
}

// Report is that of the last graph; nil before the first.
func (m *Model) Report() *Report { return m.report }

// Stats are the steps, maxima and counts of every operand so far.
func (m *Model) Stats() []ops.FP8Stat { return ops.FP8Stats(m.Params()) }

// Summary is the scaling of all operands in a line: for metrics.
type Summary struct {
	Skipped int        `json:"skipped"` // steps of an operand whose amax was 0, infinite or NaN, so far
	NaN     int        `json:"nan"`     // NaN elements, so far
	AmaxX   [2]float32 `json:"amax_x"`  // the smallest and the largest over the layers, of the last step
	AmaxW   [2]float32 `json:"amax_w"`
	AmaxG   [2]float32 `json:"amax_g"`
}

// Summary sums up Stats.
func (m *Model) Summary() Summary {
	var s Summary
	for _, st := range m.Stats() {
		s.Skipped += st.Skipped
		s.NaN += st.NaN
		r := &s.AmaxX
		switch st.State[len(st.State)-1] {
		case 'w':
			r = &s.AmaxW
		case 'g':
			r = &s.AmaxG
		}
		if r[0] == 0 || st.Amax < r[0] {
			r[0] = st.Amax
		}
		r[1] = max(r[1], st.Amax)
	}
	return s
}

// StatesName is the file of a checkpoint that holds the states of the recipe.
const StatesName = "fp8.json"

// stateFile is the form of that file. A float32 in JSON reads back as it was.
type stateFile struct {
	Recipe string               `json:"recipe"`
	States map[string][]float32 `json:"states"`
}

func (m *Model) recipe() (string, error) {
	if m.Missing() {
		return "", errors.New("the model is missing (nil)")
	}
	q, err := m.options.recipe()
	return q.String(), err
}

// states are the parameters that hold them.
func (m *Model) states() map[string]*graph.Param {
	states := map[string]*graph.Param{}
	for _, s := range m.Stats() {
		states[s.State] = m.Params().Get(s.State)
	}
	return states
}

// WriteFiles writes the model and the states of the recipe.
func (m *Model) WriteFiles(dir string) error {
	recipe, err := m.recipe()
	if err != nil {
		return fmt.Errorf("autocast: %w", err)
	}
	if err := m.Trainable.WriteFiles(dir); err != nil {
		return err
	}
	f := stateFile{recipe, map[string][]float32{}}
	for name, p := range m.states() {
		f.States[name] = graph.Data[float32](p.Tensor())
	}
	raw, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("autocast: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, StatesName), append(raw, '\n'), 0o666)
}

// CheckFiles is that of the model in m, if it has one.
func (m *Model) CheckFiles(dir string) error {
	if m.Missing() {
		return errNoModel
	}
	if c, ok := m.Trainable.(interface{ CheckFiles(dir string) error }); ok {
		return c.CheckFiles(dir)
	}
	return nil
}

// ReadFiles takes the states from a checkpoint that WriteFiles wrote, and has the
// model in m read its own, if it keeps any. The graphs must have been built, so
// that the states are known; all are checked before the first is read. A trainer
// calls it when it resumes.
func (m *Model) ReadFiles(dir string) error {
	path := filepath.Join(dir, StatesName)
	recipe, err := m.recipe()
	if err != nil {
		return fmt.Errorf("autocast: %w", err)
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("autocast: %s is missing: the checkpoint was written without FP8, the model has the recipe %s", path, recipe)
	}
	if err != nil {
		return fmt.Errorf("autocast: %w", err)
	}
	var f stateFile
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return fmt.Errorf("autocast: %s: %w", path, err)
	}
	if f.Recipe != recipe {
		return fmt.Errorf("autocast: %s: the states are of the recipe %s, the model has %s", path, f.Recipe, recipe)
	}
	states := m.states()
	for _, s := range m.Stats() {
		v, ok := f.States[s.State]
		if !ok {
			return fmt.Errorf("autocast: %s: the state %s is missing", path, s.State)
		}
		if want := states[s.State].Type.Size(); len(v) != want {
			return fmt.Errorf("autocast: %s: the state %s must have %d numbers, it has %d", path, s.State, want, len(v))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.States)) {
		if states[name] == nil {
			return fmt.Errorf("autocast: %s: the state %s is of no linear that the model has in FP8", path, name)
		}
	}
	if s, ok := m.Trainable.(interface{ ReadFiles(dir string) error }); ok {
		if err := s.ReadFiles(dir); err != nil {
			return err
		}
	}
	for name, p := range states {
		copy(graph.Data[float32](p.Tensor()), f.States[name])
		p.Touch()
	}
	return nil
}
