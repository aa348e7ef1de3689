// The resident state of a fused decode: both buffers with their config.

package ops

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/seafan/seafan/ops/native"
)

// KDAState is a pair of states on a device. It knows what it was made for, since
// states of different geometry can have the same sizes, and refuses to be used
// after a failure that left it between two tokens.
type KDAState struct {
	config          KDADecodeConfig
	device          KDADevice
	conv, recurrent KDABuffer
	freed           bool
	poisoned        error
}

// NewKDAState allocates both buffers and uploads host to them; on a failure
// nothing stays allocated.
func NewKDAState(d KDADevice, c KDADecodeConfig, host *KDAHostState) (*KDAState, error) {
	if err := checkKDADecode(c); err != nil {
		return nil, err
	}
	s := &KDAState{config: c, device: d}
	if err := s.fits(host); err != nil {
		return nil, err
	}
	t := &kdaTransient{device: d}
	s.conv = t.alloc(len(host.Conv))
	s.recurrent = t.alloc(len(host.Recurrent))
	if t.err == nil {
		t.err = s.upload(host)
	}
	if t.err != nil {
		t.free()
		return nil, fmt.Errorf("k3 kda: %w", t.err)
	}
	return s, nil
}

func (s *KDAState) elems() *native.KDAStateElems {
	return &native.KDAStateElems{Conv: s.config.ConvElems(), Recurrent: s.config.RecurrentElems()}
}

func (s *KDAState) fits(host *KDAHostState) error {
	want := s.elems()
	if host == nil || len(host.Conv) != want.Conv || len(host.Recurrent) != want.Recurrent {
		got := host.elems()
		if got == nil {
			got = &native.KDAStateElems{}
		}
		return fmt.Errorf("k3 kda: resident state rank: conv %d, want %d, and recurrent %d, want %d", got.Conv, want.Conv, got.Recurrent, want.Recurrent)
	}
	return nil
}

func (s *KDAState) upload(host *KDAHostState) error {
	if err := s.device.Upload(s.conv, host.Conv); err != nil {
		return err
	}
	return s.device.Upload(s.recurrent, host.Recurrent)
}

// usable refuses a state that cannot advance.
func (s *KDAState) usable(d KDADevice) error {
	switch {
	case s.freed:
		return errors.New("k3 kda: the state was freed")
	case s.poisoned != nil:
		return fmt.Errorf("k3 kda: the state is poisoned, restore or upload it: %w", s.poisoned)
	case d != s.device:
		return errors.New("k3 kda: the state is on another device")
	}
	return nil
}

// poison marks a state that may stand between two tokens, and returns the
// reason. There is none to mark when the states are the host's.
func (s *KDAState) poison(err error) error {
	if s != nil {
		s.poisoned = err
	}
	return fmt.Errorf("k3 kda: %w", err)
}

// Poisoned is the failure that left the state between two tokens, or nil.
func (s *KDAState) Poisoned() error { return s.poisoned }

// Upload replaces the state by that of the host, and makes a poisoned one whole.
func (s *KDAState) Upload(host *KDAHostState) error {
	if s.freed {
		return errors.New("k3 kda: the state was freed")
	}
	if err := s.fits(host); err != nil {
		return err
	}
	if err := s.upload(host); err != nil {
		return s.poison(fmt.Errorf("upload: %w", err))
	}
	s.poisoned = nil
	return nil
}

// Download copies the state to host, all or nothing: on an error host is as it
// was.
func (s *KDAState) Download(host *KDAHostState) error {
	if err := s.usable(s.device); err != nil {
		return err
	}
	if err := s.fits(host); err != nil {
		return err
	}
	next := NewKDAHostState(s.config)
	if err := s.device.Download(next.Conv, s.conv); err != nil {
		return fmt.Errorf("k3 kda: conv: %w", err)
	}
	if err := s.device.Download(next.Recurrent, s.recurrent); err != nil {
		return fmt.Errorf("k3 kda: recurrent: %w", err)
	}
	*host = *next
	return nil
}

// Free gives both buffers back, also when the first cannot be, and returns the
// first error; a second call does nothing.
func (s *KDAState) Free() error {
	if s.freed {
		return nil
	}
	s.freed = true
	first := s.device.Free(s.conv)
	if err := s.device.Free(s.recurrent); first == nil {
		first = err
	}
	return first
}

// kdaStateTag begins a blob.
const kdaStateTag = 1

// kdaStateHeader is a tag and heads, head dim and kernel, each a u32.
const kdaStateHeader = 1 + 3*4

// Snapshot copies the state into a blob, little-endian: the tag 1; heads, head
// dim and conv_kernel as u32; then for the convolution and the recurrence the
// number of elements as u32 and as many float32.
func (s *KDAState) Snapshot() ([]byte, error) {
	host := NewKDAHostState(s.config)
	if err := s.Download(host); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	b := []byte{kdaStateTag}
	for _, v := range []int{s.config.Heads, s.config.HeadDim, s.config.ConvKernel} {
		b = le.AppendUint32(b, uint32(v))
	}
	for _, part := range [][]float32{host.Conv, host.Recurrent} {
		b = le.AppendUint32(b, uint32(len(part)))
		for _, v := range part {
			b = le.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b, nil
}

// Restore uploads the state of a blob of the same geometry. A blob that is
// longer or shorter than it says, or of another geometry, is refused and the
// state is as it was.
func (s *KDAState) Restore(blob []byte) error {
	host, err := s.parse(blob)
	if err != nil {
		return fmt.Errorf("k3 kda: restore: %w", err)
	}
	return s.Upload(host)
}

func (s *KDAState) parse(blob []byte) (*KDAHostState, error) {
	le := binary.LittleEndian
	if len(blob) < kdaStateHeader {
		return nil, fmt.Errorf("a blob has %d bytes or more, got %d", kdaStateHeader, len(blob))
	}
	if blob[0] != kdaStateTag {
		return nil, fmt.Errorf("the tag must be %d, got %d", kdaStateTag, blob[0])
	}
	c := KDADecodeConfig{Heads: int(le.Uint32(blob[1:])), HeadDim: int(le.Uint32(blob[5:])), ConvKernel: int(le.Uint32(blob[9:]))}
	if c.Heads != s.config.Heads || c.HeadDim != s.config.HeadDim || c.ConvKernel != s.config.ConvKernel {
		return nil, fmt.Errorf("the blob is of %d heads of %d with conv_kernel %d, the state of %d heads of %d with conv_kernel %d",
			c.Heads, c.HeadDim, c.ConvKernel, s.config.Heads, s.config.HeadDim, s.config.ConvKernel)
	}
	host, rest := NewKDAHostState(s.config), blob[kdaStateHeader:]
	for _, part := range []struct {
		name string
		to   []float32
	}{{"conv", host.Conv}, {"recurrent", host.Recurrent}} {
		if len(rest) < 4 {
			return nil, fmt.Errorf("the blob ends before the size of %s", part.name)
		}
		if n := le.Uint32(rest); int64(n) != int64(len(part.to)) {
			return nil, fmt.Errorf("%s has %d elements, want %d", part.name, n, len(part.to))
		}
		if rest = rest[4:]; len(rest) < 4*len(part.to) {
			return nil, fmt.Errorf("the blob ends inside %s: %d bytes of %d", part.name, len(rest), 4*len(part.to))
		}
		for i := range part.to {
			part.to[i] = math.Float32frombits(le.Uint32(rest[4*i:]))
		}
		rest = rest[4*len(part.to):]
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%d bytes follow the end of the blob", len(rest))
	}
	return host, nil
}
