package ops_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// mockDevice is the native device with a record of every call; call number fail
// (from 1) is refused.
type mockDevice struct {
	*ops.NativeKDADevice
	calls    []string
	launches []ops.KDALaunch
	live     map[ops.KDABuffer]bool
	fail     int
	failFree bool
}

func newMock() *mockDevice {
	return &mockDevice{NativeKDADevice: ops.NewNativeKDADevice(), live: map[ops.KDABuffer]bool{}}
}

var errMock = errors.New("the device is gone")

func (m *mockDevice) call(format string, args ...any) error {
	m.calls = append(m.calls, fmt.Sprintf(format, args...))
	if len(m.calls) == m.fail {
		return errMock
	}
	return nil
}

func (m *mockDevice) Kernel(module, entry string) (ops.KDAKernel, error) {
	if err := m.call("kernel %s %s", module, entry); err != nil {
		return 0, err
	}
	return m.NativeKDADevice.Kernel(module, entry)
}

func (m *mockDevice) Alloc(n int) (ops.KDABuffer, error) {
	if err := m.call("alloc %d", n); err != nil {
		return 0, err
	}
	b, err := m.NativeKDADevice.Alloc(n)
	m.live[b] = true
	return b, err
}

func (m *mockDevice) Free(b ops.KDABuffer) error {
	delete(m.live, b)
	if m.failFree {
		_ = m.NativeKDADevice.Free(b)
		return errMock
	}
	return m.NativeKDADevice.Free(b)
}

func (m *mockDevice) Upload(to ops.KDABuffer, from []float32) error {
	if err := m.call("upload %d", 4*len(from)); err != nil {
		return err
	}
	return m.NativeKDADevice.Upload(to, from)
}

func (m *mockDevice) Download(to []float32, from ops.KDABuffer) error {
	if err := m.call("download %d", 4*len(to)); err != nil {
		return err
	}
	return m.NativeKDADevice.Download(to, from)
}

func (m *mockDevice) Launch(k ops.KDAKernel, l ops.KDALaunch) error {
	if err := m.call("launch %d", k); err != nil {
		return err
	}
	m.launches = append(m.launches, l)
	return m.NativeKDADevice.Launch(k, l)
}

func (m *mockDevice) Synchronize(s ops.KDAStream) error {
	if err := m.call("synchronize %d", s); err != nil {
		return err
	}
	return m.NativeKDADevice.Synchronize(s)
}

func fill(n int, v float32) []float32 { return slices.Repeat([]float32{v}, n) }

// twinInput is the token of the constant test.
func twinInput() ops.KDADecodeInput {
	return ops.KDADecodeInput{XQKV: fill(768, .1), ConvW: fill(3072, .2), Gate: fill(256, -.5), Beta: fill(8, .25), Stream: 77}
}

func fused(t *testing.T, d ops.KDADevice, c ops.KDADecodeConfig) *ops.FusedDecode {
	t.Helper()
	f, err := ops.NewFusedDecode(d, c)
	require.NoError(t, err)
	return f
}

// TestFusedDecodeFindsItsKernels looks up exactly the two entries in order.
func TestFusedDecodeFindsItsKernels(t *testing.T) {
	m := newMock()
	fused(t, m, ops.KDATwin)
	require.Equal(t, []string{"kernel kda_decode k3_kda_conv_update_f32", "kernel kda_decode k3_kda_recurrent_step_f32"}, m.calls)
	for i, entry := range []string{"k3_kda_conv_update_f32", "k3_kda_recurrent_step_f32"} {
		m := newMock()
		m.fail = i + 1
		_, err := ops.NewFusedDecode(m, ops.KDATwin)
		require.ErrorIs(t, err, errMock)
		require.EqualError(t, err, "k3 kda: kernel "+entry+" of module kda_decode: the device is gone (NativeKDADevice has it without a device)")
	}
	for want, c := range map[string]ops.KDADecodeConfig{
		"k3 kda: D and conv_kernel must be > 0: D 0, conv_kernel 4":                                          {Heads: 1, ConvKernel: 4},
		"k3 kda: D and conv_kernel must be > 0: D 4, conv_kernel 0":                                          {Heads: 1, HeadDim: 4},
		"k3 kda: want 1 to 65536 heads, D up to 256 and conv_kernel up to 64: heads 0, D 4, conv_kernel 4":   {HeadDim: 4, ConvKernel: 4},
		"k3 kda: want 1 to 65536 heads, D up to 256 and conv_kernel up to 64: heads 1, D 512, conv_kernel 4": {Heads: 1, HeadDim: 512, ConvKernel: 4},
	} {
		_, err := ops.NewFusedDecode(newMock(), c)
		require.EqualError(t, err, want)
	}
}

