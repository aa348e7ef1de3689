//go:build gpu

package cuda

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"

	"gorgonia.org/cu"

	"github.com/seafan/seafan/kernels"
)

// Devices lists the GPUs, or none and the reason.
func Devices() (list []DeviceInfo, reason string) {
	if err := probe(); err != nil {
		return nil, err.Error()
	}
	n, err := cu.NumDevices()
	if err != nil {
		return nil, "the CUDA driver lists no device: " + err.Error()
	}
	for i := range n {
		info, err := describe(i)
		if err != nil {
			return nil, fmt.Sprintf("device %d of %d does not answer: %v", i, n, err)
		}
		list = append(list, info)
	}
	if n == 0 {
		reason = "the CUDA driver is present and has no device"
	}
	return list, reason
}

func describe(index int) (DeviceInfo, error) {
	info := DeviceInfo{Index: index, Driver: cu.Version()}
	dev, err := cu.GetDevice(index)
	if err != nil {
		return info, err
	}
	name, err := dev.Name()
	if err != nil {
		return info, err
	}
	info.Name = strings.TrimRight(name, "\x00")
	major, err := dev.Attribute(cu.ComputeCapabilityMajor)
	if err != nil {
		return info, err
	}
	minor, err := dev.Attribute(cu.ComputeCapabilityMinor)
	if err != nil {
		return info, err
	}
	info.Compute = 10*major + minor
	if info.SMs, err = dev.Attribute(cu.MultiprocessorCount); err != nil {
		return info, err
	}
	info.Memory, err = dev.TotalMem()
	return info, err
}

// Device is a GPU that is open for use. Every driver call of a device runs on one goroutine that is locked to its thread
// with the primary context current; all methods may be called from any goroutine.
type Device struct {
	Info   DeviceInfo
	target Target
	dev    cu.Device

	calls chan func()
	done  chan struct{}

	closing sync.Mutex
	closed  bool

	mu    sync.Mutex // guards what follows
	stats Stats
	lost  error // the first failure that the context does not survive

	// Owned by the executor goroutine.
	modules   map[string]cu.Module
	functions map[string]*kernel
	buffers   map[*Buffer]struct{}
	pins      map[*HostBuffer]struct{}
	graphs    map[*Graph]struct{}
	streams   map[*Stream]struct{}
	main      *Stream
}

// Open opens a device by index. SEAFAN_CUDA_VARIANT=portable keeps it to the portable kernels, ptx also to their PTX.
func Open(index int) (*Device, error) {
	list, reason := Devices()
	variant := os.Getenv("SEAFAN_CUDA_VARIANT")
	info, err := pick(list, reason, index, variant)
	if err != nil {
		return nil, err
	}
	d := &Device{
		Info: info, calls: make(chan func(), 64), done: make(chan struct{}),
		modules: map[string]cu.Module{}, functions: map[string]*kernel{},
		buffers: map[*Buffer]struct{}{}, pins: map[*HostBuffer]struct{}{}, graphs: map[*Graph]struct{}{}, streams: map[*Stream]struct{}{},
	}
	d.stats.ByLabel = map[string]int64{}
	d.target = Target{Name: info.Name, Compute: info.Compute, SMs: info.SMs, Portable: variant != ""}
	ready := make(chan error)
	go d.serve(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return d, nil
}

// serve is the executor goroutine.
func (d *Device) serve(ready chan<- error) {
	runtime.LockOSThread()
	defer close(d.done)
	if err := d.start(); err != nil {
		ready <- err
		return
	}
	close(ready)
	for f := range d.calls {
		f()
	}
}

func (d *Device) start() (err error) {
	if d.dev, err = cu.GetDevice(d.Info.Index); err != nil {
		return wrap(err, fmt.Sprintf("device %d", d.Info.Index))
	}
	ctx, err := d.dev.RetainPrimaryCtx()
	if err != nil {
		return wrap(err, "primary context")
	}
	if err := cu.SetCurrentContext(ctx); err != nil {
		return wrap(err, "make the primary context current")
	}
	const sharedOptIn = cu.DeviceAttribute(97) // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, which cu does not name
	if d.target.MaxShared, err = d.dev.Attribute(sharedOptIn); err != nil {
		return wrap(err, "shared memory of a block")
	}
	if d.target.SharedSM, err = d.dev.Attribute(cu.MaxSharedMemoryPerMultiprocessor); err != nil {
		return wrap(err, "shared memory of a multiprocessor")
	}
	d.main, err = d.newStream()
	return err
}

// usable answers the failure that the context did not survive.
func (d *Device) usable() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost != nil {
		return fmt.Errorf("cuda: device %d is not usable after an earlier failure: %w", d.Info.Index, d.lost)
	}
	return nil
}

