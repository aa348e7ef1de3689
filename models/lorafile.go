// Adapters as PEFT folders: adapter_config.json and adapter_model.safetensors.

package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
)

const (
	adapterConfigName  = "adapter_config.json"
	adapterWeightsName = "adapter_model.safetensors"
	peftPrefix         = "base_model.model."
)

// peftConfig is adapter_config.json. What would change results and is not
// followed is refused.
type peftConfig struct {
	PeftType      string         `json:"peft_type"`
	TaskType      string         `json:"task_type,omitempty"`
	Base          string         `json:"base_model_name_or_path"`
	Rank          int            `json:"r"`
	Alpha         float64        `json:"lora_alpha"`
	Dropout       float64        `json:"lora_dropout"` // training only
	Targets       any            `json:"target_modules"`
	Bias          string         `json:"bias"`
	FanInFanOut   bool           `json:"fan_in_fan_out"`
	Inference     bool           `json:"inference_mode"`
	ModulesToSave []string       `json:"modules_to_save"` // trained beside the adapters
	RankPattern   map[string]any `json:"rank_pattern"`    // told by the shapes
	AlphaPattern  patterns       `json:"alpha_pattern"`
	RootOfRank    bool           `json:"use_rslora"`
	DoRA          bool           `json:"use_dora"`
	LoRABias      bool           `json:"lora_bias"`
	Invocation    any            `json:"alora_invocation_tokens,omitempty"`
	Arrow         any            `json:"arrow_config,omitempty"`
	Replication   any            `json:"layer_replication,omitempty"`
}

func (c *peftConfig) check() error {
	refuse := func(key string, got any, want string) error {
		return fmt.Errorf("%s %v is not supported (supported: %s)", key, got, want)
	}
	switch {
	case c.PeftType != "LORA":
		return refuse("peft_type", fmt.Sprintf("%q", c.PeftType), "LORA")
	case c.Bias != "" && c.Bias != "none":
		return refuse("bias", fmt.Sprintf("%q", c.Bias), "none")
	case c.FanInFanOut:
		return refuse("fan_in_fan_out", true, "false")
	case c.Invocation != nil:
		return refuse("alora_invocation_tokens", c.Invocation, "null")
	case c.Arrow != nil:
		return refuse("arrow_config", c.Arrow, "null")
	case c.LoRABias:
		return refuse("lora_bias", true, "false")
	case c.Replication != nil:
		return refuse("layer_replication", c.Replication, "null")
	}
	return LoRA{Rank: c.Rank, Alpha: c.Alpha}.Check()
}

// scale is what the second term of a layer of that name and rank is multiplied by,
// and the alpha in it.
func (c *peftConfig) scale(module string, rank int) (alpha, scale float64) {
	alpha = c.AlphaPattern.of(module, c.Alpha)
	if c.RootOfRank {
		return alpha, alpha / math.Sqrt(float64(rank))
	}
	return alpha, alpha / float64(rank)
}

// saves reports whether a tensor is of a module that is trained beside the adapters.
func (c *peftConfig) saves(name string) bool {
	return slices.ContainsFunc(c.ModulesToSave, func(end string) bool { return strings.HasSuffix(moduleOf(name), end) })
}

// patterns are alpha_pattern: the first regular expression that matches a name, or
// the end of one behind a dot, gives its value.
type patterns []pattern

type pattern struct {
	key   string
	value float64
	match *regexp.Regexp
}

func (p patterns) of(name string, otherwise float64) float64 {
	for _, x := range p {
		if x.match.MatchString(name) {
			return x.value
		}
	}
	return otherwise
}

func (p *patterns) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	open, err := d.Token()
	if err != nil || open == nil {
		return err
	}
	if open != json.Delim('{') {
		return fmt.Errorf("alpha_pattern must be an object, got %s", b)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		x := pattern{key: fmt.Sprint(key)}
		if x.match, err = regexp.Compile(`^(?:(?:.*\.)?(?:` + x.key + `)$)`); err != nil {
			return fmt.Errorf("alpha_pattern: %w", err)
		}
		if err := d.Decode(&x.value); err != nil {
			return fmt.Errorf("alpha_pattern %q: %w", x.key, err)
		}
		if !(x.value > 0) {
			return fmt.Errorf("alpha_pattern %q must be above 0, got %g", x.key, x.value)
		}
		*p = append(*p, x)
	}
	return nil
}

func (p patterns) MarshalJSON() ([]byte, error) {
	of := map[string]float64{}
	for _, x := range p {
		of[x.key] = x.value
	}
	return json.Marshal(of)
}

