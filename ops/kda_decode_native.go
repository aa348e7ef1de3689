// The fused decode without a device: the interface on native bodies.

package ops

import (
	"fmt"
	"sync"

	"github.com/seafan/seafan/ops/native"
)

// NativeKDADevice implements KDADevice in the memory of the host. It may be used
// from several goroutines.
type NativeKDADevice struct {
	mu      sync.Mutex
	next    KDABuffer
	buffers map[KDABuffer][]float32
}

// NewNativeKDADevice is a device without buffers.
func NewNativeKDADevice() *NativeKDADevice {
	return &NativeKDADevice{buffers: map[KDABuffer][]float32{}}
}

const (
	nativeKDAConv KDAKernel = iota + 1
	nativeKDARecurrent
)

// Kernel finds the two kernels of the fused decode.
func (d *NativeKDADevice) Kernel(module, entry string) (KDAKernel, error) {
	switch {
	case module == KDADecodeModule && entry == KDADecodeConv:
		return nativeKDAConv, nil
	case module == KDADecodeModule && entry == KDADecodeRecurrent:
		return nativeKDARecurrent, nil
	}
	return 0, fmt.Errorf("native has no %s of module %s", entry, module)
}

// Alloc makes a buffer.
func (d *NativeKDADevice) Alloc(bytes int) (KDABuffer, error) {
	if bytes < 1 {
		return 0, fmt.Errorf("a buffer has 1 byte or more, asked for %d", bytes)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next++
	d.buffers[d.next] = make([]float32, (bytes+3)/4)
	return d.next, nil
}

// Free drops a buffer.
func (d *NativeKDADevice) Free(b KDABuffer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.buffers[b]; !ok {
		return fmt.Errorf("there is no buffer %d", b)
	}
	delete(d.buffers, b)
	return nil
}

// buffer is one of at least n elements.
func (d *NativeKDADevice) buffer(b KDABuffer, n int) ([]float32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x, ok := d.buffers[b]
	if !ok || len(x) < n {
		return nil, fmt.Errorf("buffer %d must have %d elements, has %d", b, n, len(x))
	}
	return x[:n], nil
}

// Upload copies to a buffer.
func (d *NativeKDADevice) Upload(to KDABuffer, from []float32) error {
	x, err := d.buffer(to, len(from))
	copy(x, from)
	return err
}

// Download copies from a buffer.
func (d *NativeKDADevice) Download(to []float32, from KDABuffer) error {
	x, err := d.buffer(from, len(to))
	copy(to, x)
	return err
}

// Synchronize has nothing to wait for: a launch is done when it returns.
func (d *NativeKDADevice) Synchronize(KDAStream) error { return nil }

// Launch runs a kernel; grid and block are the device's own matter.
func (d *NativeKDADevice) Launch(k KDAKernel, l KDALaunch) error {
	a := kdaArgs{device: d, args: l.Args}
	switch k {
	case nativeKDAConv:
		channels, width := a.number(4), a.number(5)
		if a.err == nil && (channels%3 != 0 || channels == 0 || width == 0) {
			a.err = fmt.Errorf("channels must be those of q, k and v and the width above 0, got %d and %d", channels, width)
		}
		x, w, state, y := a.buffer(0, channels), a.buffer(1, channels*width), a.buffer(2, channels*width), a.buffer(3, channels)
		if a.err == nil {
			native.KDAFusedConv(y, state, x, w, KDADecodeConfig{Heads: 1, HeadDim: channels / 3, ConvKernel: width})
		}
	case nativeKDARecurrent:
		h, n := a.number(5), a.number(6)
		y, gate, beta, state, out := a.buffer(0, 3*h*n), a.buffer(1, h*n), a.buffer(2, h), a.buffer(3, h*n*n), a.buffer(4, h*n)
		if a.err == nil {
			native.KDAFusedRecurrent(out, state, y, gate, beta, KDADecodeConfig{Heads: h, HeadDim: n, ConvKernel: 1})
		}
	default:
		a.err = fmt.Errorf("native has no kernel %d", k)
	}
	return a.err
}

// kdaArgs reads the arguments of a launch and keeps the first error.
type kdaArgs struct {
	device *NativeKDADevice
	args   []any
	err    error
}

func (a *kdaArgs) at(i int) any {
	if i >= len(a.args) {
		return nil
	}
	return a.args[i]
}

func (a *kdaArgs) number(i int) int {
	v, ok := a.at(i).(uint32)
	if !ok && a.err == nil {
		a.err = fmt.Errorf("argument %d must be a uint32, got %T", i, a.at(i))
	}
	return int(v)
}

func (a *kdaArgs) buffer(i, n int) []float32 {
	b, ok := a.at(i).(KDABuffer)
	if !ok && a.err == nil {
		a.err = fmt.Errorf("argument %d must be a buffer, got %T", i, a.at(i))
	}
	if a.err != nil {
		return nil
	}
	var x []float32
	x, a.err = a.device.buffer(b, n)
	return x
}
