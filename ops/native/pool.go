// Package native holds the CPU bodies of the ops as plain functions on slices.
//
// A body cuts its work into units by the shape of its operands, never by the
// number of workers, and every sum runs in a fixed order inside one unit, so a
// result is bit-equal for any number of workers. Units run on one process-wide
// pool. In a steady state no body allocates: arguments and scratch are reused.
package native

import (
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Float is the element type of a body: float32 in use, float64 in the tests
// that compare a whole model with its oracle.
type Float interface{ ~float32 | ~float64 }

// kernel is a unit of work with its arguments: run computes unit i of a call, in
// a seat that is the worker's own as long as the call lasts. It is declared once
// as a package variable (one for each element type) and started with launch; calls
// are kept and reused, so launch does not allocate.
type kernel[A any] struct {
	run   func(a *A, seat, i int)
	mu    sync.Mutex
	calls []*call[A] // those that nobody refers to are free
}

func newKernel[A any](run func(a *A, i int)) *kernel[A] {
	return newSeatKernel(func(a *A, _, i int) { run(a, i) })
}

// newSeatKernel makes a kernel whose units want to know their worker's seat.
func newSeatKernel[A any](run func(a *A, seat, i int)) *kernel[A] {
	return &kernel[A]{run: run}
}

// launch runs units 0..n-1 on the pool and returns when all are done. Units
// may run in any order and at the same time; each must write its own part.
func (k *kernel[A]) launch(n int, args A) { k.launchSeats(n, Workers(), args) }

// launchSeats is launch with that many seats at most.
func (k *kernel[A]) launchSeats(n, seats int, args A) {
	if n <= 0 {
		return
	}
	helpers := min(seats, n) - 1
	c := k.take(helpers)
	c.args = args
	if helpers > 0 {
		c.start(n, helpers)
		for h := 1; h <= helpers; h++ {
			pool.submit(&c.batch, h)
		}
		c.work(0)
		c.wait()
	} else {
		for i := range n {
			c.one(0, i)
		}
	}
	var zero A
	c.args = zero // here, where its cache lines are
	var p *any
	if c.panicked.Load() != nil {
		p = c.panicked.Swap(nil)
	}
	c.release()
	if p != nil {
		panic(*p)
	}
}

// take finds a free call for the caller and so many helpers.
func (k *kernel[A]) take(helpers int) *call[A] {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.calls {
		if atomic.LoadInt64(&c.refs) == 0 {
			c.refs = int64(helpers) + 1
			return c
		}
	}
	c := &call[A]{}
	c.refs = int64(helpers) + 1
	c.done = make(chan struct{}, 1)
	c.unit = func(seat, i int) { k.run(&c.args, seat, i) }
	k.calls = append(k.calls, c)
	return c
}

// pick returns the kernel that takes A out of the two declared for float32 and
// float64, for a generic body.
func pick[A any](k32, k64 any) *kernel[A] {
	if k, ok := k32.(*kernel[A]); ok {
		return k
	}
	return k64.(*kernel[A])
}

type call[A any] struct {
	batch
	args A
}

// batch is the part of a call that the workers see. What start writes it writes
// without barriers, each of which would wait for a line from another core: nobody
// else looks until submit.
type batch struct {
	left     int64  // units not finished
	refs     int64  // the caller and those who were told of the batch
	parts    []part // of the units, one for each who shares the work
	unit     func(seat, i int)
	waits    atomic.Bool // the caller sleeps until done
	panicked atomic.Pointer[any]
	done     chan struct{}
}

// part is a run of units and a seat. Each worker begins with its own, so that from
// launch to launch the same rows are the same core's, whose cache holds them; then
// it helps with the others.
type part struct {
	next, end int64 // next unit to hand out
	sits      int32 // a worker has the seat
	_         [44]byte
}

func (b *batch) start(n, helpers int) {
	parts := helpers + 1
	if cap(b.parts) < parts {
		b.parts = make([]part, parts)
	}
	b.parts = b.parts[:parts]
	for i := range b.parts {
		b.parts[i] = part{next: int64(n * i / parts), end: int64(n * (i + 1) / parts)}
	}
	b.left = int64(n)
}

// work runs units, those of its own part first. What it has done of a part it
// counts at the end, as each count takes a cache line from another core, and
// before it looks at the next one, which may be another core's too.
func (b *batch) work(mine int) {
	seat := mine % len(b.parts)
	for !atomic.CompareAndSwapInt32(&b.parts[seat].sits, 0, 1) {
		seat = (seat + 1) % len(b.parts)
	}
	for k := range b.parts {
		p := &b.parts[(seat+k)%len(b.parts)]
		done := int64(0)
		for {
			i := atomic.AddInt64(&p.next, 1) - 1
			if i >= p.end {
				break
			}
			b.one(seat, int(i))
			done++
		}
		if done > 0 && atomic.AddInt64(&b.left, -done) == 0 {
			if b.waits.CompareAndSwap(true, false) {
				b.done <- struct{}{}
			}
			return
		}
	}
}

// one runs a unit. A panic is kept for the caller of launch: in a worker it
// would end the process.
func (b *batch) one(seat, i int) {
	defer func() {
		if p := recover(); p != nil {
			kept := p // a copy, so that only a panic allocates
			b.panicked.CompareAndSwap(nil, &kept)
		}
	}()
	b.unit(seat, i)
}

// wait returns when all units are done: most often the last one is, or will be
// soon, so it looks before it sleeps.
func (b *batch) wait() {
	for s := (spin{}); atomic.LoadInt64(&b.left) > 0; {
		if !s.again() {
			b.waits.Store(true)
			// The last one may have counted before it could see that.
			if atomic.LoadInt64(&b.left) > 0 || !b.waits.CompareAndSwap(true, false) {
				<-b.done
			}
			return
		}
	}
}

// release drops one reference; without any the call is free.
func (b *batch) release() { atomic.AddInt64(&b.refs, -1) }

var pool = newWorkers()

func newWorkers() *workers {
	w := &workers{queue: make(chan *batch, 1024)}
	for i := range w.boxes {
		w.boxes[i].Store(away)
	}
	return w
}

// workers is the pool. A caller always works on its own batch and waits only
// for units that a worker has begun, so a nested launch cannot deadlock.
type workers struct {
	mu      sync.Mutex
	want    atomic.Int64 // 0: GOMAXPROCS
	running atomic.Int64
	queue   chan *batch // for whoever comes first
	boxes   [64]box     // of the first helpers, by number
}

// box is where a helper that looks for a batch finds one: a cache line that
// changes hands, where the queue takes several. Nil: it looks.
type box struct {
	atomic.Pointer[batch]
	fetch atomic.Pointer[byte] // waitBytes that it fetches into its caches while it looks, or nil
	_     [48]byte
}

const (
	waitBytes = 64 << 10 // more than a helper fetches between two launches of a token
	lookBytes = 512      // of them between two looks
)

// away is in the box of a helper that is at work, or asleep at the queue.
var away = &batch{}

// MostWorkers is the largest number of goroutines that share one call: each keeps
// a stack and scratch.
const MostWorkers = 1024

// SetWorkers sets how many goroutines, the caller included, share the work of
// one call, at most MostWorkers. n <= 0 means GOMAXPROCS. It never changes a result.
func SetWorkers(n int) { pool.want.Store(int64(min(max(n, 0), MostWorkers))) }

// Workers returns how many goroutines share the work of one call.
func Workers() int {
	if n := pool.want.Load(); n > 0 {
		return int(n)
	}
	return runtime.GOMAXPROCS(0)
}

// submit tells helper h of b, or, when it is away, whoever comes to the
// queue first. Where the helpers are far behind, the caller works alone: entries
// that nobody comes to hold their calls back from reuse.
func (w *workers) submit(b *batch, h int) {
	n := Workers()
	if w.running.Load() < int64(n-1) {
		w.grow()
	}
	if h < len(w.boxes) && w.boxes[h].CompareAndSwap(nil, b) {
		return
	}
	if len(w.queue) > 4*n {
		b.release()
		return
	}
	select {
	case w.queue <- b:
	default:
		b.release()
	}
}

func (w *workers) grow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.running.Load() < int64(Workers()-1) {
		h := int(w.running.Add(1)) // the caller's part is 0
		mine := &box{}             // where nobody puts a batch
		if h < len(w.boxes) {
			mine = &w.boxes[h]
		}
		go func() {
			debug.SetPanicOnFault(true) // a weight whose file was cut short is a panic, which the caller gets
			for {
				b := w.next(mine)
				b.work(h)
				b.release()
			}
		}()
	}
}