// TestFusedDecodeLaunches holds both call modes to their order of calls, grids,
// blocks, shared memory, arguments and stream, at both geometries.
func TestFusedDecodeLaunches(t *testing.T) {
	for _, x := range []struct {
		c                         ops.KDADecodeConfig
		convGrid, grid, block, sh int
	}{{ops.KDATwin, 6, 8, 32, 384}, {ops.KDAProduction, 288, 96, 128, 1536}} {
		n, all := x.c.QKVDim(), x.c.ConvDim()
		in := ops.KDADecodeInput{XQKV: fill(all, .1), ConvW: fill(x.c.ConvElems(), .2), Gate: fill(n, -.5), Beta: fill(x.c.Heads, .25), Stream: 77}
		given := []string{
			fmt.Sprint("alloc ", 4*all), fmt.Sprint("upload ", 4*all), fmt.Sprint("alloc ", 4*x.c.ConvElems()), fmt.Sprint("upload ", 4*x.c.ConvElems()),
			fmt.Sprint("alloc ", 4*n), fmt.Sprint("upload ", 4*n), fmt.Sprint("alloc ", 4*x.c.Heads), fmt.Sprint("upload ", 4*x.c.Heads),
		}
		states := []string{
			fmt.Sprint("alloc ", 4*x.c.ConvElems()), fmt.Sprint("upload ", 4*x.c.ConvElems()),
			fmt.Sprint("alloc ", 4*x.c.RecurrentElems()), fmt.Sprint("upload ", 4*x.c.RecurrentElems()),
		}
		work := []string{fmt.Sprint("alloc ", 4*all), fmt.Sprint("alloc ", 4*n), "launch 1", "launch 2", "synchronize 77", fmt.Sprint("download ", 4*n)}

		m := newMock()
		f := fused(t, m, x.c)
		state, err := ops.NewKDAState(m, x.c, ops.NewKDAHostState(x.c))
		require.NoError(t, err)
		m.calls = nil
		in.Resident = state
		_, err = f.Step(in)
		require.NoError(t, err)
		require.Equal(t, append(slices.Clone(given), work...), m.calls, "one copy back")
		require.Len(t, m.live, 2, "the state alone stays")

		require.Len(t, m.launches, 2)
		conv, rec := m.launches[0], m.launches[1]
		require.Equal(t, []int{x.convGrid, 128, 0, 77}, []int{conv.Grid, conv.Block, conv.Shared, int(conv.Stream)})
		require.Equal(t, []int{x.grid, x.block, x.sh, 77}, []int{rec.Grid, rec.Block, rec.Shared, int(rec.Stream)})
		require.Len(t, conv.Args, 6)
		require.Equal(t, []any{uint32(all), uint32(4)}, conv.Args[4:])
		require.Len(t, rec.Args, 8)
		require.Equal(t, []any{uint32(x.c.Heads), uint32(x.c.HeadDim), float32(1e-6)}, rec.Args[5:])
		require.Equal(t, conv.Args[3], rec.Args[0], "the recurrence reads what the convolution wrote")

		// Weights that are there need no copy.
		weights, err := ops.NewKDAWeights(m, x.c, in.ConvW)
		require.NoError(t, err)
		m.calls = nil
		resident := in
		resident.ConvW, resident.Weights = nil, weights
		_, err = f.Step(resident)
		require.NoError(t, err)
		require.Equal(t, slices.Concat(given[:2], given[4:], work), m.calls)
		require.NoError(t, weights.Free())
		require.NoError(t, weights.Free())
		_, err = f.Step(resident)
		require.EqualError(t, err, "k3 kda: the weights were freed")
		require.NoError(t, state.Free())
		require.Empty(t, m.live)

		m.calls = nil
		in.Resident, in.Host = nil, ops.NewKDAHostState(x.c)
		_, err = f.Step(in)
		require.NoError(t, err)
		back := []string{fmt.Sprint("download ", 4*x.c.ConvElems()), fmt.Sprint("download ", 4*x.c.RecurrentElems())}
		require.Equal(t, slices.Concat(given, states, work, back), m.calls)
		require.Empty(t, m.live)
	}
}

