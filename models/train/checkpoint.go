// Checkpoints: written whole or not at all, found again by their number.

package train

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
)

// The files of a checkpoint folder, beside those of the model.
const (
	weightsName   = "model.safetensors"
	optimizerName = "optimizer.safetensors"
	trainerName   = "trainer.json"
)

// LastName and BestName are the links to the newest and the best checkpoint.
const (
	LastName = "last"
	BestName = "best"
)

// record is trainer.json.
type record struct {
	Format  int     `json:"format"`
	Options Options `json:"options"`
	Data    string  `json:"data"`            // Data.Digest
	Files   sums    `json:"files,omitempty"` // of the others in the folder
	State   state   `json:"state"`
}

const recordFormat = 1

// ErrNoCheckpoint is in the error of Resume when the folder has none.
var ErrNoCheckpoint = errors.New("no checkpoint")

var stepDir = regexp.MustCompile(`^step-([0-9]{8,})$`)

func stepName(step int) string { return fmt.Sprintf("step-%08d", step) }

// Latest is the newest checkpoint of the folder of a run.
func Latest(dir string) (string, error) {
	steps, err := listSteps(dir)
	if err != nil {
		return "", err
	}
	if len(steps) == 0 {
		return "", fmt.Errorf("%s: %w", dir, ErrNoCheckpoint)
	}
	return filepath.Join(dir, stepName(steps[len(steps)-1])), nil
}

// listSteps lists the steps of the checkpoints of a folder, ascending.
func listSteps(dir string) ([]int, error) {
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var steps []int
	for _, f := range list {
		if m := stepDir.FindStringSubmatch(f.Name()); m != nil && f.IsDir() {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Join(dir, f.Name()), err)
			}
			steps = append(steps, n)
		}
	}
	sort.Ints(steps)
	return steps, nil
}

// take makes this Trainer the only one that writes to the folder, until
// release.
func (t *Trainer) take() (err error) {
	switch {
	case t.claimed:
		return t.folder.lend(t)
	case t.folder != nil:
		return t.folder.held()
	}
	t.folder, err = Claim(t.dir)
	return err
}

// release ends take.
func (t *Trainer) release() error {
	switch {
	case t.folder == nil:
		return nil
	case t.claimed:
		t.folder.giveBack(t)
		return nil
	}
	err := t.folder.Close()
	t.folder = nil
	return err
}

// open makes the folder ready for Run.
func (t *Trainer) open() error {
	if t.dir == "" {
		return nil
	}
	if err := t.take(); err != nil {
		return fmt.Errorf("train: %w", err)
	}
	if t.saved == "" {
		if err := t.folder.Fresh(); err != nil {
			return fmt.Errorf("train: %w", err)
		}
		// A run that is killed in its first steps resumes too. The checkpoint
		// comes before any other file: without one, a folder is not a run.
		if err := t.save(); err != nil {
			return err
		}
	}
	var err error
	if t.file, err = openMetrics(t.dir, t.state.Step); err != nil {
		return fmt.Errorf("train: %w", err)
	}
	return nil
}

// closeFiles ends what open began.
func (t *Trainer) closeFiles() error {
	var err error
	if t.file != nil {
		err = t.file.close()
		t.file = nil
		if t.state.Step > 0 {
			err = errors.Join(err, WriteLosses(t.dir))
		}
	}
	return joined(err, t.release())
}

// save writes a checkpoint of the present step, and removes those that Keep
// does not keep.
func (t *Trainer) save() error {
	if t.dir == "" || !t.dirty {
		return nil
	}
	if t.file != nil {
		if err := t.file.sync(); err != nil {
			return err
		}
	}
	dir := filepath.Join(t.dir, stepName(t.state.Step))
	if err := checkpoint.WriteDir(dir, t.writeTo); err != nil {
		return fmt.Errorf("train: checkpoint of step %d: %w", t.state.Step, err)
	}
	t.saved, t.dirty = dir, false
	t.link(LastName, t.state.Step)
	if t.state.Best != nil {
		t.link(BestName, t.state.BestAt)
	}
	t.log.Info("checkpoint saved", "dir", dir)
	return t.prune()
}

func (t *Trainer) writeTo(tmp string) error {
	if err := t.model.WriteFiles(tmp); err != nil {
		return err
	}
	if err := t.resumable(tmp); err != nil {
		return fmt.Errorf("WriteFiles of the model: %w", err)
	}
	if err := checkpoint.Save(filepath.Join(tmp, optimizerName), slices.Values(t.adam.entries()), checkpoint.SaveOptions{}); err != nil {
		return err
	}
	files, err := sumFiles(tmp)
	if err != nil {
		return err
	}
	r := record{recordFormat, t.opts, t.data.Digest(), files, t.state}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(tmp, trainerName), append(text, '\n'), 0o666)
}

// resumable requires the model to have written what Resume will read.
func (t *Trainer) resumable(dir string) error {
	c, err := checkpoint.Open(filepath.Join(dir, weightsName))
	if err != nil {
		return err
	}
	if err := joined(fits(c, t.weights()), c.Close()); err != nil {
		return fmt.Errorf("%s: %w", weightsName, err)
	}
	return nil
}