// moduleOf is the layer of a weight or bias.
func moduleOf(name string) string { return name[:max(0, strings.LastIndexByte(name, '.'))] }

// Save writes the adapters as a PEFT folder, which is replaced as a whole. Other
// weights that are not frozen, a head of one's own or norms, go with them as
// modules_to_save.
func (ad *Adapted) Save(dir string) error { return checkpoint.WriteDir(dir, ad.writeAdapter) }

func (ad *Adapted) writeAdapter(dir string) error {
	if err := ad.usable(); err != nil {
		return err
	}
	named := ad.peftNaming()
	c := peftConfig{
		PeftType: "LORA", TaskType: "CAUSAL_LM", Base: ad.Base, Rank: ad.LoRA.Rank, Alpha: ad.LoRA.Alpha,
		Bias: "none", Inference: true, RankPattern: map[string]any{},
	}
	var targets []string
	for _, module := range ad.order {
		x := ad.adapters[module]
		rank := x.a.Type.Shape[0]
		module = named.inFile(module)
		targets = append(targets, module)
		if rank != c.Rank {
			c.RankPattern[module] = rank
		}
		if x.alpha != c.Alpha {
			c.AlphaPattern = append(c.AlphaPattern, pattern{key: module, value: x.alpha})
		}
		c.RootOfRank = c.RootOfRank || x.scale != x.alpha/float64(rank)
		c.DoRA = c.DoRA || x.magnitudes != nil
	}
	c.Targets = targets
	others, err := ad.others()
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	for _, p := range others {
		if module := named.inFile(moduleOf(p.Name)); !slices.Contains(c.ModulesToSave, module) {
			c.ModulesToSave = append(c.ModulesToSave, module)
		}
		if !modelsOwn(p.Name) {
			c.TaskType = "" // a head of another kind stands on the model
		}
	}
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, adapterConfigName), raw, 0o666); err != nil {
		return err
	}
	return checkpoint.Save(filepath.Join(dir, adapterWeightsName), ad.entries(func(name string) string { return peftPrefix + named.inFile(name) }), checkpoint.SaveOptions{})
}

// modelsOwn reports whether a tensor is one of a model's, as its files have them.
func modelsOwn(name string) bool {
	return name == headName || strings.HasPrefix(name, modelScope)
}

// apart refuses weights that a PEFT folder cannot hold as one tensor of one layer.
func (m *Transformer) apart(name string) error {
	if _, stack := mixtureOf(name); stack || m.Config.Tied && name == tableName {
		return fmt.Errorf("%s cannot be trained beside adapters: a PEFT folder holds neither stacks of experts nor a table that is the head too; freeze it", name)
	}
	return nil
}

// others are the weights that are trained beside the adapters, whole modules of them.
func (ad *Adapted) others() ([]*graph.Param, error) {
	modules := map[string]bool{}
	for _, p := range ad.params.All() {
		if ofAdapter(p.Name) || !p.Trainable() {
			continue
		}
		if err := ad.apart(p.Name); err != nil {
			return nil, err
		}
		modules[moduleOf(p.Name)] = true
	}
	return slices.DeleteFunc(slices.Clone(ad.params.All()), func(p *graph.Param) bool {
		return ofAdapter(p.Name) || p.State || !modules[moduleOf(p.Name)]
	}), nil
}

// entries are the adapters' matrices, layer by layer, and what is trained beside them.
func (ad *Adapted) entries(named func(name string) string) iter.Seq[checkpoint.Entry] {
	return func(yield func(checkpoint.Entry) bool) {
		for _, module := range ad.order {
			x := ad.adapters[module]
			for _, p := range []*graph.Param{x.a, x.b} {
				if !yield(checkpoint.Values(named(p.Name), graph.Data[float32](p.Tensor()), p.Type.Shape...)) {
					return
				}
			}
			if m := x.magnitudes; m != nil && !yield(checkpoint.Values(named(module+endMagnitude), m, len(m))) {
				return
			}
		}
		others, _ := ad.others() // writeAdapter has had its error
		for _, p := range others {
			if !yield(entry(named(ad.Transformer.OnDisk(p.Name)[0]), p.Tensor())) {
				return
			}
		}
	}
}

// WriteFiles writes the PEFT folder's files and what a trainer resumes from: the
// same matrices under their own names in model.safetensors, and base.json, which
// tells the base from others.
func (ad *Adapted) WriteFiles(dir string) error {
	if err := ad.writeAdapter(dir); err != nil {
		return err
	}
	if err := ad.writeBase(dir); err != nil {
		return err
	}
	return checkpoint.Save(filepath.Join(dir, "model.safetensors"), ad.entries(func(name string) string { return name }), checkpoint.SaveOptions{})
}

