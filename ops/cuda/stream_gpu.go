//go:build gpu

package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"
)

// Stream runs work in order on its device.
type Stream struct {
	dev    *Device
	stream cu.Stream
}

// Main is the stream that Upload and Download use.
func (d *Device) Main() *Stream { return d.main }

// NewStream makes a further stream.
func (d *Device) NewStream() (s *Stream, err error) {
	err = d.do(func() (err error) {
		s, err = d.newStream()
		return err
	})
	return s, err
}

func (d *Device) newStream() (*Stream, error) {
	raw, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return nil, wrap(err, "make stream")
	}
	s := &Stream{dev: d, stream: raw}
	d.streams[s] = struct{}{}
	return s, nil
}

// Target describes the device.
func (s *Stream) Target() Target { return s.dev.target }

// Launch sends a kernel launch.
func (s *Stream) Launch(l Launch) error {
	return s.dev.do(func() error { return s.direct().Launch(l) })
}

// Fill sets n bytes.
func (s *Stream) Fill(dst Pointer, value byte, n int64) error {
	return s.dev.do(func() error { return s.direct().Fill(dst, value, n) })
}

// Copy copies n bytes within the device.
func (s *Stream) Copy(dst, src Pointer, n int64) error {
	return s.dev.do(func() error { return s.direct().Copy(dst, src, n) })
}

// Send copies pinned host memory to the device without waiting; h must stay unchanged until the stream has passed it.
func (s *Stream) Send(dst Pointer, h *HostBuffer, n int64) error {
	if n < 0 || n > int64(len(h.Data)) {
		return fmt.Errorf("cuda: send %d bytes of pinned %s, which has %d", n, h.label, len(h.Data))
	}
	return s.dev.do(func() error {
		s.dev.copied(&s.dev.stats.Uploads, n)
		return wrap(cu.MemcpyHtoDAsync(cu.DevicePtr(dst.Addr), h.pointer, n, s.stream), fmt.Sprintf("send %d bytes to %v", n, dst))
	})
}

// Fetch copies device memory to pinned host memory without waiting.
func (s *Stream) Fetch(h *HostBuffer, src Pointer, n int64) error {
	if n < 0 || n > int64(len(h.Data)) {
		return fmt.Errorf("cuda: fetch %d bytes into pinned %s, which has %d", n, h.label, len(h.Data))
	}
	return s.dev.do(func() error {
		s.dev.copied(&s.dev.stats.Downloads, n)
		return wrap(cu.MemcpyDtoHAsync(unsafe.Pointer(h.pointer), cu.DevicePtr(src.Addr), n, s.stream), fmt.Sprintf("fetch %d bytes from %v", n, src))
	})
}

// Wait returns when everything sent so far has run, with the first failure of it.
func (s *Stream) Wait() error {
	return s.dev.do(func() error { return wrap(s.stream.Synchronize(), "wait for the stream") })
}

// direct is the same queue for callers that are on the executor goroutine already.
func (s *Stream) direct() Queue { return direct{s} }

type direct struct{ *Stream }

func (q direct) Launch(l Launch) error {
	if err := l.check(); err != nil {
		return err
	}
	if err := l.fits(q.dev.target); err != nil {
		return err
	}
	k, err := q.dev.kernel(l.Kernel, l.Shared)
	if err != nil {
		return err
	}
	block, err := l.pack(encodeMap)
	if err != nil {
		return err
	}
	return launchRaw(k.Function, k.params, q.stream, l, append(block, make([]byte, 8)...)[:len(block)])
}

func (q direct) Fill(dst Pointer, value byte, n int64) error {
	if n == 0 {
		return nil
	}
	return wrap(cu.MemsetD8Async(cu.DevicePtr(dst.Addr), value, n, q.stream), fmt.Sprintf("fill %d bytes at %v", n, dst))
}

func (q direct) Copy(dst, src Pointer, n int64) error {
	if n == 0 {
		return nil
	}
	return wrap(cu.MemcpyDtoDAsync(cu.DevicePtr(dst.Addr), cu.DevicePtr(src.Addr), n, q.stream), fmt.Sprintf("copy %d bytes from %v to %v", n, src, dst))
}

// Graph is captured work that replays with one call. The buffers that it names must outlive it.
type Graph struct {
	dev  *Device
	exec executable
}

// Capture records what f queues and makes a graph of it; nothing of it runs yet. f must use only the queue that it is
// given: it runs on the executor goroutine, so any other method of the device would wait for itself. Kernels load on
// their first launch, which a capture does not allow for some images: launch each once before.
func (s *Stream) Capture(f func(Queue) error) (*Graph, error) {
	g := &Graph{dev: s.dev}
	err := s.dev.do(func() error {
		if err := beginCapture(s.stream); err != nil {
			return err
		}
		failed := f(s.direct())
		exec, err := endCapture(s.stream, failed == nil)
		if failed != nil || err != nil {
			return errors.Join(failed, err)
		}
		g.exec = exec
		s.dev.graphs[g] = struct{}{}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Replay runs the graph on a stream.
func (g *Graph) Replay(s *Stream) error {
	return g.dev.do(func() error { return g.exec.launch(s.stream) })
}

// Close frees the graph. Closing twice does nothing.
func (g *Graph) Close() error {
	return g.dev.do(func() error {
		if _, live := g.dev.graphs[g]; !live {
			return nil
		}
		delete(g.dev.graphs, g)
		return g.exec.destroy()
	})
}

// Event marks a point of a stream, for timing and for order between streams.
type Event struct {
	dev   *Device
	event cu.Event
}

// NewEvent makes an event.
func (d *Device) NewEvent() (*Event, error) {
	e := &Event{dev: d}
	err := d.do(func() (err error) {
		e.event, err = cu.MakeEvent(cu.DefaultEvent)
		return wrap(err, "make event")
	})
	return e, err
}

// Record puts the event behind what the stream was given so far.
func (e *Event) Record(s *Stream) error {
	return e.dev.do(func() error { return wrap(e.event.Record(s.stream), "record event") })
}

// After makes a stream wait for the event.
func (s *Stream) After(e *Event) error {
	return s.dev.do(func() error { return wrap(s.stream.Wait(e.event, 0), "wait for event") })
}

// Since returns the milliseconds between two recorded events, waiting for the later one.
func (e *Event) Since(start *Event) (ms float64, err error) {
	err = e.dev.do(func() error {
		if err := e.event.Synchronize(); err != nil {
			return wrap(err, "wait for event")
		}
		ms, err = start.event.Elapsed(e.event)
		return wrap(err, "time between events")
	})
	return ms, err
}

// Free gives the event back.
func (e *Event) Free() error {
	return e.dev.do(func() error { return wrap(cu.DestroyEvent(&e.event), "free event") })
}
