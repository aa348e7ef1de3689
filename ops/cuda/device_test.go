//go:build gpu

package cuda

// What the device tests share: the device, typed buffers with NaN inside and guards behind, the metric, the clock.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/optest"
)

var openOnce = sync.OnceValues(func() (*Device, error) { return Open(0) })

var ran atomic.Int64

func TestMain(m *testing.M) {
	code := m.Run()
	fmt.Printf("device tests that ran: %d\n", ran.Load())
	os.Exit(code)
}

// device skips a test without a GPU unless REQUIRE_CUDA=1.
func device(t testing.TB) *Device {
	d, err := openOnce()
	if err != nil {
		if os.Getenv("REQUIRE_CUDA") == "1" {
			t.Fatalf("REQUIRE_CUDA=1: %v", err)
		}
		t.Skip(err)
	}
	ran.Add(1)
	return d
}

// tables counts the subtests of each test that has a table; tests with tables run one after the other.
var tables = map[string]int{}

// each is a subtest beside its siblings: the device takes one call at a time, and the oracles have every core. The short form
// is for tools that are ten to a hundred times slower: it runs one subtest in every, which should share no factor with the
// lengths of the lists that the subtests are made from.
func each(t *testing.T, every int, name string, f func(t *testing.T)) {
	n := tables[t.Name()]
	tables[t.Name()]++
	if testing.Short() && n%every != 0 {
		return
	}
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		f(t)
	})
}

// shorter is n, or few in the short form.
func shorter(n, few int) int {
	if testing.Short() {
		return few
	}
	return n
}

// roundoff is the unit roundoff of a type.
func roundoff(dt DType) float64 {
	return map[DType]float64{BF16: 1. / 256, F16: 1. / 2048, F32: 1. / (1 << 24)}[dt]
}

func encode(dt DType, x []float64) []byte {
	var b []byte
	for _, v := range x {
		switch dt {
		case F32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		case BF16:
			u := math.Float32bits(float32(v))
			if v != v {
				u = 0x7fc00000
			} else {
				u += 0x7fff + u>>16&1
			}
			b = binary.LittleEndian.AppendUint16(b, uint16(u>>16))
		case F16:
			b = binary.LittleEndian.AppendUint16(b, f16bits(v))
		case E4M3:
			b = append(b, e4m3Code(v))
		}
	}
	return b
}

// e4m3Values are those of all codes.
var e4m3Values = func() (v [256]float64) {
	for i := range v {
		v[i] = optest.E4M3.Decode(uint16(i))
	}
	return v
}()

// e4m3Code finds the code by the exponent; every test value is below 448.
func e4m3Code(v float64) byte {
	sign := byte(0)
	if math.Signbit(v) {
		sign, v = 0x80, -v
	}
	if v != v {
		return sign | 0x7f
	}
	_, e := math.Frexp(v)
	if e = max(e, -5); v < math.Ldexp(1, -6) {
		return sign | byte(math.RoundToEven(math.Ldexp(v, 9)))
	}
	return sign + byte((e+6)<<3) + byte(math.RoundToEven(math.Ldexp(v, 4-e))) - 8
}

// f16bits rounds to nearest even; every test value is within range.
func f16bits(v float64) uint16 {
	sign := uint16(0)
	if math.Signbit(v) {
		sign, v = 0x8000, -v
	}
	switch {
	case v != v:
		return 0x7e00
	case math.IsInf(v, 0) || v >= 65520:
		return sign | 0x7c00
	case v < math.Ldexp(1, -14):
		return sign | uint16(math.RoundToEven(math.Ldexp(v, 24)))
	}
	_, e := math.Frexp(v)
	return sign + uint16((e+13)<<10) + uint16(math.RoundToEven(math.Ldexp(v, 11-e)))
}