// CheckFiles fails where the adapters in dir, if there are any, are scaled otherwise
// or were trained on another model: one that computes something else, or has other
// weights. A trainer that resumes calls it.
func (ad *Adapted) CheckFiles(dir string) error {
	if err := ad.usable(); err != nil {
		return err
	}
	c, err := readPEFT(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("models: %w", err)
	}
	named := ad.peftNaming()
	for _, module := range ad.order {
		x := ad.adapters[module]
		if _, was := c.scale(named.inFile(module), x.a.Type.Shape[0]); was != x.scale {
			return fmt.Errorf("models: the adapter of %s must be scaled by %g as in the checkpoint, got %g (Alpha %g)", module, was, x.scale, ad.LoRA.Alpha)
		}
	}
	return ad.checkBase(dir, c.Base)
}

// OnDisk is Transformer.OnDisk for the weights of the model; WriteFiles gives the
// matrices of adapters their own names.
func (ad *Adapted) OnDisk(param string) []string {
	if ofAdapter(param) {
		return []string{param}
	}
	return ad.Transformer.OnDisk(param)
}

// IsAdapter reports whether a folder holds an adapter.
func IsAdapter(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, adapterConfigName))
	return err == nil
}

// AdapterBase is the model that the adapter of a folder was trained on, as the
// folder says.
func AdapterBase(dir string) (string, error) {
	c, err := readPEFT(dir)
	if err != nil {
		return "", fmt.Errorf("models: %s: %w", dir, err)
	}
	return c.Base, nil
}

// errAdapterAlone is for a folder that was taken for that of a model.
func errAdapterAlone(dir string) error {
	base, err := AdapterBase(dir)
	if err != nil {
		return err
	}
	if base == "" {
		base = "one that it does not name"
	}
	return fmt.Errorf("models: %s holds an adapter, which goes on top of a model: open the model that it was trained on (%s), and then the adapter on it", dir, base)
}

func readPEFT(dir string) (*peftConfig, error) {
	f, err := checkpoint.OpenFile(filepath.Join(dir, adapterConfigName))
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, below(dir))
	}
	defer f.Close() // only read
	raw, err := io.ReadAll(io.LimitReader(f, maxConfigBytes))
	if err != nil {
		return nil, err
	}
	var c peftConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", adapterConfigName, err)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", adapterConfigName, err)
	}
	return &c, nil
}

// OpenAdapter puts the adapters of a PEFT folder on the model and freezes it.
// Every tensor of the folder must fit a layer of the model, which takes adapters
// once. Which model that is, is the caller's choice: one that is stored in fewer
// bits than the base of the training, or a fine-tune of that; AdapterBase names it.
// Adapters with magnitudes (use_dora) are run and merged, and frozen too: a copy of
// the weight of each of their layers, in float32, has them in it.
func (m *Transformer) OpenAdapter(dir string) (*Adapted, error) {
	ad, err := m.openAdapter(dir)
	if err != nil {
		return nil, fmt.Errorf("models: adapter %s: %w", dir, err)
	}
	return ad, nil
}