// vectors reads part of the shared test vectors.
func vectors(t *testing.T, key string, to any) {
	t.Helper()
	raw, err := os.ReadFile("native/testdata/kda.json")
	require.NoError(t, err)
	var all map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &all))
	require.NoError(t, json.Unmarshal(all[key], to))
}

// TestFusedDecodeVectors runs the tokens of the vectors in both modes, and the
// constant token, whose result has a closed form.
func TestFusedDecodeVectors(t *testing.T) {
	type tensor struct{ Data []float64 }
	var v struct {
		X     tensor `json:"x_qkv"`
		W     tensor `json:"conv_w"`
		Gate  tensor `json:"gate"`
		Beta  tensor `json:"beta_logit"`
		Conv0 tensor `json:"conv0"`
		Rec0  tensor `json:"rec0"`
		Out   tensor `json:"out"`
		Conv  tensor `json:"conv_final"`
		Rec   tensor `json:"rec_after"`
	}
	vectors(t, "seed_decode", &v)
	f32 := optest.Cast[float32]
	c := ops.KDADecodeConfig{Heads: 2, HeadDim: 4, ConvKernel: 4}
	d := ops.NewNativeKDADevice()
	f := fused(t, d, c)
	host := &ops.KDAHostState{Conv: f32(v.Conv0.Data), Recurrent: f32(v.Rec0.Data)}
	state, err := ops.NewKDAState(d, c, host)
	require.NoError(t, err)
	for i := range 3 {
		in := ops.KDADecodeInput{XQKV: f32(v.X.Data[24*i : 24*i+24]), ConvW: f32(v.W.Data), Gate: f32(v.Gate.Data[8*i : 8*i+8]), Beta: f32(v.Beta.Data[2*i : 2*i+2])}
		in.Host = host
		a, err := f.Step(in)
		require.NoError(t, err)
		in.Host, in.Resident = nil, state
		b, err := f.Step(in)
		require.NoError(t, err)
		require.Equal(t, a, b, "both modes have the same bits")
		require.InDeltaSlice(t, v.Out.Data[8*i:8*i+8], optest.Float64s(a), 2.5e-7) // measured 6.2e-8
	}
	got := ops.NewKDAHostState(c)
	require.NoError(t, state.Download(got))
	require.Equal(t, host, got)
	require.Equal(t, v.Conv.Data, optest.Float64s(got.Conv))                         // inputs, moved
	require.InDeltaSlice(t, v.Rec.Data[64:], optest.Float64s(got.Recurrent), 2.5e-7) // measured 4.9e-8

	in := twinInput()
	in.Host = ops.NewKDAHostState(ops.KDATwin)
	out, err := fused(t, d, ops.KDATwin).Step(in)
	require.NoError(t, err)
	require.Len(t, out, 256)
	for _, x := range out {
		require.InDelta(t, 0.001003427286505854, x, 1e-9)
	}
}

// TestFusedDecodeRefuses has every check of the contract in its order, before
// anything is allocated.
func TestFusedDecodeRefuses(t *testing.T) {
	c := ops.KDADecodeConfig{Heads: 4, HeadDim: 4, ConvKernel: 2}
	m := newMock()
	f := fused(t, m, c)
	other := ops.KDADecodeConfig{Heads: 1, HeadDim: 8, ConvKernel: 4}
	alike, err := ops.NewKDAState(m, other, ops.NewKDAHostState(other))
	require.NoError(t, err)
	far, err := ops.NewKDAState(newMock(), c, ops.NewKDAHostState(c))
	require.NoError(t, err)
	nan := float32(math.NaN())
	m.calls = nil
	for want, change := range map[string]func(in *ops.KDADecodeInput){
		"k3 kda: x_qkv 3 != conv_dim 48":                                  func(in *ops.KDADecodeInput) { in.XQKV, in.ConvW = fill(3, 0), nil },
		"k3 kda: conv_w 3 != 96":                                          func(in *ops.KDADecodeInput) { in.ConvW, in.Gate = fill(3, 0), nil },
		"k3 kda: gate/beta rank: gate 3, want 16, and beta 4, want 4":     func(in *ops.KDADecodeInput) { in.Gate, in.Host = fill(3, 0), nil },
		"k3 kda: state rank: conv 96, want 96, and recurrent 63, want 64": func(in *ops.KDADecodeInput) { in.Host.Recurrent = fill(63, 0) },
		"k3 kda: host or device state":                                    func(in *ops.KDADecodeInput) { in.Host = nil },
		"k3 kda: resident state rank: made for 1 heads of 8 with conv_kernel 4, used with 4 heads of 4 with conv_kernel 2": func(in *ops.KDADecodeInput) { in.Resident = alike },
		"k3 kda: the state is on another device":                                                      func(in *ops.KDADecodeInput) { in.Resident = far },
		"k3 kda: kda: g must be finite and at most 0 (it is the logarithm of a decay): g[0,1,2] is 5": func(in *ops.KDADecodeInput) { in.Gate[6] = 5 },
		"k3 kda: x_qkv must be finite: x_qkv[5] is NaN":                                               func(in *ops.KDADecodeInput) { in.XQKV[5] = nan },
		"k3 kda: conv_w must be finite: conv_w[7] is NaN":                                             func(in *ops.KDADecodeInput) { in.ConvW[7] = nan },
		"k3 kda: beta must be finite: beta[3] is +Inf":                                                func(in *ops.KDADecodeInput) { in.Beta[3] = float32(math.Inf(1)) },
	} {
		in := ops.KDADecodeInput{XQKV: fill(48, .1), ConvW: fill(96, .2), Gate: fill(16, -.5), Beta: fill(4, 0), Host: ops.NewKDAHostState(c)}
		change(&in)
		_, err := f.Step(in)
		require.EqualError(t, err, want)
	}
	require.Empty(t, m.calls, "nothing was asked of the device")
}

