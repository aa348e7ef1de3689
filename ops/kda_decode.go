// The fused one-token decode of a KDA layer: packed projections in, one output
// out, states that stay on a device. It talks to a device through a few calls.

package ops

import (
	"errors"
	"fmt"
	"math"

	"github.com/seafan/seafan/ops/native"
)

// KDADecodeConfig is the geometry of a fused decode.
type KDADecodeConfig = native.KDAFusedConfig

// KDAProduction and KDATwin are the geometries of the large model and of its
// small twin.
var (
	KDAProduction = KDADecodeConfig{Heads: 96, HeadDim: 128, ConvKernel: 4, GateLowerBound: -5, FullRankGate: true}
	KDATwin       = KDADecodeConfig{Heads: 8, HeadDim: 32, ConvKernel: 4, FullRankGate: true}
)

// The module and the entries that a device finds the two kernels by.
const (
	KDADecodeModule    = "kda_decode"
	KDADecodeConv      = "k3_kda_conv_update_f32"
	KDADecodeRecurrent = "k3_kda_recurrent_step_f32"

	kdaDecodeBlock   = 128 // threads of a block of the convolution, most of one of the recurrence
	kdaDecodeMostDim = 256
)

// KDABuffer is memory of a device, KDAKernel a kernel on it and KDAStream the
// queue that launches go to.
type (
	KDABuffer uint64
	KDAKernel uint64
	KDAStream uintptr
)

// KDADevice is what a fused decode needs of a device. Copies block; launches
// follow each other in their stream.
type KDADevice interface {
	Kernel(module, entry string) (KDAKernel, error)
	Alloc(bytes int) (KDABuffer, error)
	Free(b KDABuffer) error
	Upload(to KDABuffer, from []float32) error
	Download(to []float32, from KDABuffer) error
	Launch(k KDAKernel, l KDALaunch) error
	Synchronize(s KDAStream) error
}

// KDALaunch is how a kernel is launched. Args are KDABuffer, uint32 or float32.
type KDALaunch struct {
	Grid, Block, Shared int // blocks, threads of a block, bytes of dynamic shared memory
	Stream              KDAStream
	Args                []any
}

// KDAHostState is a pair of states in the memory of the host: Conv [3HD,W],
// oldest column first, and Recurrent [H,D,D], key axis first.
type KDAHostState struct{ Conv, Recurrent []float32 }

// NewKDAHostState is a state of zeros.
func NewKDAHostState(c KDADecodeConfig) *KDAHostState {
	return &KDAHostState{make([]float32, c.ConvElems()), make([]float32, c.RecurrentElems())}
}

func (h *KDAHostState) elems() *native.KDAStateElems {
	if h == nil {
		return nil
	}
	return &native.KDAStateElems{Conv: len(h.Conv), Recurrent: len(h.Recurrent)}
}

// FusedDecode advances a KDA layer by one token: XQKV [3HD], q|k|v of all heads,
// goes through the short convolution with SiLU, q and k are normalised, and the
// recurrent state decays by exp(gate), takes the token with sigmoid(beta) and is
// read, scaled by D^-1/2.
type FusedDecode struct {
	config          KDADecodeConfig
	device          KDADevice
	conv, recurrent KDAKernel
}

// KDADecodeInput is a token. Gate [HD] is the log-decay, activated already and
// so never above 0; Beta [H] is a logit. Exactly one of Host and Resident should
// be given; with both, the resident state is used. ConvW [3HD,W] may be nil when
// Weights hold it on the device.
type KDADecodeInput struct {
	XQKV, ConvW, Gate, Beta []float32

	Weights  *KDAWeights
	Host     *KDAHostState
	Resident *KDAState
	Stream   KDAStream
}

// NewFusedDecode finds both kernels, that of the convolution first. A device
// without one is an error; nothing falls back to another.
func NewFusedDecode(d KDADevice, c KDADecodeConfig) (*FusedDecode, error) {
	if err := checkKDADecode(c); err != nil {
		return nil, err
	}
	f := &FusedDecode{config: c, device: d}
	for _, x := range []struct {
		entry string
		to    *KDAKernel
	}{{KDADecodeConv, &f.conv}, {KDADecodeRecurrent, &f.recurrent}} {
		k, err := d.Kernel(KDADecodeModule, x.entry)
		if err != nil {
			return nil, fmt.Errorf("k3 kda: kernel %s of module %s: %w (NativeKDADevice has it without a device)", x.entry, KDADecodeModule, err)
		}
		*x.to = k
	}
	return f, nil
}