func decode(dt DType, b []byte) []float64 {
	x := make([]float64, len(b)/dt.Size())
	for i := range x {
		switch dt {
		case F32:
			x[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
		case BF16:
			x[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
		case E4M3:
			x[i] = e4m3Values[b[i]]
		case F16:
			u := binary.LittleEndian.Uint16(b[2*i:])
			e, m := int(u>>10&31), float64(u&1023)
			switch {
			case e == 31 && m != 0:
				x[i] = math.NaN()
			case e == 31:
				x[i] = math.Inf(1)
			case e == 0:
				x[i] = math.Ldexp(m, -24)
			default:
				x[i] = math.Ldexp(m+1024, e-25)
			}
			if u&0x8000 != 0 {
				x[i] = -x[i]
			}
		}
	}
	return x
}

// normal draws n values of the given spread, rounded to the type, so that the oracle sees what the device sees.
func normal(r *rand.Rand, dt DType, n int, spread float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = r.NormFloat64() * spread
	}
	return decode(dt, encode(dt, x))
}

// bench is one test's buffers on the device.
type bench struct {
	t   testing.TB
	d   *Device
	all []*Buffer
}

func newBench(t testing.TB) *bench {
	b := &bench{t: t, d: device(t)}
	t.Cleanup(func() {
		for _, x := range b.all {
			require.NoError(t, x.Free())
		}
	})
	return b
}

const guardBytes = 256

func (b *bench) alloc(bytes int) *Buffer {
	x, err := b.d.Alloc("test", int64(bytes)+guardBytes)
	require.NoError(b.t, err)
	b.all = append(b.all, x)
	require.NoError(b.t, b.d.Main().Fill(x.Pointer, 0xff, int64(bytes)+guardBytes)) // NaN in every type
	return x
}

func (b *bench) put(dt DType, x []float64) Pointer {
	p := b.alloc(len(x) * dt.Size()).Pointer
	require.NoError(b.t, b.d.Upload(p, encode(dt, x)))
	return p
}

func (b *bench) ints(x ...int) Pointer {
	p := b.alloc(4 * len(x)).Pointer
	var data []byte
	for _, v := range x {
		data = binary.LittleEndian.AppendUint32(data, uint32(int32(v)))
	}
	require.NoError(b.t, b.d.Upload(p, data))
	return p
}

// out is an output of n elements, NaN before the call, with a guard behind it.
func (b *bench) out(dt DType, n int) Pointer { return b.alloc(n * dt.Size()).Pointer }

func (b *bench) raw(p Pointer, bytes int) []byte {
	data := make([]byte, bytes+guardBytes)
	require.NoError(b.t, b.d.Download(data, p))
	for i, v := range data[bytes:] {
		require.EqualValues(b.t, 0xff, v, "guard byte %d behind the buffer was written", i)
	}
	return data[:bytes]
}

func (b *bench) get(dt DType, p Pointer, n int) []float64 { return decode(dt, b.raw(p, n*dt.Size())) }

func (b *bench) run(launch interface{ Launch(Queue) error }) {
	b.t.Helper()
	require.NoError(b.t, launch.Launch(b.d.Main()))
	require.NoError(b.t, b.d.Main().Wait())
}

// near holds rms(got-want)/rms(want) and every element under c unit roundoffs of the stored type, elementwise against the
// larger of |want| and rms(want) with 4 times the room.
func near(t testing.TB, dt DType, c float64, want, got []float64) {
	t.Helper()
	require.Equal(t, len(want), len(got))
	var diff, ref float64
	for i := range want {
		if math.IsInf(want[i], 0) {
			require.Equal(t, want[i], got[i], "element %d", i)
			continue
		}
		if got[i] != got[i] {
			t.Fatalf("element %d of %d is NaN, want %g", i, len(want), want[i])
		}
		diff += (got[i] - want[i]) * (got[i] - want[i])
		ref += want[i] * want[i]
	}
	rms := math.Sqrt(ref / float64(max(1, len(want))))
	ratio := math.Sqrt(diff/math.Max(ref, 1e-300)) / roundoff(dt)
	if ref == 0 {
		ratio = math.Sqrt(diff)
	}
	t.Logf("error %.3f unit roundoffs, bound %g", ratio, c)
	if ratio > c {
		for i := range want {
			if math.Abs(got[i]-want[i]) > 8*c*roundoff(dt)*math.Max(math.Abs(want[i]), rms) {
				t.Fatalf("error %.3f unit roundoffs, bound %g; first far element %d: got %g, want %g", ratio, c, i, got[i], want[i])
			}
		}
		t.Fatalf("error %.3f unit roundoffs, bound %g", ratio, c)
	}
	for i := range want {
		if !math.IsInf(want[i], 0) && math.Abs(got[i]-want[i]) > 8*c*roundoff(dt)*math.Max(math.Abs(want[i]), rms) {
			t.Fatalf("element %d: got %g, want %g", i, got[i], want[i])
		}
	}
}

// clock returns the median microseconds of one launch: reps launches over the given input sets in one captured graph.
func clock(t testing.TB, d *Device, reps int, f func(q Queue, i int) error) float64 {
	t.Helper()
	s := d.Main()
	require.NoError(t, f(s, 0))
	require.NoError(t, s.Wait())
	g, err := s.Capture(func(q Queue) error {
		for i := range reps {
			if err := f(q, i); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, err)
	defer g.Close()
	a, err := d.NewEvent()
	require.NoError(t, err)
	z, err := d.NewEvent()
	require.NoError(t, err)
	defer a.Free()
	defer z.Free()
	var times []float64
	for i := range 12 {
		// In one call, so that no hand-over to the device's goroutine lies between the events.
		require.NoError(t, d.do(func() error {
			return errors.Join(a.event.Record(s.stream), g.exec.launch(s.stream), z.event.Record(s.stream))
		}))
		ms, err := z.Since(a)
		require.NoError(t, err)
		if i >= 2 {
			times = append(times, ms*1e3/float64(reps))
		}
	}
	sort.Float64s(times)
	return times[len(times)/2]
}

// random fills a fresh buffer with copies of one block of normal values.
func (b *bench) random(dt DType, n int, spread float64) Pointer {
	p := b.alloc(n * dt.Size()).Pointer
	block := min(n, 1<<20+7)
	r := rand.New(rand.NewPCG(uint64(n), 3))
	x := encode(dt, normal(r, dt, block, spread))
	require.NoError(b.t, b.d.Upload(p, x))
	for at := block; at < n; {
		m := min(at, n-at)
		require.NoError(b.t, b.d.Main().Copy(p.At(int64(at*dt.Size())), p, int64(m*dt.Size())))
		at += m
	}
	return p
}

// row prints one line of the benchmark table.
func row(t testing.TB, name, shape string, us, flops, bytes float64) {
	t.Helper()
	fmt.Printf("BENCH\t%-24s\t%-40s\t%9.2f us\t%7.1f TFLOP/s\t%7.0f GB/s\n", name, shape, us, flops/us/1e6, bytes/us/1e3)
}

// speed gates the timing tests: they need a quiet GPU and minutes of it.
func speed(t testing.TB) {
	if os.Getenv("SEAFAN_BENCH") != "1" {
		t.Skip("set SEAFAN_BENCH=1 to time kernels")
	}
}
