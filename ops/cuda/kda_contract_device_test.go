//go:build gpu

package cuda

// The fused decode of package ops on its two kernels: results, copies, memory, and what a failure between them leaves.

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops"
)

func float32s(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

func float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// contractToken is a random token of a geometry.
func contractToken(r *rand.Rand, c ops.KDADecodeConfig) ops.KDADecodeInput {
	of := func(n int, spread float64) []float32 { return float32s(normal(r, F32, n, spread)) }
	in := ops.KDADecodeInput{XQKV: of(c.ConvDim(), 1), ConvW: of(c.ConvElems(), .5), Gate: of(c.QKVDim(), 1), Beta: of(c.Heads, 1)}
	for i, v := range in.Gate {
		in.Gate[i] = -float32(math.Exp(float64(v) - 3))
	}
	return in
}

func contractState(r *rand.Rand, c ops.KDADecodeConfig) *ops.KDAHostState {
	h := ops.NewKDAHostState(c)
	copy(h.Conv, float32s(normal(r, F32, len(h.Conv), 1)))
	copy(h.Recurrent, float32s(normal(r, F32, len(h.Recurrent), 1)))
	return h
}

// On the device and natively, through the host and resident, for several tokens.
func TestDeviceKDAContract(t *testing.T) {
	d := device(t)
	side, err := d.NewStream()
	require.NoError(t, err)
	dev := NewKDADevice(d)
	stream := dev.Stream(side)
	for _, c := range []ops.KDADecodeConfig{ops.KDAProduction, ops.KDATwin, {Heads: 3, HeadDim: 20, ConvKernel: 2}, {Heads: 2, HeadDim: 200, ConvKernel: 3}, {Heads: 1, HeadDim: 1, ConvKernel: 1}} {
		r := rand.New(rand.NewPCG(uint64(c.Heads), 5))
		mine, err := ops.NewFusedDecode(dev, c)
		require.NoError(t, err)
		theirs, err := ops.NewFusedDecode(ops.NewNativeKDADevice(), c)
		require.NoError(t, err)
		host := contractState(r, c)
		want := &ops.KDAHostState{Conv: slices.Clone(host.Conv), Recurrent: slices.Clone(host.Recurrent)}
		resident, err := ops.NewKDAState(dev, c, host)
		require.NoError(t, err)
		for range 3 {
			in := contractToken(r, c)
			in.Stream = stream
			wantIn := in
			wantIn.Host, wantIn.Stream = want, 0
			o, err := theirs.Step(wantIn)
			require.NoError(t, err)
			in.Host = host
			a, err := mine.Step(in)
			require.NoError(t, err)
			near(t, F32, 16, float64s(o), float64s(a)) // measured 4.4
			in.Host, in.Resident = nil, resident
			b, err := mine.Step(in)
			require.NoError(t, err)
			require.Equal(t, a, b, "a resident state gives the same bits")
		}
		got := ops.NewKDAHostState(c)
		require.NoError(t, resident.Download(got))
		require.Equal(t, host, got)
		require.Equal(t, want.Conv, got.Conv)
		near(t, F32, 16, float64s(want.Recurrent), float64s(got.Recurrent)) // measured 1.8
		require.NoError(t, resident.Free())
	}
}

// The vectors of the contract.
func TestDeviceKDAContractVectors(t *testing.T) {
	d := device(t)
	raw, err := os.ReadFile("../native/testdata/kda.json")
	if err != nil {
		raw, err = os.ReadFile("../../../shared/vectors/kda.json")
	}
	if err != nil {
		t.Skip(err)
	}
	type tensor struct{ Data []float64 }
	var v struct {
		Seed map[string]json.RawMessage `json:"seed_decode"`
	}
	require.NoError(t, json.Unmarshal(raw, &v))
	data := func(name string) []float64 {
		var x tensor
		require.NoError(t, json.Unmarshal(v.Seed[name], &x), name)
		return x.Data
	}
	c := ops.KDADecodeConfig{Heads: 2, HeadDim: 4, ConvKernel: 4}
	dev := NewKDADevice(d)
	f, err := ops.NewFusedDecode(dev, c)
	require.NoError(t, err)
	s, err := ops.NewKDAState(dev, c, &ops.KDAHostState{Conv: float32s(data("conv0")), Recurrent: float32s(data("rec0"))})
	require.NoError(t, err)
	defer s.Free()
	x, gate, beta := float32s(data("x_qkv")), float32s(data("gate")), float32s(data("beta_logit"))
	for i := range 3 {
		o, err := f.Step(ops.KDADecodeInput{XQKV: x[24*i:][:24], ConvW: float32s(data("conv_w")), Gate: gate[8*i:][:8], Beta: beta[2*i:][:2], Resident: s})
		require.NoError(t, err)
		require.Less(t, rmsRatio(t, data("out")[8*i:][:8], float64s(o)), 1e-5)
		got := ops.NewKDAHostState(c)
		require.NoError(t, s.Download(got))
		require.Less(t, rmsRatio(t, data("rec_after")[32*i:][:32], float64s(got.Recurrent)), 1e-5)
	}
	got := ops.NewKDAHostState(c)
	require.NoError(t, s.Download(got))
	require.Equal(t, data("conv_final"), float64s(got.Conv))
}

// Ten thousand steps hold the memory of the first, and make the copies of the contract: with weights on the device three up
// (token, gate, strength), the output down, and never the state.
func TestDeviceKDAContractSteps(t *testing.T) {
	d := device(t)
	dev, c := NewKDADevice(d), ops.KDATwin
	r := rand.New(rand.NewPCG(4, 4))
	f, err := ops.NewFusedDecode(dev, c)
	require.NoError(t, err)
	in := contractToken(r, c)
	weights, err := ops.NewKDAWeights(dev, c, in.ConvW)
	require.NoError(t, err)
	in.Resident, err = ops.NewKDAState(dev, c, contractState(r, c))
	require.NoError(t, err)
	_, err = f.Step(in) // conv_w is sent: four up
	require.NoError(t, err)
	before := d.Stats()
	_, err = f.Step(in)
	require.NoError(t, err)
	after := d.Stats()
	require.EqualValues(t, 4, after.Uploads.Count-before.Uploads.Count)
	require.EqualValues(t, 1, after.Downloads.Count-before.Downloads.Count)
	require.EqualValues(t, 4*c.QKVDim(), after.Downloads.Bytes-before.Downloads.Bytes)
	in.ConvW, in.Weights = nil, weights
	steps := shorter(10000, 30)
	for range steps {
		o, err := f.Step(in)
		require.NoError(t, err)
		require.False(t, slices.ContainsFunc(o, func(x float32) bool { return x != x }))
	}
	end := d.Stats()
	require.Equal(t, before.Bytes, end.Bytes)
	require.Equal(t, before.Buffers, end.Buffers)
	require.EqualValues(t, 3*steps, end.Uploads.Count-after.Uploads.Count)
	require.EqualValues(t, steps, end.Downloads.Count-after.Downloads.Count)
	require.EqualValues(t, steps*4*c.QKVDim(), end.Downloads.Bytes-after.Downloads.Bytes)
	require.NoError(t, in.Resident.Free())
	require.NoError(t, weights.Free())
	require.Zero(t, len(dev.buffers))
}

// failingDevice refuses launch number fail.
type failingDevice struct {
	*KDADevice
	launches, fail int
}

var errInjected = errors.New("injected")

func (f *failingDevice) Launch(k ops.KDAKernel, l ops.KDALaunch) error {
	if f.launches++; f.launches == f.fail {
		return errInjected
	}
	return f.KDADevice.Launch(k, l)
}

// A failure between the kernels poisons the state; a snapshot makes it whole, bit for bit.
func TestDeviceKDAContractPoison(t *testing.T) {
	d := device(t)
	dev, c := &failingDevice{KDADevice: NewKDADevice(d)}, ops.KDADecodeConfig{Heads: 4, HeadDim: 64, ConvKernel: 4}
	r := rand.New(rand.NewPCG(6, 6))
	f, err := ops.NewFusedDecode(dev, c)
	require.NoError(t, err)
	s, err := ops.NewKDAState(dev, c, contractState(r, c))
	require.NoError(t, err)
	defer s.Free()
	in := contractToken(r, c)
	in.Resident = s
	blob, err := s.Snapshot()
	require.NoError(t, err)
	want, err := f.Step(in)
	require.NoError(t, err)
	require.NoError(t, s.Restore(blob))
	dev.launches, dev.fail = 0, 2
	_, err = f.Step(in)
	require.ErrorIs(t, err, errInjected)
	require.ErrorContains(t, err, ops.KDADecodeRecurrent)
	_, err = f.Step(in)
	require.ErrorContains(t, err, "poisoned")
	require.NoError(t, s.Restore(blob))
	got, err := f.Step(in)
	require.NoError(t, err)
	require.Equal(t, want, got)
	dev.launches, dev.fail = 0, 1 // before the first kernel nothing has moved
	_, err = f.Step(in)
	require.ErrorIs(t, err, errInjected)
	require.NoError(t, s.Poisoned())
}