// TestFusedDecodeFailures fails every call of a step in turn: all buffers come
// back, the host's states are as they were, and a resident state is poisoned
// exactly when it may stand between two tokens.
func TestFusedDecodeFailures(t *testing.T) {
	c := ops.KDATwin
	for _, resident := range []bool{false, true} {
		for n := 1; ; n++ {
			m := newMock()
			f := fused(t, m, c)
			in := twinInput()
			var state *ops.KDAState
			host := ops.NewKDAHostState(c)
			if resident {
				var err error
				state, err = ops.NewKDAState(m, c, host)
				require.NoError(t, err)
				in.Resident = state
			} else {
				in.Host = host
			}
			held := len(m.live)
			m.fail = len(m.calls) + n
			_, err := f.Step(in)
			if err == nil {
				require.Greater(t, n, 12, "every call was failed once")
				break
			}
			failed := m.calls[m.fail-1]
			require.ErrorIs(t, err, errMock, failed)
			require.True(t, strings.HasPrefix(err.Error(), "k3 kda: "))
			require.Len(t, m.live, held, failed)
			if !resident {
				require.Equal(t, ops.NewKDAHostState(c), host, failed)
				continue
			}
			moved := failed == "launch 2" || strings.HasPrefix(failed, "sync") || strings.HasPrefix(failed, "download")
			require.Equal(t, moved, state.Poisoned() != nil, failed)
			_, err = f.Step(in)
			if !moved {
				require.NoError(t, err, "a step that did not begin can be taken")
				continue
			}
			require.ErrorContains(t, err, "k3 kda: the state is poisoned, restore or upload it: ")
			require.ErrorIs(t, err, errMock)
			require.ErrorContains(t, state.Download(host), "poisoned")
			require.NoError(t, state.Upload(ops.NewKDAHostState(c)))
			_, err = f.Step(in)
			require.NoError(t, err)
		}
	}
	for _, entry := range []struct{ call, want string }{{"launch 1", "k3 kda: k3_kda_conv_update_f32: the device is gone"}, {"launch 2", "k3 kda: k3_kda_recurrent_step_f32: the device is gone"}} {
		m := newMock()
		f := fused(t, m, c)
		in := twinInput()
		in.Host = ops.NewKDAHostState(c)
		_, err := f.Step(in)
		require.NoError(t, err)
		at := slices.Index(m.calls, entry.call)
		m2 := newMock()
		f2 := fused(t, m2, c)
		m2.fail = at + 1
		_, err = f2.Step(in)
		require.EqualError(t, err, entry.want)
	}
}