// link points a name at a checkpoint. It is for people and for other programs;
// where the system has no links, the message of the logger is all there is.
func (t *Trainer) link(name string, step int) {
	path, tmp := filepath.Join(t.dir, name), ""
	now, err := os.Readlink(path)
	switch {
	case err == nil && now == stepName(step):
		return
	case err == nil, errors.Is(err, fs.ErrNotExist):
		tmp = temporary(path)
		err = os.Symlink(stepName(step), tmp)
	default:
		err = fmt.Errorf("it must be a link, or absent: %w", err)
	}
	if err == nil {
		if err = os.Rename(tmp, path); err != nil {
			err = errors.Join(err, os.Remove(tmp))
		}
	}
	if err != nil {
		t.log.Warn("no link to the checkpoint", "name", path, "checkpoint", stepName(step), "error", err)
	}
}

// prune removes all but the Keep newest checkpoints and the best. A folder is
// renamed before it is removed, so that none is ever there in part.
func (t *Trainer) prune() error {
	steps, err := listSteps(t.dir)
	if err != nil {
		return err
	}
	for _, s := range steps[:max(0, len(steps)-t.opts.Keep)] {
		if t.state.Best != nil && s == t.state.BestAt {
			continue
		}
		dir := filepath.Join(t.dir, stepName(s))
		gone := dir + ".tmp-0000000000000000" // a name that RecoverDir removes
		if err := os.Rename(dir, gone); err != nil {
			return err
		}
		if err := os.RemoveAll(gone); err != nil {
			return err
		}
	}
	return nil
}

// Resume takes parameters, moments and the place in the data from the newest
// checkpoint of Dir. The model must have the shape of the one that was saved, a
// Checker more than that (those of package models its Config, and under adapters
// their scale and the weights of the base), and Options and data must be those of
// the run, but for Steps and for what does not decide the parameters.
func (t *Trainer) Resume() error {
	if err := t.usable(); err != nil {
		return err
	}
	if err := t.alone("Resume"); err != nil {
		return err
	}
	defer t.running.Store(false)
	if err := t.resume(); err != nil {
		return fmt.Errorf("train: resume: %w", joined(err, t.release()))
	}
	t.log.Info("resumed", "dir", t.saved, "step", t.state.Step)
	return nil
}

