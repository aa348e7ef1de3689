//go:build gpu

package cuda

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"unsafe"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

// unit is an open device with what the plans on it share: weights, tables and states, each once, counted by the executors
// that hold them. (They are not kept with the Param: memory of a device must go when the last executor closes.)
type unit struct {
	dev *Device

	mu     sync.Mutex
	shared map[any]*resident
	homes  map[*graph.Param]*home
}

type resident struct {
	buf     *Buffer
	refs    int
	version uint64
}

// home says where a state lives, for as long as an executor uses it.
type home struct {
	onHost bool
	refs   int
}

var units = struct {
	sync.Mutex
	open map[int]*unit
}{open: map[int]*unit{}}

func unitOf(index int) (*unit, error) {
	units.Lock()
	defer units.Unlock()
	if u := units.open[index]; u != nil {
		return u, nil
	}
	d, err := Open(index)
	if err != nil {
		return nil, err
	}
	u := &unit{dev: d, shared: map[any]*resident{}, homes: map[*graph.Param]*home{}}
	units.open[index] = u
	return u, nil
}

// hold takes the shared region, loading it at its first use.
func (u *unit) hold(r *region, random bool) (*resident, error) {
	if res := u.shared[r.key]; res != nil {
		if res.buf.Bytes != r.bytes {
			return nil, fmt.Errorf("cuda: %s is on the device with %d bytes, the plan needs %d: close the executors that hold it", r.label, res.buf.Bytes, r.bytes)
		}
		res.refs++
		return res, res.renew(u.dev, r)
	}
	b, err := u.dev.Alloc(r.label, r.bytes)
	if err != nil {
		return nil, err
	}
	res := &resident{buf: b, refs: 1, version: r.version()}
	err = load(u.dev, b, r)
	if err == nil && random && r.from != nil && !r.state && !r.from[0].Allocated() {
		if r.codes > 0 {
			err = randomCodes(u.dev, b, r.codes)
		} else {
			err = randomize(u.dev, b)
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.Free())
	}
	u.shared[r.key] = res
	return res, nil
}

// renew uploads a weight again whose version has changed; a state is the device's own.
func (res *resident) renew(d *Device, r *region) error {
	version := r.version()
	if r.state || version == res.version {
		return nil
	}
	if err := load(d, res.buf, r); err != nil {
		return err
	}
	res.version = version
	return nil
}

// load writes a region's first content.
func load(d *Device, b *Buffer, r *region) error {
	var data []byte
	if r.fill != nil {
		data = r.fill()
	}
	if data == nil {
		return d.Main().Fill(b.Pointer, 0, r.bytes)
	}
	if int64(len(data)) != r.bytes {
		return fmt.Errorf("cuda: %s has %d bytes, the plan was made for %d: build the graph again", r.label, len(data), r.bytes)
	}
	return d.Upload(b.Pointer, data)
}

// randomCodes fills a weight of FP8 codes and, behind them, its steps: normal numbers of deviation 0.02, as randomize does.
func randomCodes(d *Device, b *Buffer, codes int64) error {
	r := rand.New(rand.NewPCG(uint64(b.Bytes), 1))
	x := make([]float32, min(1<<20, codes))
	for i := range x {
		x[i] = float32(64 * r.NormFloat64())
	}
	block, steps := make([]byte, len(x)), make([]float32, (b.Bytes-codes)/4)
	native.FP8TensorQuantize(block, x, 1, native.E4M3)
	for i := range steps {
		steps[i] = 0.02 / 64
	}
	n := int64(len(block))
	err := errors.Join(d.Upload(b.Pointer, block), d.Upload(b.At(codes), floatBytes(steps)))
	for at := n; at < codes && err == nil; at += n {
		err = d.Main().Copy(b.At(at), b.Pointer, min(n, codes-at))
	}
	return err
}

// randomize fills a weight of bf16 with normal numbers of deviation 0.02: a block of them, again and again.
func randomize(d *Device, b *Buffer) error {
	r := rand.New(rand.NewPCG(uint64(b.Bytes), 1))
	block := make([]dtype.BF16, min(1<<20+64, b.Bytes/2))
	for i := range block {
		block[i] = dtype.ToBF16(float32(0.02 * r.NormFloat64()))
	}
	n := 2 * int64(len(block))
	err := d.Upload(b.Pointer, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(block))), n))
	for at := n; at < b.Bytes && err == nil; at += n {
		err = d.Main().Copy(b.At(at), b.Pointer, min(n, b.Bytes-at))
	}
	return err
}

func (u *unit) drop(key any) error {
	res := u.shared[key]
	if res.refs--; res.refs > 0 {
		return nil
	}
	delete(u.shared, key)
	return res.buf.Free()
}

func (u *unit) known() map[*graph.Param]bool {
	m := map[*graph.Param]bool{}
	for param, h := range maps.All(u.homes) {
		m[param] = h.onHost
	}
	return m
}

func (u *unit) keep(param *graph.Param, onHost bool) {
	if u.homes[param] == nil {
		u.homes[param] = &home{onHost: onHost}
	}
	u.homes[param].refs++
}

func (u *unit) leave(param *graph.Param) {
	if h := u.homes[param]; h != nil {
		if h.refs--; h.refs == 0 {
			delete(u.homes, param)
		}
	}
}

func firstByte(b []byte) unsafe.Pointer                   { return unsafe.Pointer(&b[0]) }
func pinnedAt(h *HostBuffer, offset int64) unsafe.Pointer { return unsafe.Add(h.pointer, offset) }

// plain says that the bytes of an output are the value as the caller gets it.
func (o *output) plain() bool { return o.typ.DType != dtype.Float32 || o.dt == F32 }

func (o *output) bytes() int64 {
	if o.typ.DType != dtype.Float32 {
		return int64(o.typ.Bytes())
	}
	return int64(o.typ.Size() * o.dt.Size())
}

// version counts the changes of what a region is filled from.
func (r *region) version() (n uint64) {
	for _, param := range r.from {
		n += param.Version()
	}
	return n
}
