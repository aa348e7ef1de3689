package native

import (
	"sync/atomic"
	"unsafe"
)

// This file is the product of few rows with a stored weight, in tiles that read
// the weight where it lies and widen it in registers. The bits are those of
// linearCodedUnit.

// codedTileCols is the rows of w, columns of y, of a tile.
const codedTileCols = 16

// codedTile are the arguments of a tile of 1 to gemmFew rows of x and
// codedTileCols rows of w; strides are in bytes. The offsets are known to the
// assembly, which changes the arguments.
type codedTile struct {
	rows, k int            // 0, 8
	x       unsafe.Pointer // 16
	ldx     int            // 24
	w       unsafe.Pointer // 32
	ldw     int            // 40
	s       unsafe.Pointer // 48: added to the first cut, or nil
	//lint:ignore U1000 written and read by the assembly
	lds   int            // 56
	y     unsafe.Pointer // 64
	ldy   int            // 72
	ahead unsafe.Pointer // 80: memory to fetch meanwhile, 1 KB a block
	step  int            // 88: from one such KB to the next
	next  unsafe.Pointer // 96: the tile that comes after this one
	//lint:ignore U1000 written and read by the assembly
	left [2]int // 104
}

// codedFew is the rows of x up to which tiles, each of gemmFew rows, which widen the
// weight for themselves, are faster than products with pieces that are widened
// once.
const codedFew = 32

// streams says that there are tiles for the product, but for its last columns.
func (a *codedArgs) streams() bool {
	half := int(a.order) / 2
	if a.coding == codedFP8 && (a.k%64 != 0 || a.fp8.Format != E4M3 || !a.fp8.streams()) {
		return false
	}
	return gemmKernel >= avx512Kernel && a.m > 0 && a.m <= codedFew && a.k > 0 && a.k%32 == 0 && a.coding.Block() < superBlock &&
		half%codedTileCols == 0
}

// streamCols is the columns of a unit.
func streamCols(n int) int { return codedTileCols * min(max(n/codedTileCols/64, 2), 16) }

// CodedLinear is one of the products of LinearsCoded: y[M,N] = x[M,K] w[N,K]^T +
// bias[N], which may be nil, as LinearCoded has it.
type CodedLinear struct {
	Y      []float32
	W      []byte
	Panels []byte // of W as FillPanels writes them, or nil
	Bias   []float32
	Coding Coding
	Rows   Rows
	N      int
	After  After // the same of all products of a launch
}

// After is what is known of the launch that will come after this one: the panels
// of its products, behind each other, and their K, 0 for nothing.
type After struct {
	Panels []byte
	K      int
}

// begin is where a helper's lane begins, nil for the caller, who has other work, and
// where less is left than a helper fetches.
func (a *After) begin(lane, lanes int) *byte {
	if lane == 0 || a.K == 0 {
		return nil
	}
	panel := panelCols * CodedBF16.Bytes(a.K)
	if at := len(a.Panels) / panel * lane / lanes * panel; at+waitBytes <= len(a.Panels) {
		return &a.Panels[at]
	}
	return nil
}

// LinearsCoded computes several LinearCoded of one x.
func LinearsCoded(x []float32, m, k int, ps []CodedLinear) {
	var g streamArgs
	for i := range ps {
		g.after = ps[i].After
		a := ps[i].args(x, m, k)
		g.add(&a)
	}
	g.launch()
}

func (p *CodedLinear) args(x []float32, m, k int) codedArgs {
	a := codedArgs{y: p.Y, x: x, w: p.W, bias: p.Bias, coding: p.Coding, order: p.Rows, m: m, n: p.N, k: k}
	if len(p.Panels) > 0 && p.Rows == 0 {
		a.panels = p.Panels
	}
	return a
}

// streamArgs are the products of one launch. Their units, one product after the
// other, are cut into a lane for each worker, which goes through it from its
// start, so that each core reads memory of its own in order; who is done goes on
// with half of what is left in another lane.
type streamArgs struct {
	lead         Lead
	rows         *laneRows // of lead
	units, lanes int
	n            int
	of           [4]codedArgs
	after        After
	left         [streamLanes]laneUnits
}

// laneUnits are the units of a lane that nobody has taken, from the upper half of
// a word up to the lower one. It fills a cache line: the cores do not wait for each
// other's.
type laneUnits struct {
	span uint64
	_    [56]byte
}

func (l *laneUnits) set(from, to int) { atomic.StoreUint64(&l.span, uint64(from)<<32|uint64(to)) }