func checkKDADecode(c KDADecodeConfig) error {
	if c.ConvKernel <= 0 || c.HeadDim <= 0 {
		return fmt.Errorf("k3 kda: D and conv_kernel must be > 0: D %d, conv_kernel %d", c.HeadDim, c.ConvKernel)
	}
	if c.Heads <= 0 || c.Heads > 1<<16 || c.HeadDim > kdaDecodeMostDim || c.ConvKernel > 64 {
		return fmt.Errorf("k3 kda: want 1 to 65536 heads, D up to %d and conv_kernel up to 64: heads %d, D %d, conv_kernel %d", kdaDecodeMostDim, c.Heads, c.HeadDim, c.ConvKernel)
	}
	return nil
}

// check refuses inputs before anything is allocated.
func (f *FusedDecode) check(in KDADecodeInput) error {
	n := native.KDAFusedLengths{XQKV: len(in.XQKV), ConvW: len(in.ConvW), Gate: len(in.Gate), Beta: len(in.Beta), Host: in.Host.elems()}
	if in.Weights != nil {
		n.ConvW = in.Weights.config.ConvElems()
	}
	if in.Resident != nil {
		n.Resident, n.ResidentOf = in.Resident.elems(), in.Resident.config
	}
	if err := f.config.Check(n); err != nil {
		return err
	}
	if in.Resident != nil {
		if err := in.Resident.usable(f.device); err != nil {
			return err
		}
	}
	if in.Weights != nil {
		if err := in.Weights.usable(f); err != nil {
			return err
		}
	}
	if err := native.CheckKDADecay(in.Gate, f.config.Heads, f.config.HeadDim); err != nil {
		return fmt.Errorf("k3 kda: %w", err)
	}
	return allFinite(named{"x_qkv", in.XQKV}, named{"conv_w", in.ConvW}, named{"beta", in.Beta})
}

type named struct {
	name string
	x    []float32
}

// allFinite refuses a NaN or an infinity, with its place.
func allFinite(all ...named) error {
	for _, n := range all {
		for i, v := range n.x {
			if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
				return fmt.Errorf("k3 kda: %s must be finite: %s[%d] is %v", n.name, n.name, i, v)
			}
		}
	}
	return nil
}

// Step advances the state and returns the output [HD]. On the host, inputs and
// states are copied to the device and back, and the state of the host is
// replaced when all copies have succeeded. A resident state never leaves the
// device: the output is the only copy back. Every buffer of the call is freed on
// every way out.
func (f *FusedDecode) Step(in KDADecodeInput) ([]float32, error) {
	if err := f.check(in); err != nil {
		return nil, err
	}
	c := f.config
	t := &kdaTransient{device: f.device}
	defer t.free()
	x := t.upload(in.XQKV)
	var w KDABuffer
	if in.Weights != nil {
		w = in.Weights.buffer
	} else {
		w = t.upload(in.ConvW)
	}
	gate, beta := t.upload(in.Gate), t.upload(in.Beta)
	conv, recurrent := KDABuffer(0), KDABuffer(0)
	if in.Resident != nil {
		conv, recurrent = in.Resident.conv, in.Resident.recurrent
	} else {
		conv, recurrent = t.upload(in.Host.Conv), t.upload(in.Host.Recurrent)
	}
	y, out := t.alloc(c.ConvDim()), t.alloc(c.QKVDim())
	if t.err != nil {
		return nil, fmt.Errorf("k3 kda: %w", t.err)
	}
	if err := f.launch(in.Stream, in.Resident, x, w, conv, y, gate, beta, recurrent, out); err != nil {
		return nil, err
	}
	result := make([]float32, c.QKVDim())
	if in.Resident != nil {
		if err := f.device.Download(result, out); err != nil {
			// The state has moved on and the output is lost: the token cannot
			// be taken again.
			return nil, in.Resident.poison(fmt.Errorf("output: %w", err))
		}
		return result, nil
	}
	next := NewKDAHostState(c)
	for _, x := range []struct {
		what string
		to   []float32
		from KDABuffer
	}{{"output", result, out}, {"conv", next.Conv, conv}, {"recurrent", next.Recurrent, recurrent}} {
		if err := f.device.Download(x.to, x.from); err != nil {
			return nil, fmt.Errorf("k3 kda: %s: %w", x.what, err)
		}
	}
	*in.Host = *next
	return result, nil
}

