package cuda

import (
	"fmt"
	"strings"
)

// Recorder is a Queue that runs nothing and keeps what it was given as text, one line a step.
type Recorder struct {
	GPU   Target
	Lines []string
}

// Target returns the GPU that the recorder stands for.
func (r *Recorder) Target() Target { return r.GPU }

// Launch checks and writes down a launch.
func (r *Recorder) Launch(l Launch) error {
	if err := l.check(); err != nil {
		return err
	}
	if err := l.fits(r.GPU); err != nil {
		return err
	}
	if _, err := l.pack(func([]byte, TensorMap) error { return nil }); err != nil {
		return err
	}
	r.Lines = append(r.Lines, l.String())
	return nil
}

// Fill writes down a fill.
func (r *Recorder) Fill(dst Pointer, value byte, n int64) error {
	r.Lines = append(r.Lines, fmt.Sprintf("fill %s with %d, %d bytes", dst, value, n))
	return nil
}

// Copy writes down a copy.
func (r *Recorder) Copy(dst, src Pointer, n int64) error {
	r.Lines = append(r.Lines, fmt.Sprintf("copy %s to %s, %d bytes", src, dst, n))
	return nil
}

// String is the whole record.
func (r *Recorder) String() string { return strings.Join(r.Lines, "\n") + "\n" }