func (m *Transformer) openAdapter(dir string) (*Adapted, error) {
	if err := m.usable(); err != nil {
		return nil, err
	}
	if m.hasAdapters() {
		return nil, errAdapted
	}
	c, err := readPEFT(dir)
	if err != nil {
		return nil, err
	}
	ck, err := checkpoint.Open(filepath.Join(dir, adapterWeightsName))
	if err != nil {
		return nil, err
	}
	defer ck.Close() // everything is copied
	ad := &Adapted{Transformer: m, LoRA: LoRA{Rank: c.Rank, Alpha: c.Alpha}, Base: c.Base, adapters: map[string]adapter{}}
	modules, err := m.linears()
	if err != nil {
		return nil, err
	}
	n := namingOf(func(n naming) bool {
		return slices.ContainsFunc(ck.Tensors(), func(t *checkpoint.Tensor) bool { return strings.HasPrefix(t.Name(), peftPrefix+n.model+"layers.") })
	})
	known, sums := map[string]bool{}, 0
	var loads []func() error // all are checked and read before the first is added
	for _, module := range modules {
		an, bn := adapterNames(module)
		an, bn = peftPrefix+n.inFile(an), peftPrefix+n.inFile(bn)
		mn := peftPrefix + n.inFile(module+endMagnitude)
		a, hasA := ck.Lookup(an)
		b, hasB := ck.Lookup(bn)
		known[an], known[bn] = true, true
		if hasA != hasB {
			return nil, fmt.Errorf("%s has one of lora_A and lora_B, must have both", module)
		}
		if !hasA {
			continue
		}
		w := m.params.Get(module + ".weight")
		if w == nil {
			return nil, fmt.Errorf("%s has no weight: load the model first", module)
		}
		rank, shape := a.Rows(), shapeOf(w)
		if want := [][]int{{rank, shape[1]}, {shape[0], rank}}; rank < 1 || !slices.Equal(a.Shape(), want[0]) || !slices.Equal(b.Shape(), want[1]) {
			return nil, fmt.Errorf("%s: lora_A is %s and lora_B %s, must be [r,%d] and [%d,r] for a weight of %s",
				module, graph.Dims(a.Shape()), graph.Dims(b.Shape()), shape[1], shape[0], graph.Dims(shape))
		}
		av, bv := make([]float32, rank*shape[1]), make([]float32, shape[0]*rank)
		if err := errors.Join(a.Float32(av), b.Float32(bv)); err != nil {
			return nil, err
		}
		var magnitudes []float32
		if c.DoRA {
			t, ok := ck.Lookup(mn)
			if known[mn] = true; !ok || t.Len() != shape[0] {
				return nil, fmt.Errorf("%s: use_dora needs lora_magnitude_vector [%d]", module, shape[0])
			}
			magnitudes = make([]float32, t.Len())
			if err := t.Float32(magnitudes); err != nil {
				return nil, err
			}
			sums += 4 * shape[0] * shape[1]
		}
		loads = append(loads, func() error {
			alpha, scale := c.scale(n.inFile(module), rank)
			x, err := ad.add(module, rank, alpha, scale)
			if err != nil {
				return err
			}
			copy(graph.Data[float32](x.a.Tensor()), av)
			copy(graph.Data[float32](x.b.Tensor()), bv)
			x.a.Touch()
			x.b.Touch()
			if c.DoRA {
				return ad.magnify(module, magnitudes)
			}
			return nil
		})
	}
	var unexpected []string
	var others []*graph.Param
	for _, t := range ck.Tensors() {
		if known[t.Name()] {
			continue
		}
		name := strings.TrimPrefix(t.Name(), peftPrefix)
		saved := c.saves(name)
		name = n.ours(name)
		p := m.params.Get(strings.Replace(name, ".base_layer.", ".", 1))
		switch {
		case saved && (p != nil || !modelsOwn(name)):
			if err := m.apart(name); err != nil {
				return nil, err
			}
			typ := graph.T(dtype.Float32, t.Shape()...)
			if p != nil && !slices.Equal(p.Type.Shape, typ.Shape) {
				return nil, fmt.Errorf("%s is %s, the model has %s", t.Name(), typ, p.Type)
			}
			if p != nil && p.Type.DType.IsFloat8() {
				return nil, fmt.Errorf("%s stands for a weight in 8 bits, %s: open the model with Widen", t.Name(), p.Type)
			}
			wide := graph.NewTensor(typ)
			if err := t.Float32(graph.Data[float32](wide)); err != nil {
				return nil, err
			}
			loads = append(loads, func() (err error) {
				if p == nil {
					if p, err = m.params.Add(name, typ, false); err != nil {
						return err
					}
				}
				p.Forget = nil // the value lies in the file of the model no more
				others = append(others, p)
				return p.Store(dtype.Float32, wide.Bytes())
			})
		case p != nil && slices.Equal(shapeOf(p), t.Shape()):
			// PEFT writes a copy of the table or the head where that has an adapter.
			wide := make([]float32, t.Len())
			if err := t.Float32(wide); err != nil {
				return nil, err
			}
			if !slices.Equal(wide, m.wide(p)) {
				return nil, fmt.Errorf("%s differs from the model's: the adapter was trained on another model", t.Name())
			}
		default:
			unexpected = append(unexpected, t.Name())
		}
	}
	switch {
	case unexpected != nil:
		return nil, fmt.Errorf("unexpected tensors: %s", strings.Join(unexpected, ", "))
	case loads == nil:
		return nil, errors.New("it has no tensors for a layer of the model")
	}
	if err := graph.CheckMemory("weights with adapters of magnitudes in them, in float32,", sums); err != nil {
		return nil, err
	}
	for _, load := range loads {
		if err := load(); err != nil {
			return nil, err
		}
	}
	ad.LoRA.Targets = slices.Clone(ad.order)
	m.freeze(ad.adapters)
	for _, p := range others {
		p.Frozen = false
	}
	return ad, nil
}