func (t *Trainer) resume() error {
	if t.dir == "" {
		return fmt.Errorf("the trainer has no folder, New takes it by Dir or In: %w", ErrNoCheckpoint)
	}
	if _, err := os.Stat(t.dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", t.dir, ErrNoCheckpoint)
	}
	if err := t.take(); err != nil {
		return err
	}
	dir, err := Latest(t.dir)
	if err != nil {
		return err
	}
	r, err := readRecord(filepath.Join(dir, trainerName))
	if err != nil {
		return t.damaged(dir, err)
	}
	if name := stepName(r.State.Step); name != filepath.Base(dir) {
		return fmt.Errorf("%s: state.step must be that of the folder, got %d", filepath.Join(dir, trainerName), r.State.Step)
	}
	o := t.opts
	if t.choose {
		o.Compute = cmp.Or(r.Options.Compute, F32)
	}
	if field, was, is := o.differs(r.Options); field != "" {
		return fmt.Errorf("%s: option %s must be %s as in the run so far, got %s", dir, field, was, is)
	}
	if d := t.data.Digest(); d != r.Data {
		return fmt.Errorf("%s: the data must be that of the run so far (digest %s), these are of another text, order, context or split (digest %s)", dir, r.Data, d)
	}
	if _, cast := r.Files[autocast.StatesName]; cast {
		if _, ok := t.model.(Stateful); !ok {
			return fmt.Errorf("%s: the model must multiply in FP8 as in the run so far (autocast.Train), it has no states for %s", dir, autocast.StatesName)
		}
	}
	if m, ok := t.model.(Checker); ok {
		if err := m.CheckFiles(dir); err != nil {
			if changed := r.Files.check(dir); changed != nil {
				return t.damaged(dir, changed)
			}
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	if t.opts.Steps < r.State.Step {
		return fmt.Errorf("%s: option steps must be at least %d, the steps done so far, got %d", dir, r.State.Step, t.opts.Steps)
	}
	if err := checkMetrics(t.dir, r.State.Step); err != nil {
		return err
	}
	if o.Compute != t.opts.Compute {
		if err := t.build(o.Compute); err != nil {
			return err
		}
	}
	var changed error // in a file since it was written
	// The moments come first: they are checked as they are read, with names.
	if err := restore(
		contents{filepath.Join(dir, optimizerName), t.adam.slots(), nil},
		contents{filepath.Join(dir, weightsName), t.weights(), func() error { changed = r.Files.check(dir); return changed }},
	); err != nil {
		t.adam.clear()
		if bad := (*checkpoint.FormatError)(nil); changed != nil || errors.As(err, &bad) || errors.Is(err, fs.ErrNotExist) {
			return t.damaged(dir, err)
		}
		return err
	}
	for _, p := range t.model.Params().All() {
		p.Touch()
	}
	if m, ok := t.model.(Stateful); ok {
		if err := m.ReadFiles(dir); err != nil {
			return err
		}
	}
	t.state, t.saved, t.dirty = r.State, dir, false
	return nil
}

// damaged adds to what is wrong with the newest checkpoint how to go on from the
// one before it, if there is one.
func (t *Trainer) damaged(dir string, err error) error {
	if steps, listed := listSteps(t.dir); listed == nil && len(steps) > 1 {
		return fmt.Errorf("%w; move %s away to go on from %s", err, dir, stepName(steps[len(steps)-2]))
	}
	return err
}

func readRecord(path string) (*record, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r record
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: must end after one object", path)
	}
	fail := func(field, need string, got any) (*record, error) {
		return nil, fmt.Errorf("%s: %s must be %s, got %v", path, field, need, got)
	}
	s := r.State
	switch {
	case r.Format != recordFormat:
		return fail("format", strconv.Itoa(recordFormat), r.Format)
	case r.Data == "":
		return fail("data", "a digest", `""`)
	case s.Step < 0:
		return fail("state.step", "0 or more", s.Step)
	case s.Updates < 0 || s.Skipped < 0 || s.Updates+s.Skipped != s.Step:
		return fail("state.updates and state.skipped", fmt.Sprintf("0 or more and together step, %d", s.Step), fmt.Sprintf("%d and %d", s.Updates, s.Skipped))
	case s.Tokens < 0:
		return fail("state.tokens", "0 or more", s.Tokens)
	case s.Best != nil && (s.BestAt < 0 || s.BestAt > s.Step):
		return fail("state.best_step", fmt.Sprintf("0 to %d", s.Step), s.BestAt)
	case s.Stale < 0:
		return fail("state.stale", "0 or more", s.Stale)
	}
	if err := r.Options.Check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}

// slot is a place for a tensor of a checkpoint.
type slot struct {
	name string
	typ  graph.Type
	load func(t *checkpoint.Tensor) error
	// frozen weights may be missing: the base of adapters is not saved with them.
	frozen bool
}

// contents are the tensors that a file must hold.
type contents struct {
	path   string
	slots  []slot
	before func() error // reading them; may be nil
}

// stacker is a model that saves some parameters in parts, along their first
// dimension.
type stacker interface{ OnDisk(param string) []string }

// joiner is a model that saves some parameters in another order, several in one
// tensor.
type joiner interface {
	Joined(param string) (name string, shape []int, read func(rows func(dst []float32, first, n int) error) error, ok bool)
}

func (t *Trainer) weights() []slot {
	var s []slot
	for _, p := range t.model.Params().All() {
		if p.State {
			continue
		}
		names, typ := []string{p.Name}, p.Type
		if m, ok := t.model.(joiner); ok {
			if name, shape, read, ok := m.Joined(p.Name); ok {
				s = append(s, slot{name, graph.T(typ.DType, shape...), func(t *checkpoint.Tensor) error { return read(t.Float32Rows) }, p.Frozen})
				continue
			}
		}
		if m, ok := t.model.(stacker); ok {
			names = m.OnDisk(p.Name)
		}
		if len(names) > 1 {
			typ.Shape = typ.Shape[1:]
		}
		for i, name := range names {
			s = append(s, slot{name, typ, func(t *checkpoint.Tensor) error {
				return t.Raw(p.Tensor().Bytes()[i*typ.Bytes() : (i+1)*typ.Bytes()])
			}, p.Frozen})
		}
	}
	return s
}

// restore fills the slots from the safetensors files of a checkpoint. All
// tensors have their types checked before the first is read.
func restore(files ...contents) error {
	var loads []func() error
	for _, f := range files {
		c, err := checkpoint.Open(f.path)
		if err != nil {
			return err
		}
		defer c.Close() // everything is copied
		if err := fits(c, f.slots); err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		if f.before != nil {
			loads = append(loads, f.before)
		}
		for _, s := range f.slots {
			if t, ok := c.Lookup(s.name); ok {
				loads = append(loads, func() error { return s.load(t) })
			}
		}
	}
	for _, load := range loads {
		if err := load(); err != nil {
			return err
		}
	}
	return nil
}

// fits requires a checkpoint to hold these tensors and no others.
func fits(c *checkpoint.Checkpoint, slots []slot) error {
	known := map[string]bool{}
	for _, s := range slots {
		known[s.name] = true
		t, ok := c.Lookup(s.name)
		if !ok && s.frozen {
			continue
		}
		if !ok {
			return fmt.Errorf("must hold the tensor %s %s, it does not", s.name, s.typ)
		}
		if !slices.Equal(t.Shape(), s.typ.Shape) || t.DType() != s.typ.DType {
			return fmt.Errorf("%s is %s in the checkpoint, %s in the model", s.name, graph.T(t.DType(), t.Shape()...), s.typ)
		}
	}
	for _, t := range c.Tensors() {
		if !known[t.Name()] {
			return fmt.Errorf("holds %s, which the model does not have", t.Name())
		}
	}
	return nil
}