// next is the next batch that wants help of the helper with that box. The launches
// of a plan follow each other within microseconds, and to wake a sleeping thread
// takes tens: a helper looks for work for a while before it sleeps.
func (w *workers) next(mine *box) *batch {
	mine.CompareAndSwap(away, nil) // else there is a batch
	fetch, fetched := mine.fetch.Swap(nil), 0
	for s := (spin{}); ; {
		if b := mine.Load(); b != nil {
			mine.Store(away)
			return b
		}
		if fetch != nil && fetched < waitBytes {
			fetchLines(unsafe.Add(unsafe.Pointer(fetch), fetched), lookBytes)
			fetched += lookBytes
		}
		select {
		case b := <-w.queue:
			mine.CompareAndSwap(nil, away)
			return b
		default:
		}
		if !s.again() && mine.CompareAndSwap(nil, away) {
			return <-w.queue
		}
	}
}

// spin is a wait that holds its core.
type spin struct {
	n     int
	start time.Time
}

const spinFor = 100 * time.Microsecond

// again says that there is time left: spinFor, or a few looks where the workers have
// to share the processors: there the one that is waited for may need this one. How
// many those are is behind a lock that all cores share, so short waits do not ask.
func (s *spin) again() bool {
	s.n++
	switch {
	case s.n%32 != 0:
		return true
	case s.n == 32:
		s.start = time.Now()
		return runtime.GOMAXPROCS(0) >= Workers()
	}
	return time.Since(s.start) < spinFor
}

