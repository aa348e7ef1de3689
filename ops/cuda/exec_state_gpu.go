//go:build gpu

package cuda

import (
	"errors"
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
)

// Keeps says whether the executor keeps the state on its device: the memory of the Param is then not what the state is.
func (e *Executor) Keeps(p *graph.Param) bool {
	_, _, err := e.kept(p)
	return err == nil
}

func (e *Executor) kept(p *graph.Param) (*Buffer, DType, error) {
	switch {
	case e.missing():
		return nil, 0, errNoExecutor
	case p == nil:
		return nil, 0, errors.New("cuda: the state is missing (nil)")
	}
	dt, ok := e.prog.stateType(p)
	e.unit.mu.Lock()
	defer e.unit.mu.Unlock()
	res := e.unit.shared[stateKey{p, dt}]
	if !ok || res == nil {
		return nil, dt, fmt.Errorf("cuda: state %s is not kept on the device", p.Name)
	}
	return res.buf, dt, nil
}

// ReadState copies a part of a state, from byte at of the Param's type on, as the Param's type.
func (e *Executor) ReadState(p *graph.Param, at int, dst []byte) error {
	b, from, raw, err := e.part(p, at, dst)
	if err != nil {
		return err
	}
	if err := b.dev.Download(raw, from); err != nil {
		return err
	}
	if dt, _ := e.prog.stateType(p); p.Type.DType == dtype.Float32 {
		widen(dst, raw, dt)
	} else {
		copy(dst, raw)
	}
	return nil
}

// WriteState is the other way.
func (e *Executor) WriteState(p *graph.Param, at int, src []byte) error {
	b, to, raw, err := e.part(p, at, src)
	if err != nil {
		return err
	}
	if dt, _ := e.prog.stateType(p); p.Type.DType == dtype.Float32 {
		narrow(raw, src, dt)
	} else {
		copy(raw, src)
	}
	return b.dev.Upload(to, raw)
}

// part is where a part of a state lies on the device, with memory for it in the device's type.
func (e *Executor) part(p *graph.Param, at int, host []byte) (*Buffer, Pointer, []byte, error) {
	b, dt, err := e.kept(p)
	if err != nil {
		return nil, Pointer{}, nil, err
	}
	size := p.Type.DType.Size()
	if at < 0 || at%size != 0 || len(host)%size != 0 || at+len(host) > p.Type.Bytes() {
		return nil, Pointer{}, nil, fmt.Errorf("cuda: state %s (%s): %d bytes from %d on are no part of it", p.Name, p.Type, len(host), at)
	}
	return b, b.At(int64(at / size * dt.Size())), make([]byte, len(host)/size*dt.Size()), nil
}
