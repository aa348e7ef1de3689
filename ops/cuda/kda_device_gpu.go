//go:build gpu

package cuda

import (
	"fmt"
	"sync"

	"github.com/seafan/seafan/kernels"
	"github.com/seafan/seafan/ops"
)

// KDADevice implements ops.KDADevice on a GPU: the two kernels of the fused decode of package ops, their buffers and copies.
// Stream 0 is the device's main one; others come from Stream. It may be used from several goroutines.
type KDADevice struct {
	dev *Device

	mu      sync.Mutex
	buffers map[ops.KDABuffer]*Buffer
	entries []string // KDAKernel n is entry n-1
	streams []*Stream
}

// NewKDADevice is a KDADevice without buffers on an open device.
func NewKDADevice(d *Device) *KDADevice {
	return &KDADevice{dev: d, buffers: map[ops.KDABuffer]*Buffer{}}
}

// Stream gives a stream of the device the number by which launches name it.
func (k *KDADevice) Stream(s *Stream) ops.KDAStream {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.streams = append(k.streams, s)
	return ops.KDAStream(len(k.streams))
}

func (k *KDADevice) stream(n ops.KDAStream) (*Stream, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case n == 0:
		return k.dev.Main(), nil
	case n > ops.KDAStream(len(k.streams)):
		return nil, fmt.Errorf("cuda: there is no stream %d, of %d", n, len(k.streams))
	}
	return k.streams[n-1], nil
}

// Kernel loads an entry of a module, which is an image of package kernels.
func (k *KDADevice) Kernel(module, entry string) (ops.KDAKernel, error) {
	file, err := kernels.FileOf(entry)
	if err != nil {
		return 0, err
	}
	if file != module+".fatbin" {
		return 0, fmt.Errorf("cuda: kernel %s is in image %s, not in module %s", entry, file, module)
	}
	if err := k.dev.do(func() error {
		_, err := k.dev.kernel(entry, 0)
		return err
	}); err != nil {
		return 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.entries = append(k.entries, entry)
	return ops.KDAKernel(len(k.entries)), nil
}

// Alloc takes device memory.
func (k *KDADevice) Alloc(bytes int) (ops.KDABuffer, error) {
	if bytes < 1 {
		return 0, fmt.Errorf("cuda: a buffer has 1 byte or more, asked for %d", bytes)
	}
	b, err := k.dev.Alloc("kda decode", int64(bytes))
	if err != nil {
		return 0, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	id := ops.KDABuffer(b.Addr)
	k.buffers[id] = b
	return id, nil
}

// Free gives a buffer back.
func (k *KDADevice) Free(b ops.KDABuffer) error {
	k.mu.Lock()
	x := k.buffers[b]
	delete(k.buffers, b)
	k.mu.Unlock()
	if x == nil {
		return fmt.Errorf("cuda: there is no buffer %#x", uint64(b))
	}
	return x.Free()
}

// buffer is one of at least so many bytes.
func (k *KDADevice) buffer(b ops.KDABuffer, bytes int) (Pointer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	x := k.buffers[b]
	if x == nil || x.Bytes < int64(bytes) {
		return Pointer{}, fmt.Errorf("cuda: buffer %#x must have %d bytes", uint64(b), bytes)
	}
	return x.Pointer, nil
}

// Upload copies to a buffer and waits.
func (k *KDADevice) Upload(to ops.KDABuffer, from []float32) error {
	p, err := k.buffer(to, 4*len(from))
	if err != nil {
		return err
	}
	return k.dev.Upload(p, floatBytes(from))
}

// Download copies from a buffer and waits.
func (k *KDADevice) Download(to []float32, from ops.KDABuffer) error {
	p, err := k.buffer(from, 4*len(to))
	if err != nil {
		return err
	}
	return k.dev.Download(floatBytes(to), p)
}

// Launch sends a kernel launch to its stream.
func (k *KDADevice) Launch(kernel ops.KDAKernel, l ops.KDALaunch) error {
	s, err := k.stream(l.Stream)
	if err != nil {
		return err
	}
	k.mu.Lock()
	if kernel < 1 || int(kernel) > len(k.entries) {
		k.mu.Unlock()
		return fmt.Errorf("cuda: there is no kernel %d", kernel)
	}
	name := k.entries[kernel-1]
	k.mu.Unlock()
	x := Launch{Kernel: name, Grid: [3]int{l.Grid, 1, 1}, Block: l.Block, Shared: l.Shared}
	for i, a := range l.Args {
		if b, ok := a.(ops.KDABuffer); ok {
			p, err := k.buffer(b, 1)
			if err != nil {
				return fmt.Errorf("%s: argument %d: %w", name, i, err)
			}
			a = p
		}
		x.Args = append(x.Args, Arg{fmt.Sprint(i), a})
	}
	return s.Launch(x)
}

// Synchronize waits for a stream.
func (k *KDADevice) Synchronize(n ops.KDAStream) error {
	s, err := k.stream(n)
	if err != nil {
		return err
	}
	return s.Wait()
}