// take takes an eighth of the units from the front, or half of them from the back;
// from is to where there are none. To take is to wait until all that was computed
// is stored, and no memory is asked for meanwhile: the fewer times the better.
func (l *laneUnits) take(back bool) (from, to int) {
	for {
		span := atomic.LoadUint64(&l.span)
		from, to = int(span>>32), int(uint32(span))
		left := uint64(0)
		if mid := from + ceilDiv(to-from, 8); !back {
			left, to = uint64(mid)<<32|uint64(to), mid
		} else {
			mid = (from + to) / 2
			left, from = uint64(from)<<32|uint64(mid), mid
		}
		if from == to || atomic.CompareAndSwapUint64(&l.span, span, left) {
			return from, to
		}
	}
}

// streamLanes is the most lanes.
const streamLanes = 16

var (
	linearStream = newKernel(linearStreamLane)
	linears      = newKernel(func(g **streamArgs, lane int) { linearStreamLane(*g, lane) })
)

// add takes a product in, or runs it where there are no tiles for it.
func (g *streamArgs) add(a *codedArgs) {
	if !a.streams() {
		a.launch()
		return
	}
	if g.n == len(g.of) {
		g.launch()
		g.n, g.units = 0, 0
	}
	if a.cols = panelCols; a.panels == nil {
		a.cols = streamCols(a.n)
	}
	g.of[g.n] = *a
	g.n++
	g.units += ceilDiv(a.n, a.cols)
}

func (g *streamArgs) launch() {
	g.cut()
	linearStream.launch(g.lanes, *g)
}

// cut gives each worker a lane.
func (g *streamArgs) cut() {
	if lanes := min(Workers(), g.units, streamLanes); lanes != g.lanes { // most often it reads a line that all have
		g.lanes = lanes
	}
	for l := range g.lanes {
		g.left[l].set(l*g.units/g.lanes, (l+1)*g.units/g.lanes)
	}
}

func linearStreamLane(g *streamArgs, lane int) {
	x := g.of[0].x
	if g.lead.x != nil {
		x = g.rows[lane]
		g.lead.fill(x)
	} else {
		fetchFloats(x[:min(g.of[0].m, gemmFew)*g.of[0].k])
	}
	for {
		from, to := g.left[lane].take(false)
		if from == to && !g.help(lane) {
			pool.boxes[lane].fetch.Store(g.after.begin(lane, g.lanes))
			return
		}
		for ; from < to; from++ {
			g.unit(from, x)
		}
	}
}

// help fills an empty lane with half of what is left in another one.
func (g *streamArgs) help(lane int) bool {
	for i := 1; i < g.lanes; i++ {
		if from, to := g.left[(lane+i)%g.lanes].take(true); from < to {
			g.left[lane].set(from, to)
			return true
		}
	}
	return false
}

func (g *streamArgs) unit(unit int, x []float32) {
	for i := range g.n {
		a := &g.of[i]
		units := ceilDiv(a.n, a.cols)
		if unit < units {
			a.stream(unit, x)
			return
		}
		unit -= units
	}
}

// stream computes columns of y.
func (a *codedArgs) stream(unit int, x []float32) {
	if a.panels != nil && (unit+1)*panelCols <= a.n {
		a.panel(unit, x)
		return
	}
	row := a.coding.Bytes(a.k)
	end := min((unit+1)*a.cols, a.n)
	for j := unit * a.cols; j < end; j += codedTileCols {
		if end-j < codedTileCols {
			a.widened(x, j, end-j)
			return
		}
		for i := 0; i < a.m; i += gemmFew {
			var e fp8Tile
			t := &e.codedTile
			t.rows, t.k = min(gemmFew, a.m-i), a.k
			t.x, t.ldx = unsafe.Pointer(&x[i*a.k]), a.k*4
			t.w, t.ldw = unsafe.Pointer(&a.w[a.order.at(j)*row]), row
			if a.order > 0 {
				t.ldw *= 2
			}
			if a.bias != nil {
				t.s = unsafe.Pointer(&a.bias[j])
			}
			t.y, t.ldy = unsafe.Pointer(&a.y[i*a.n+j]), a.n*4
			t.fetch(a, j)
			if a.coding != codedFP8 {
				t.stream(a.coding)
			} else if !a.fp8Stream(&e, j) {
				a.widened(x, j, codedTileCols)
				break
			}
		}
	}
}

// streamLinear is the largest tile that is fetched from its first byte to its
// last while the one before it is computed: both fit into the first level
// cache. Of a larger one the next 512 of k are fetched.
const streamLinear = 20 << 10

// fetch says what is fetched during the tile at column j.
func (t *codedTile) fetch(a *codedArgs, j int) {
	t.next = t.w
	if j += codedTileCols; j+codedTileCols <= a.n {
		t.next = unsafe.Pointer(&a.w[a.order.at(j)*a.coding.Bytes(a.k)])
	}
	t.ahead, t.step = t.next, t.ldw
	switch {
	case a.coding.Blocks(): // the next tile, from its first byte to its last
	case codedTileCols*t.ldw <= streamLinear:
		t.step = 1 << 10
	case a.k > 512:
		t.ahead = unsafe.Add(t.w, 1<<10)
	}
}