// scratch is a free list of buffers, shared by the calls of one process.
// Buffers come back with whatever they held.
type scratch[T any] struct {
	mu   sync.Mutex
	free [48][][]T // by power of two
}

var (
	scratch32 scratch[float32]
	scratch64 scratch[float64]

	scratchCounts scratch[int32]
)

// take returns a buffer of n elements; give returns it.
func (s *scratch[T]) take(n int) []T {
	c := sizeClass(n)
	s.mu.Lock()
	if l := s.free[c]; len(l) > 0 {
		b := l[len(l)-1]
		s.free[c] = l[:len(l)-1]
		s.mu.Unlock()
		return b[:n]
	}
	s.mu.Unlock()
	return make([]T, 1<<c)[:n]
}

func (s *scratch[T]) give(b []T) {
	c := sizeClass(cap(b))
	s.mu.Lock()
	s.free[c] = append(s.free[c], b[:cap(b)])
	s.mu.Unlock()
}

func sizeClass(n int) int {
	c := 4
	for 1<<c < n {
		c++
	}
	return c
}

// takeScratch and giveScratch are take and give for a generic body.
func takeScratch[T Float](n int) []T {
	var z T
	if _, ok := any(z).(float32); ok {
		return any(scratch32.take(n)).([]T)
	}
	return any(scratch64.take(n)).([]T)
}

func giveScratch[T Float](b []T) {
	switch b := any(b).(type) {
	case []float32:
		scratch32.give(b)
	case []float64:
		scratch64.give(b)
	}
}