// do runs f on the executor goroutine and waits for it.
func (d *Device) do(f func() error) error {
	if err := d.usable(); err != nil {
		return err
	}
	return d.always(f)
}

// always is do without the refusal of a lost device: what Close needs.
func (d *Device) always(f func() error) error {
	t := newTask(d, f)
	return t.do()
}

// task is work for the executor goroutine that can be done again without an allocation, by one goroutine at a time.
type task struct {
	dev    *Device
	call   func()
	answer chan error
}

func newTask(d *Device, f func() error) *task {
	t := &task{dev: d, answer: make(chan error, 1)}
	t.call = func() {
		err := f()
		d.note(err)
		t.answer <- err
	}
	return t
}

func (t *task) do() error {
	d := t.dev
	d.closing.Lock()
	if d.closed {
		d.closing.Unlock()
		return fmt.Errorf("cuda: device %d is closed", d.Info.Index)
	}
	d.calls <- t.call
	d.closing.Unlock()
	return <-t.answer
}

// note remembers a failure after which the context answers nothing but that failure.
func (d *Device) note(err error) {
	if err == nil {
		return
	}
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	// Illegal address 700 to launch failure 719, uncorrectable ECC 214 and the like poison the context.
	if e.Code >= 700 && e.Code <= 720 && e.Code != 701 || e.Code == 214 || e.Code == 46 || e.Code == 719 {
		d.mu.Lock()
		if d.lost == nil {
			d.lost = err
		}
		d.mu.Unlock()
	}
}

// Target describes the device to launch code.
func (d *Device) Target() Target { return d.target }

// kernel is a loaded kernel.
type kernel struct {
	cu.Function
	params int
	shared int // dynamic shared memory that it was allowed so far
}

// kernel finds a kernel in the images, loading its image on first use, and allows it the shared memory.
func (d *Device) kernel(name string, shared int) (*kernel, error) {
	k := d.functions[name]
	if k == nil {
		file, err := kernels.FileOf(name)
		if err != nil {
			return nil, err
		}
		mod, ok := d.modules[file]
		if !ok {
			data, err := kernels.Bytes(file)
			if err != nil {
				return nil, err
			}
			if mod, err = cu.LoadData(string(data)); err != nil {
				return nil, wrap(err, fmt.Sprintf("image %s on %s (compute capability %d.%d)", file, d.Info.Name, d.Info.Compute/10, d.Info.Compute%10))
			}
			d.modules[file] = mod
		}
		f, err := mod.Function(name)
		if err != nil {
			return nil, wrap(err, fmt.Sprintf("kernel %s in image %s", name, file))
		}
		k = &kernel{Function: f, params: paramCount(f)}
		d.functions[name] = k
	}
	if shared > k.shared { // the driver allows 48 KB of its own accord, static shared memory included
		if err := allowShared(k.Function, shared); err != nil {
			return nil, err
		}
		k.shared = shared
	}
	return k, nil
}

// Close waits for the device, frees everything that was allocated through it and gives the context back.
func (d *Device) Close() error {
	err := d.always(func() error {
		errs := []error{wrap(cu.Synchronize(), "synchronize")}
		for g := range d.graphs {
			errs = append(errs, g.exec.destroy())
		}
		for b := range d.buffers {
			errs = append(errs, wrap(cu.MemFree(cu.DevicePtr(b.Addr)), "free "+b.Label))
		}
		for p := range d.pins {
			errs = append(errs, wrap(cu.MemFreeHost(p.pointer), "free pinned "+p.label))
		}
		for s := range d.streams {
			errs = append(errs, wrap(s.stream.Destroy(), "destroy stream"))
		}
		for _, m := range d.modules {
			errs = append(errs, wrap(m.Unload(), "unload image"))
		}
		errs = append(errs, wrap(d.dev.ReleasePrimaryCtx(), "release the primary context"))
		d.mu.Lock()
		d.stats = Stats{Peak: d.stats.Peak, ByLabel: map[string]int64{}}
		d.mu.Unlock()
		return errors.Join(errs...)
	})
	d.closing.Lock()
	defer d.closing.Unlock()
	if d.closed {
		return err
	}
	d.closed = true
	close(d.calls)
	<-d.done
	return err
}
