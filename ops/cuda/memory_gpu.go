//go:build gpu

package cuda

import (
	"errors"
	"fmt"
	"maps"
	"unsafe"

	"gorgonia.org/cu"
)

// Buffer is device memory. Its Pointer is what launches take.
type Buffer struct {
	Pointer
	Bytes int64
	dev   *Device
}

// Alloc takes device memory under a label, by which Stats and an out-of-memory error name it. Zero bytes give a nil
// pointer.
func (d *Device) Alloc(label string, bytes int64) (*Buffer, error) {
	if bytes < 0 {
		return nil, fmt.Errorf("cuda: alloc %s: %d bytes", label, bytes)
	}
	b := &Buffer{Pointer: Pointer{Label: label}, Bytes: bytes, dev: d}
	if bytes == 0 {
		return b, nil
	}
	err := d.do(func() error {
		p, err := cu.MemAlloc(bytes)
		if err != nil {
			err = wrap(err, fmt.Sprintf("alloc %s of %d bytes", label, bytes))
			var e *Error
			if errors.As(err, &e) && e.Code == 2 {
				free, total, _ := cu.MemInfo()
				return fmt.Errorf("%w; %d of %d bytes are free; held: %v", err, free, total, d.Stats())
			}
			return err
		}
		b.Addr = uint64(p)
		d.buffers[b] = struct{}{}
		d.account(label, bytes, 1)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (d *Device) account(label string, bytes int64, buffers int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stats.Bytes += bytes
	d.stats.Peak = max(d.stats.Peak, d.stats.Bytes)
	d.stats.Buffers += buffers
	d.stats.ByLabel[label] += bytes
	if d.stats.ByLabel[label] == 0 {
		delete(d.stats.ByLabel, label)
	}
}

// copied counts a copy.
func (d *Device) copied(c *Copies, bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.Count++
	c.Bytes += bytes
}

// Free gives the memory back once the device is done with what was queued. Freeing twice does nothing.
func (b *Buffer) Free() error {
	return b.dev.do(func() error {
		if _, live := b.dev.buffers[b]; !live {
			return nil
		}
		if err := wrap(cu.MemFree(cu.DevicePtr(b.Addr)), "free "+b.Label); err != nil {
			return err
		}
		delete(b.dev.buffers, b)
		b.dev.account(b.Label, -b.Bytes, -1)
		b.Addr = 0
		return nil
	})
}

// Stats says what the device's memory holds.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.ByLabel = maps.Clone(d.stats.ByLabel)
	return s
}

// Upload copies host bytes to the device and returns when they are there.
func (d *Device) Upload(dst Pointer, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return d.do(func() error {
		d.copied(&d.stats.Uploads, int64(len(src)))
		if err := cu.MemcpyHtoDAsync(cu.DevicePtr(dst.Addr), unsafe.Pointer(&src[0]), int64(len(src)), d.main.stream); err != nil {
			return wrap(err, fmt.Sprintf("upload %d bytes to %v", len(src), dst))
		}
		return wrap(d.main.stream.Synchronize(), fmt.Sprintf("upload %d bytes to %v", len(src), dst))
	})
}

// Download copies device bytes to the host after everything that the main stream was given before.
func (d *Device) Download(dst []byte, src Pointer) error {
	if len(dst) == 0 {
		return nil
	}
	return d.do(func() error {
		d.copied(&d.stats.Downloads, int64(len(dst)))
		if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&dst[0]), cu.DevicePtr(src.Addr), int64(len(dst)), d.main.stream); err != nil {
			return wrap(err, fmt.Sprintf("download %d bytes from %v", len(dst), src))
		}
		return wrap(d.main.stream.Synchronize(), fmt.Sprintf("download %d bytes from %v", len(dst), src))
	})
}

// HostBuffer is page-locked host memory: copies from and to it run beside the host.
type HostBuffer struct {
	Data    []byte
	pointer unsafe.Pointer
	label   string
	dev     *Device
}

// Pinned takes page-locked host memory.
func (d *Device) Pinned(label string, bytes int64) (*HostBuffer, error) {
	if bytes < 1 {
		return nil, fmt.Errorf("cuda: pinned %s: %d bytes", label, bytes)
	}
	h := &HostBuffer{label: label, dev: d}
	err := d.do(func() (err error) {
		if h.pointer, err = pinned(bytes); err != nil {
			return err
		}
		h.Data = unsafe.Slice((*byte)(h.pointer), bytes)
		d.pins[h] = struct{}{}
		d.mu.Lock()
		d.stats.Pinned += bytes
		d.mu.Unlock()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Free gives the page-locked memory back; Data must not be used after it. Freeing twice does nothing.
func (h *HostBuffer) Free() error {
	return h.dev.do(func() error {
		if _, live := h.dev.pins[h]; !live {
			return nil
		}
		if err := wrap(cu.MemFreeHost(h.pointer), "free pinned "+h.label); err != nil {
			return err
		}
		delete(h.dev.pins, h)
		h.dev.mu.Lock()
		h.dev.stats.Pinned -= int64(len(h.Data))
		h.dev.mu.Unlock()
		h.Data = nil
		return nil
	})
}
