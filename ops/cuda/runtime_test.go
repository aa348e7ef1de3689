//go:build gpu

package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// The device is safe for 64 goroutines, and each gets its own results.
func TestDeviceN13_SixtyFourGoroutines(t *testing.T) {
	d := device(t)
	before := d.Stats()
	var wait sync.WaitGroup
	errs := make([]error, 64)
	for i := range errs {
		wait.Go(func() { errs[i] = addOnOwnStream(d, i) })
	}
	wait.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, before.Bytes, d.Stats().Bytes)
	require.Equal(t, before.Buffers, d.Stats().Buffers)
}

func addOnOwnStream(d *Device, i int) error {
	const n = 4096
	r := rand.New(rand.NewPCG(uint64(i), 1))
	s, err := d.NewStream()
	if err != nil {
		return err
	}
	host, err := d.Pinned("test", 4*n)
	if err != nil {
		return err
	}
	buf, err := d.Alloc(fmt.Sprintf("goroutine %d", i), 4*n)
	if err != nil {
		return err
	}
	for range 10 {
		x := normal(r, F32, n, 1)
		copy(host.Data, encode(F32, x))
		err := errors.Join(s.Send(buf.Pointer, host, 4*n), Add{Type: F32, N: n, Y: buf.Pointer, A: buf.Pointer, B: buf.Pointer}.Launch(s), s.Fetch(host, buf.Pointer, 4*n), s.Wait())
		if err != nil {
			return err
		}
		for j, v := range decode(F32, host.Data) {
			if v != 2*x[j] {
				return fmt.Errorf("goroutine %d: element %d is %g, want %g", i, j, v, 2*x[j])
			}
		}
	}
	return errors.Join(buf.Free(), buf.Free(), host.Free())
}

// A captured graph replays, keeps device memory constant, and reads lengths that changed since the capture.
func TestDeviceGraphServesChangedLengths(t *testing.T) {
	b := newBench(t)
	r := rand.New(rand.NewPCG(2, 2))
	const n, hq, hk, D = 300, 4, 2, 64
	q, k, v := normal(r, BF16, hq*D, 1), normal(r, BF16, n*hk*D, 1), normal(r, BF16, n*hk*D, 1)
	a := AttentionDecode{Type: BF16, B: 1, Hq: hq, Hk: hk, D: D, Q: b.put(BF16, q), K: b.put(BF16, k), V: b.put(BF16, v), Out: b.out(BF16, hq*D), Lengths: b.ints(n), MaxLength: n, Window: -1}
	b.decodeScratch(&a)
	b.run(a) // loads the kernels
	g, err := b.d.Main().Capture(func(q Queue) error { return a.Launch(q) })
	require.NoError(t, err)
	bytes := b.d.Stats().Bytes
	for _, length := range []int{n, 1, 65, 0, 128} {
		require.NoError(t, b.d.Upload(a.Lengths, []byte{byte(length), byte(length >> 8), 0, 0}))
		require.NoError(t, g.Replay(b.d.Main()))
		got := b.get(BF16, a.Out, hq*D)
		var want []float64
		for h := range hq {
			row := func(x []float64) func(int) []float64 { return func(j int) []float64 { return x[(j*hk+h/2)*D:][:D] } }
			o, _ := oracle(q[h*D:][:D], row(k), row(v), length, D, func(int) bool { return true }, 0.125, 0, nil)
			want = append(want, o...)
		}
		near(t, BF16, 2, want, got)
	}
	require.Equal(t, bytes, b.d.Stats().Bytes)
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
}

func TestDeviceErrorsName(t *testing.T) {
	b := newBench(t)
	_, err := b.d.Alloc("too much", 1<<50)
	require.ErrorContains(t, err, "alloc too much of 1125899906842624 bytes: driver error 2")
	require.ErrorContains(t, err, "held:")
	_, err = Open(99)
	require.ErrorContains(t, err, "device 99 was asked for")
	err = b.d.Main().Launch(Launch{Kernel: "no_such_kernel", Grid: [3]int{1, 1, 1}, Block: 32})
	require.EqualError(t, err, `kernels: no image has a kernel named "no_such_kernel"`)
	err = b.d.Main().Launch(Launch{Kernel: "pointwise_add_f32", Grid: [3]int{1, 1, 1}, Block: 32, Args: []Arg{{"y", Pointer{}}}})
	require.EqualError(t, err, "cuda: the arguments of pointwise_add_f32 fill 8 bytes, which is not what the kernel takes")
	err = b.d.Main().Launch(Launch{Kernel: "pointwise_add_f32", Grid: [3]int{1, 1, 1}, Block: 2000})
	require.EqualError(t, err, "pointwise_add_f32: a block has 1 to 1024 threads, got 2000")
	_, err = b.d.Main().Capture(func(Queue) error { return errors.New("stop") })
	require.EqualError(t, err, "stop")
}
