// One open file: mapped into memory, or read through io.ReaderAt.

package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
)

// source is a file of known size. mem is its mapping, nil where it is read
// through r.
type source struct {
	path string
	r    io.ReaderAt
	size int64
	mem  []byte

	mu     sync.RWMutex // readers against close
	closed bool
	file   *os.File // nil when the caller owns r
}

// OpenFile opens a regular file to read. What is none, a pipe that nobody writes
// to or a device without end, is an error before it is opened.
func OpenFile(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: required a regular file, this is %s", path, info.Mode())
	}
	return os.Open(path)
}

// openSource opens and maps a file. A file that cannot be mapped is read.
func openSource(path string) (*source, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	s := &source{path: path, r: f, size: info.Size(), file: f}
	if mem, err := mapFile(f, s.size); err == nil {
		s.mem = mem
	}
	return s, nil
}

// close is idempotent.
func (s *source) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	if s.mem != nil {
		errs = append(errs, unmapFile(s.mem))
		s.mem = nil
	}
	if s.file != nil {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

// bufferSize bounds the pieces of a file that is read and not mapped. It is
// more than the largest quantised block.
const bufferSize = 256 << 10

// mapped runs use, which may read a mapped file: one that somebody shortened, or
// closed, gives an error, not a crash.
func mapped(use func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		fault, ok := p.(interface {
			error
			Addr() uintptr
		})
		if !ok {
			panic(p)
		}
		err = fmt.Errorf("the file was closed, shortened or failed while it was mapped: %w", fault)
	}()
	return use()
}

// pieces calls use with consecutive parts of the n bytes at off, each a whole
// number of units long: all at once when mapped. A mapped file that was
// shortened by someone else gives an error, not a crash.
func (s *source) pieces(off, n int64, unit int, use func(p []byte)) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return fmt.Errorf("%s: read after Close: %w", s.path, os.ErrClosed)
	}
	if off < 0 || n < 0 || off > s.size || n > s.size-off {
		return fmt.Errorf("%s: bytes %d to %d lie outside the file of %d", s.path, off, off+n, s.size)
	}
	if s.mem != nil {
		err := mapped(func() error {
			use(s.mem[off : off+n : off+n])
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", s.path, err)
		}
		return nil
	}
	buf := make([]byte, min(n, int64(bufferSize/unit*unit)))
	for n > 0 {
		p := buf[:min(n, int64(len(buf)))]
		if got, err := s.r.ReadAt(p, off); got < len(p) {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return fmt.Errorf("%s: reading %d bytes at %d gave %d: %w", s.path, len(p), off, got, err)
		}
		use(p)
		off += int64(len(p))
		n -= int64(len(p))
	}
	return nil
}

// read fills p from off.
func (s *source) read(p []byte, off int64) error {
	return s.pieces(off, int64(len(p)), 1, func(b []byte) { p = p[copy(p, b):] })
}
