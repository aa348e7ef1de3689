package native

import (
	"sync"
	"unsafe"
)

// This file is a launch of linears of few rows that is kept, and what its workers do
// before they read the weights.

// Linears is a LinearsCoded that is made once and run many times: what the workers
// read of it lies in the caches of all, where that of a launch made anew is written
// by one core and fetched by the others. It may be used by one goroutine at a time.
type Linears struct{ streamArgs }

// NewLinears makes it, or nil where a product has no tiles. Add, if not nil, is [M,N]
// and added to what the one product gives; it may be its Y. A lead makes x, of few
// rows, anew for each worker: from values in which the cores have each a part, where
// one that makes it for all lets the others wait, first for it and then for its lines.
func NewLinears(x []float32, m, k int, ps []CodedLinear, lead Lead, add []float32) *Linears {
	var of [4]codedArgs
	if lead.x != nil && m > gemmFew || len(ps) > len(of) {
		return nil
	}
	for i := range ps {
		of[i] = ps[i].args(x, m, k)
		of[i].add = add
		if !of[i].streams() || add != nil && (of[i].panels == nil || of[i].n%panelCols != 0) {
			return nil
		}
	}
	l := &Linears{streamArgs{lead: lead}}
	for i := range ps {
		l.after = ps[i].After
		l.add(&of[i])
	}
	return l
}

// Run computes the products.
func (l *Linears) Run() {
	l.cut()
	if l.lead.x == nil {
		linears.launch(l.lanes, &l.streamArgs)
		return
	}
	rows := leadRows.take(l.lanes, l.of[0].m*l.of[0].k)
	if l.rows != rows { // as lanes
		l.rows = rows
	}
	linears.launch(l.lanes, &l.streamArgs)
	leadRows.give(rows)
}

// Lead is how rows of x are made, by RMSNormLead or SwiGLULead; not at all: 0.
type Lead struct {
	x, w []float32 // or gate and up
	d    int       // of a row of RMSNorm; 0: SwiGLU
	eps  float64
}

// RMSNormLead is RMSNorm of rows of d numbers.
func RMSNormLead(x, w []float32, d int, eps float64) Lead { return Lead{x, w, d, eps} }

// SwiGLULead is SwiGLU.
func SwiGLULead(gate, up []float32) Lead { return Lead{x: gate, w: up} }

// fill makes the rows.
func (l *Lead) fill(y []float32) {
	fetchFloats(l.x)
	fetchFloats(l.w)
	if l.d == 0 {
		a := gluArgs[float32]{y: y, gate: l.x, up: l.w, n: len(l.x)}
		for unit := range ceilDiv(a.n, unitElements) {
			swiGLUUnit(&a, unit)
		}
		return
	}
	for i := 0; i < len(l.x); i += l.d {
		rmsNormRow(y[i:][:l.d], l.x[i:][:l.d], l.w, l.eps)
	}
}

// fetchFloats asks for all lines of x at once: some may come from another core's
// cache.
func fetchFloats(x []float32) {
	if len(x) > 0 {
		fetchLines(unsafe.Pointer(&x[0]), len(x)*4)
	}
}

// laneRows are rows of x for each lane: a lane's are most often the same core's.
type laneRows [streamLanes][]float32

// leadRows are those that no launch uses.
var leadRows freeRows

type freeRows struct {
	mu   sync.Mutex
	free []*laneRows
}

// take gives the first lanes room for n numbers.
func (f *freeRows) take(lanes, n int) *laneRows {
	f.mu.Lock()
	var r *laneRows
	if last := len(f.free) - 1; last >= 0 {
		r = f.free[last]
		f.free = f.free[:last]
	} else {
		r = &laneRows{}
	}
	f.mu.Unlock()
	for l := range lanes {
		if cap(r[l]) < n {
			r[l] = make([]float32, n)
		}
		r[l] = r[l][:n]
	}
	return r
}

func (f *freeRows) give(r *laneRows) {
	f.mu.Lock()
	f.free = append(f.free, r)
	f.mu.Unlock()
}