// TestKDAStateLives: allocation is all or nothing, a download too, and freeing
// gives both buffers back whatever the first says.
func TestKDAStateLives(t *testing.T) {
	c := ops.KDATwin
	for n := 1; n <= 4; n++ {
		m := newMock()
		m.fail = n
		_, err := ops.NewKDAState(m, c, ops.NewKDAHostState(c))
		require.ErrorIs(t, err, errMock)
		require.Empty(t, m.live)
	}
	_, err := ops.NewKDAState(newMock(), c, &ops.KDAHostState{Conv: fill(3072, 0), Recurrent: fill(1, 0)})
	require.EqualError(t, err, "k3 kda: resident state rank: conv 3072, want 3072, and recurrent 1, want 8192")
	_, err = ops.NewKDAState(newMock(), c, nil)
	require.EqualError(t, err, "k3 kda: resident state rank: conv 0, want 3072, and recurrent 0, want 8192")

	m := newMock()
	full := &ops.KDAHostState{Conv: fill(3072, 1), Recurrent: fill(8192, 2)}
	s, err := ops.NewKDAState(m, c, full)
	require.NoError(t, err)
	for n := 1; n <= 2; n++ {
		host := ops.NewKDAHostState(c)
		m.fail = len(m.calls) + n
		require.ErrorIs(t, s.Download(host), errMock)
		require.Equal(t, ops.NewKDAHostState(c), host)
	}
	m.fail = 0
	require.EqualError(t, s.Download(&ops.KDAHostState{}), "k3 kda: resident state rank: conv 0, want 3072, and recurrent 0, want 8192")
	host := ops.NewKDAHostState(c)
	require.NoError(t, s.Download(host))
	require.Equal(t, full, host)
	m.failFree = true
	require.ErrorIs(t, s.Free(), errMock)
	require.Empty(t, m.live)
	require.NoError(t, s.Free(), "again does nothing")
	require.EqualError(t, s.Download(host), "k3 kda: the state was freed")
}

// TestKDAStateBlobs: from the blob of a state the tokens go on with the same
// bits, from that of another one they do not, and what is not a blob is refused.
func TestKDAStateBlobs(t *testing.T) {
	c := ops.KDATwin
	d := ops.NewNativeKDADevice()
	f := fused(t, d, c)
	s, err := ops.NewKDAState(d, c, ops.NewKDAHostState(c))
	require.NoError(t, err)
	step := func(v float32) []float32 {
		in := twinInput()
		in.Resident = s
		for i := range in.XQKV {
			in.XQKV[i] = v * float32(i%7)
		}
		out, err := f.Step(in)
		require.NoError(t, err)
		return out
	}
	step(.3)
	early, err := s.Snapshot()
	require.NoError(t, err)
	step(-.2)
	late, err := s.Snapshot()
	require.NoError(t, err)
	want := step(.5)
	require.NoError(t, s.Restore(late))
	require.Equal(t, want, step(.5))
	require.NoError(t, s.Restore(early))
	worst := 0.0
	for i, x := range step(.5) {
		worst = max(worst, math.Abs(float64(x-want[i])))
	}
	require.Greater(t, worst, 1e-4, "the early state gives something else: 0.011 when measured")

	require.NoError(t, s.Restore(late))
	for want, blob := range map[string][]byte{
		"a blob has 13 bytes or more, got 0":          nil,
		"the tag must be 1, got 2":                    append([]byte{2}, late[1:]...),
		"the blob ends before the size of conv":       late[:15],
		"the blob ends inside conv: 5 bytes of 12288": late[:22],
		"3 bytes follow the end of the blob":          append(slices.Clone(late), 1, 2, 3),
		"the blob is of 7 heads of 32 with conv_kernel 4, the state of 8 heads of 32 with conv_kernel 4": append([]byte{1, 7}, late[2:]...),
		"conv has 3073 elements, want 3072": func() []byte { b := slices.Clone(late); b[13]++; return b }(),
	} {
		require.EqualError(t, s.Restore(blob), "k3 kda: restore: "+want)
	}
	now, err := s.Snapshot()
	require.NoError(t, err)
	require.Equal(t, late, now, "a refused blob changes nothing")
}

// FuzzKDAStateBlob: a blob is restored and read back as it was, or refused.
func FuzzKDAStateBlob(f *testing.F) {
	c := ops.KDADecodeConfig{Heads: 1, HeadDim: 2, ConvKernel: 2}
	d := ops.NewNativeKDADevice()
	s, err := ops.NewKDAState(d, c, ops.NewKDAHostState(c))
	if err != nil {
		f.Fatal(err)
	}
	blob, err := s.Snapshot()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(blob)
	f.Add(blob[:20])
	f.Fuzz(func(t *testing.T, raw []byte) {
		if s.Restore(raw) != nil {
			return
		}
		again, err := s.Snapshot()
		require.NoError(t, err)
		require.True(t, bytes.Equal(raw, again))
	})
}