// launch runs both kernels and waits for them. From the second on, a failure
// leaves a resident state between two tokens.
func (f *FusedDecode) launch(stream KDAStream, state *KDAState, x, w, conv, y, gate, beta, recurrent, out KDABuffer) error {
	c := f.config
	err := f.device.Launch(f.conv, KDALaunch{
		Grid: (c.ConvDim() + kdaDecodeBlock - 1) / kdaDecodeBlock, Block: kdaDecodeBlock, Stream: stream,
		Args: []any{x, w, conv, y, uint32(c.ConvDim()), uint32(c.ConvKernel)},
	})
	if err != nil {
		return fmt.Errorf("k3 kda: %s: %w", KDADecodeConv, err)
	}
	err = f.device.Launch(f.recurrent, KDALaunch{
		Grid: c.Heads, Block: min(c.HeadDim, kdaDecodeBlock), Shared: 12 * c.HeadDim, Stream: stream,
		Args: []any{y, gate, beta, recurrent, out, uint32(c.Heads), uint32(c.HeadDim), float32(native.KDAFusedEps)},
	})
	if err != nil {
		return state.poison(fmt.Errorf("%s: %w", KDADecodeRecurrent, err))
	}
	if err := f.device.Synchronize(stream); err != nil {
		return state.poison(fmt.Errorf("synchronize: %w", err))
	}
	return nil
}

// kdaTransient holds the buffers of one call. After the first error it does
// nothing more.
type kdaTransient struct {
	device  KDADevice
	buffers []KDABuffer
	err     error
}

func (t *kdaTransient) alloc(elems int) KDABuffer {
	if t.err != nil {
		return 0
	}
	b, err := t.device.Alloc(max(4*elems, 1))
	if err != nil {
		t.err = err
		return 0
	}
	t.buffers = append(t.buffers, b)
	return b
}

func (t *kdaTransient) upload(x []float32) KDABuffer {
	b := t.alloc(len(x))
	if t.err == nil {
		t.err = t.device.Upload(b, x)
	}
	return b
}

// free gives everything back; what the call returns matters more than an error
// of this.
func (t *kdaTransient) free() {
	for _, b := range t.buffers {
		_ = t.device.Free(b)
	}
}

// KDAWeights are the weights of the convolution on a device, uploaded once.
type KDAWeights struct {
	config KDADecodeConfig
	device KDADevice
	buffer KDABuffer
	freed  bool
}

// NewKDAWeights uploads convW [3HD,W].
func NewKDAWeights(d KDADevice, c KDADecodeConfig, convW []float32) (*KDAWeights, error) {
	if err := checkKDADecode(c); err != nil {
		return nil, err
	}
	if len(convW) != c.ConvElems() {
		return nil, fmt.Errorf("k3 kda: conv_w %d != %d", len(convW), c.ConvElems())
	}
	if err := allFinite(named{"conv_w", convW}); err != nil {
		return nil, err
	}
	t := &kdaTransient{device: d}
	b := t.upload(convW)
	if t.err != nil {
		t.free()
		return nil, fmt.Errorf("k3 kda: conv_w: %w", t.err)
	}
	return &KDAWeights{config: c, device: d, buffer: b}, nil
}

// Free gives the memory back; a second call does nothing.
func (w *KDAWeights) Free() error {
	if w.freed {
		return nil
	}
	w.freed = true
	return w.device.Free(w.buffer)
}

func (w *KDAWeights) usable(f *FusedDecode) error {
	switch {
	case w.freed:
		return errors.New("k3 kda: the weights were freed")
	case w.device != f.device:
		return errors.New("k3 kda: the weights are on another device")
	case w.config.ConvDim() != f.config.ConvDim() || w.config.ConvKernel != f.config.ConvKernel:
		return fmt.Errorf("k3 kda: the weights are of %d channels with conv_kernel %d, used with %d and %d", w.config.ConvDim(), w.config.ConvKernel, f.config.ConvDim(), f.config.ConvKernel)
	}
	return nil
}
