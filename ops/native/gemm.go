package native

import "unsafe"

// This file is the matrix product: blocking, packing and the parallel cut.
// The inner tile is in gemm_tile.go (portable) and gemm_*_amd64.s.
//
// Every element of C is one chain of products in the order of k, cut every
// gemmKC steps where the partial sum is added to C. The chain does not depend
// on m, n, the transposes, the blocking or the number of workers, so a row of C
// has the same bits alone (one decoded token) and inside a batch.

const (
	gemmKC = 256 // length of k in one pass: a packed panel of B stays in L1
	gemmMC = 48  // rows of a unit
	gemmNC = 256 // columns of a unit

	gemmABlock   = gemmMC * gemmAStride
	gemmAStride  = gemmKC + 16 // row stride of packed A: not a power of two, so rows spread over the cache sets
	gemmSets     = 512         // rows of A that far apart fall on too few cache sets to be read where they lie
	gemmBand     = 8           // blocks of rows that a block of columns is used for before the next one
	gemmSpan     = 512         // elements of k that a launch takes: its part of packed B, 512 KB in float32, stays in L2
	gemmPackCols = 64          // columns of B that one unit packs
	gemmFew      = 4           // rows that are read where they lie, whatever their stride; the stream tile has as many
	gemmSmall    = 1 << 17     // products below which one goroutine does it all
)

// Gemm computes C = alpha op(A) op(B) + beta C in row-major order with
// op(A) [m,k], op(B) [k,n], C [m,n]; op(X) is X, or its transpose when the flag
// is set (then A is stored [k,m], B [n,k]). lda, ldb, ldc are row strides of the
// stored matrices. beta = 0 overwrites C without reading it. k = 0 gives beta C.
// A and B are read even when alpha = 0, so their NaN and Inf propagate.
// C must not overlap A or B.
func Gemm[T Float](transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int) {
	gemmAdd(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, c, ldc)
}

// gemmAdd is Gemm with the added term read from another place:
// C = alpha op(A) op(B) + beta S with S [m,n] of row stride lds. lds = 0 adds
// one row (a bias) to every row of C; S = C is Gemm.
func gemmAdd[T Float](transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, s []T, lds int, c []T, ldc int) {
	if m <= 0 || n <= 0 {
		return
	}
	g := gemmArgs[T]{
		gemmOperands: gemmOperands[T]{
			transA: transA, transB: transB, m: m, n: n, k: k,
			alpha: alpha, beta: beta, a: a, lda: lda, b: b, ldb: ldb, s: s, lds: lds, c: c, ldc: ldc,
		},
	}
	g.compute()
}

// compute runs a product on the pool, unless it is small.
func (g *gemmArgs[T]) compute() {
	m, n, k := g.m, g.n, g.k
	if m*n*max(k, 1) <= gemmSmall {
		g.launchWords()
		g.serial()
		return
	}
	g.mc, g.nc = gemmMC, gemmNC
	if g.tiles {
		g.mc, g.nc = amxUnitRows, amxUnitCols
		if ceilDiv(m, g.mc)*ceilDiv(n, g.nc) < amxUnits {
			g.nc = amxFewCols
		}
	}
	g.mBlocks, g.cut = ceilDiv(m, g.mc), m
	if g.half = g.mBlocks; g.mBlocks > 1 && !g.tiles {
		g.cut = ceilDiv(m, 8) * 4
		g.half = ceilDiv(g.cut, g.mc)
		g.mBlocks = g.half + ceilDiv(m-g.cut, g.mc)
	}
	if g.source.panels != nil {
		g.packed, g.packedK = any(g.source.panels).([]T), k
	}
	inPanels := g.packed != nil
	if g.mBlocks == 1 || inPanels {
		g.launchWords()
		g.words.units = 0
	}
	if g.mBlocks == 1 {
		g.streamB()
		return
	}
	// A few passes over k at a time: what a unit needs of B stays in L2 while the
	// blocks of rows go by.
	width := ceilDiv(n, tileCols[T]()) * tileCols[T]()
	span := gemmSpan
	if g.source.split {
		span = splitSpan
	}
	for p := 0; p < k || p == 0; p += span {
		g.k0, g.kEnd = p, min(p+span, k)
		if inPanels {
			launchGemm(g)
			continue
		}
		g.packed, g.packed0, g.packedK = takeScratch[T]((g.kEnd-p)*width), p, g.kEnd-p
		if g.needsPackedA() && n > g.nc {
			g.launchWords()
			g.words.units = 0
			g.packedA = takeScratch[T](g.mBlocks * g.passes() * gemmABlock)
		}
		launchGemmPack(g)
		g.words.units = 0
		launchGemm(g)
		giveScratch(g.packed)
		if g.packedA != nil {
			giveScratch(g.packedA)
		}
	}
}

// launchWords makes A where it is to be made.
func (g *gemmArgs[T]) launchWords() {
	if g.words.units > 0 {
		pairWords.launch(g.words.units, g.words)
	}
}

// streamB computes a product of one block of rows. Each panel of B is used by
// one unit alone, which packs it when it needs it and so reads B once. It takes
// the panel through all of k: rows of a transposed B are then read as streams.
func (g *gemmArgs[T]) streamB() {
	nr := tileCols[T]()
	g.kEnd = g.k
	g.nc = max(gemmKC*gemmPackCols/max(g.k, 1)/nr, 1) * nr
	if g.needsPackedA() && g.m > gemmFew {
		g.packedA = takeScratch[T](g.passes() * gemmABlock)
		g.packRows(0)
	}
	launchGemm(g)
	if g.packedA != nil {
		giveScratch(g.packedA)
	}
}

// needsPackedA says that tiles should not read op(A) where it lies: a transposed
// A is far apart along k, and some row strides put a tile's rows in few sets.
func (g *gemmOperands[T]) needsPackedA() bool { return !g.tiles && (g.transA || g.lda%gemmSets == 0) }

// gemmSerial is Gemm on the calling goroutine, for use inside a unit of another
// kernel. Meant for tiles: A is read where it lies, B is packed a panel at a
// time only when it is transposed or too large to stay in L1. It does not
// allocate in a steady state.
func gemmSerial[T Float](transA, transB bool, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int) {
	if m <= 0 || n <= 0 {
		return
	}
	g := gemmOperands[T]{
		transA: transA, transB: transB, m: m, n: n, k: k,
		alpha: alpha, beta: beta, a: a, lda: lda, b: b, ldb: ldb, s: c, lds: ldc, c: c, ldc: ldc,
	}
	g.serial()
}

type gemmOperands[T Float] struct {
	transA, transB bool
	m, n, k        int
	alpha, beta    T
	a              []T
	lda            int
	b              []T
	ldb            int
	s              []T
	lds            int
	c              []T
	ldc            int
	pairs          bool // elements are words of two bf16, of which k counts; see gemm_bf16.go
	tiles          bool // which AMX multiplies
	ready          bool // B too lies in words; else it is made of source
	source         pairSource
}

// pass is the length of k in one pass, in elements.
func (g *gemmOperands[T]) pass() int {
	switch {
	case g.source.split:
		return splitPass
	case g.tiles:
		return amxPass
	case g.pairs:
		return gemmKC / 2
	}
	return gemmKC
}

// gemmArgs are the arguments of one launch: k0..kEnd of the products.
type gemmArgs[T Float] struct {
	gemmOperands[T]
	k0, kEnd int
	packed   []T // op(B) as panels [packedK, nr] from row packed0 on, or nil
	packed0  int
	packedK  int
	packedA  []T // op(A) as packA leaves it, for each block of rows one for each pass, or nil
	mBlocks  int // of rows: half of them up to row cut, which two workers share evenly
	half     int
	cut      int
	mc, nc   int      // rows and columns of a unit
	words    pairArgs // what makes A of words, where it is to be made; no units: it is there
}

var (
	gemm32     = newKernel(gemmUnit[float32])
	gemm64     = newKernel(gemmUnit[float64])
	gemmPack32 = newKernel(gemmPackUnit[float32])
	gemmPack64 = newKernel(gemmPackUnit[float64])
)

func launchGemm[T Float](g *gemmArgs[T]) {
	k := pick[gemmArgs[T]](gemm32, gemm64)
	k.launch(g.mBlocks*ceilDiv(g.n, g.nc), *g)
}

func launchGemmPack[T Float](g *gemmArgs[T]) {
	k := pick[gemmArgs[T]](gemmPack32, gemmPack64)
	k.launch(max(g.words.units, ceilDiv(g.n, gemmPackCols)), *g)
}

// passes are those of a launch.
func (g *gemmArgs[T]) passes() int { return ceilDiv(g.kEnd-g.k0, g.pass()) }

// rows are those of a block.
func (g *gemmArgs[T]) rows(block int) (from, to int) {
	if from = block * g.mc; block < g.half {
		return from, min(from+g.mc, g.cut)
	}
	from += g.cut - g.half*g.mc
	return from, min(from+g.mc, g.m)
}

// packRows packs op(A) of one block of rows.
func (g *gemmArgs[T]) packRows(block int) {
	from, end := g.rows(block)
	to := g.packedA[block*g.passes()*gemmABlock:]
	for p := g.k0; p < g.kEnd; p += g.pass() {
		g.packA(to[(p-g.k0)/g.pass()*gemmABlock:], from, end, p, min(g.pass(), g.kEnd-p))
	}
}

// gemmPackUnit makes its share of A and packs its share of op(B), gemmPackCols
// columns at a time: a worker makes about the part that its units will read.
func gemmPackUnit[T Float](g *gemmArgs[T], i int) {
	blocks := ceilDiv(g.n, gemmPackCols)
	units := max(g.words.units, blocks)
	for w := i * g.words.units / units; w < (i+1)*g.words.units/units; w++ {
		pairWordsUnit(&g.words, w)
	}
	if g.packedA != nil {
		for block := i * g.mBlocks / units; block < (i+1)*g.mBlocks/units; block++ {
			g.packRows(block)
		}
	}
	nr, kc := tileCols[T](), g.kEnd-g.k0
	end := min((i+1)*blocks/units*gemmPackCols, g.n)
	for j := i * blocks / units * gemmPackCols; j < end; j += nr {
		g.packB(g.packed[j*kc:], g.k0, kc, j, min(nr, end-j), nr)
	}
}

// gemmUnit computes one block of gemmMC rows and nc columns of C.
func gemmUnit[T Float](g *gemmArgs[T], unit int) {
	nr := tileCols[T]()
	// Units that follow each other share the columns of B for a few blocks of
	// rows, and workers who begin far from each other have rows of their own; or,
	// for AMX, columns, of which a unit has many.
	row, col := 0, 0
	if g.tiles {
		row, col = unit%g.mBlocks, unit/g.mBlocks
	} else {
		nBlocks, end := ceilDiv(g.n, g.nc), g.half
		if unit >= g.half*nBlocks {
			row, end = g.half, g.mBlocks
			unit -= g.half * nBlocks
		}
		row += unit / (gemmBand * nBlocks) * gemmBand
		height := min(gemmBand, end-row)
		unit %= gemmBand * nBlocks
		row, col = row+unit%height, unit/height
	}
	i0, i1 := g.rows(row)
	j0, j1 := col*g.nc, min((col+1)*g.nc, g.n)
	t := g.firstPass()
	if g.k0 > 0 {
		t.nextPass()
	}
	var aPacked, panel []T
	packs := g.packedA == nil && g.mBlocks > 1 && g.needsPackedA()
	if packs {
		aPacked = takeScratch[T](gemmABlock)
	}
	if g.packed == nil {
		panel = takeScratch[T](max(gemmKC, g.pass()) * nr)
	}
	for p := g.k0; p < g.kEnd || p == g.k0; p += g.pass() {
		kc := min(g.pass(), g.kEnd-p)
		t.k = kc
		if packs {
			g.packA(aPacked, i0, i1, p, kc)
		} else if g.packedA != nil {
			aPacked = g.packedA[(row*g.passes()+(p-g.k0)/g.pass())*gemmABlock:]
		}
		step := nr
		if g.tiles && g.packed != nil {
			step, t.panels = j1-j0, g.packedK*nr // all columns in one call
		}
		for j := j0; j < j1; j += step {
			cols := min(step, j1-j)
			b, rsb := panel, nr
			t.stream = g.packed == nil && g.streams(cols, kc)
			t.fetch = 0
			if p == g.k0 && j+2*nr <= j1 {
				t.fetch = nr
			} else if p+kc == g.kEnd && j+nr == j1 && 2*i1-i0 <= g.m {
				t.fetch = (i1-i0)*g.ldc + j0 - j // of the unit that most often comes next
			}
			switch {
			case g.packed != nil:
				b = g.packed[j*g.packedK+(p-g.packed0)*nr:]
			case t.stream:
				b, rsb = g.b[j*g.ldb+p:], g.ldb
			default:
				g.packB(panel, p, kc, j, cols, nr)
			}
			switch {
			case aPacked == nil:
				a, rsa, csa := g.rowsA(i0, p, kc)
				t.column(i0, i1, cols, a, rsa, csa, rsa, b, rsb, j)
			case g.transA:
				t.column(i0, i1, cols, aPacked, 1, 0, kc, b, rsb, j)
			default:
				t.column(i0, i1, cols, aPacked, gemmAStride, 1, gemmAStride, b, rsb, j)
			}
		}
		t.nextPass()
	}
	if panel != nil {
		giveScratch(panel)
	}
	if packs {
		giveScratch(aPacked)
	}
}

// rowsA is op(A) from row i, column p on, where it lies, with its strides.
func (g *gemmOperands[T]) rowsA(i, p, kc int) (a []T, rsa, csa int) {
	rsa, csa = g.lda, 1
	if g.transA {
		rsa, csa = 1, g.lda
	}
	if kc == 0 {
		return nil, rsa, csa
	}
	return g.a[i*rsa+p*csa:], rsa, csa
}

// packA copies rows i0..i1 of op(A), columns p..p+kc. A row-major A keeps its
// rows; a transposed one becomes panels [kc, rows] of the tile's heights.
func (g *gemmOperands[T]) packA(dst []T, i0, i1, p, kc int) {
	if kc == 0 {
		return
	}
	if !g.transA {
		if kc == gemmKC && packsColumns[T]() {
			copyStrips(unsafe.Pointer(&dst[0]), gemmAStride*4, unsafe.Pointer(&g.a[i0*g.lda+p]), g.lda*4, i1-i0, kc/16)
			return
		}
		for i := i0; i < i1; i++ {
			copy(dst[(i-i0)*gemmAStride:][:kc], g.a[i*g.lda+p:])
		}
		return
	}
	if left := (i1 - i0) % 12; packsColumns[T]() && (left == 0 || tileRows[T](left) == left) { // panels of the tile's heights
		packColumns(unsafe.Pointer(&dst[0]), unsafe.Pointer(&g.a[p*g.lda+i0]), g.lda*4, kc, i1-i0)
		return
	}
	for q := range kc {
		row := g.a[(p+q)*g.lda:]
		for i := i0; i < i1; {
			rows := tileRows[T](i1 - i)
			copy(dst[(i-i0)*kc+q*rows:][:rows], row[i:])
			i += rows
		}
	}
}

// packB copies op(B) rows p..p+kc, columns j..j+cols into a panel [kc, nr] and
// fills the columns beyond cols with zeros.
func (g *gemmOperands[T]) packB(dst []T, p, kc, j, cols, nr int) {
	if kc == 0 {
		return
	}
	if g.pairs {
		g.source.pack(any(dst).([]float32), g.transB, p, kc, j, cols, nr)
		return
	}
	if g.transB {
		packTransposed(dst, g.b[j*g.ldb+p:], g.ldb, kc, cols, nr)
		return
	}
	if cols == 2*transposeEdge[T]() && packsColumns[T]() {
		copyRows(unsafe.Pointer(&dst[0]), unsafe.Pointer(&g.b[p*g.ldb+j]), g.ldb*4, kc)
		return
	}
	for q := range kc {
		d := dst[q*nr:][:nr]
		n := copy(d[:cols], g.b[(p+q)*g.ldb+j:])
		clear(d[n:])
	}
}

// packTransposed is packB for a B stored [n,k]: b starts at its first element.
// Whole blocks go through the assembly, the edges through the loop.
func packTransposed[T Float](dst, b []T, ldb, kc, cols, nr int) {
	if cols == portableCols && nr == portableCols {
		pack4(dst, b, ldb, kc)
		return
	}
	blockK, blockCols := 0, 0 // what the assembly has done
	if edge := transposeEdge[T](); edge > 0 {
		blockK, blockCols = kc/edge*edge, cols/edge*edge
		for j := 0; j < blockCols && blockK > 0; j += edge {
			transposeBlocks(unsafe.Pointer(&dst[j]), nr*4, unsafe.Pointer(&b[j*ldb]), ldb*4, kc/edge)
		}
	}
	from := 0 // the first row that is not done
	if blockCols == nr {
		from = blockK
	}
	for q := from; q < kc; q++ {
		j0 := 0
		if q < blockK {
			j0 = blockCols
		}
		d := dst[q*nr:][:nr]
		for j := j0; j < cols; j++ {
			d[j] = b[j*ldb+q]
		}
		clear(d[cols:])
	}
}

// serial computes all of C with tiles on operands that lie where they are.
func (g *gemmOperands[T]) serial() {
	nr := tileCols[T]()
	t := g.firstPass()
	var panel []T
	for p := 0; p < g.k || p == 0; p += g.pass() {
		kc := min(g.pass(), g.k-p)
		t.k = kc
		for j := 0; j < g.n; j += nr {
			cols := min(nr, g.n-j)
			var b []T
			rsb := nr
			t.stream = g.streams(cols, kc)
			switch {
			case kc == 0:
			case t.stream:
				b, rsb = g.b[j*g.ldb+p:], g.ldb
			case g.pairs && !g.ready || g.transB || cols < nr && !tileMasks[T]():
				if panel == nil {
					panel = takeScratch[T](max(gemmKC, g.pass()) * nr)
				}
				g.packB(panel, p, kc, j, cols, nr)
				b = panel
			default:
				b, rsb = g.b[p*g.ldb+j:], g.ldb
			}
			a, rsa, csa := g.rowsA(0, p, kc)
			t.column(0, g.m, cols, a, rsa, csa, rsa, b, rsb, j)
		}
		t.nextPass()
	}
	if panel != nil {
		giveScratch(panel)
	}
}

// tilePass is one pass over k: what is added to the products, and where.
type tilePass[T Float] struct {
	k           int
	alpha, beta T
	s, c        []T
	lds, ldc    int
	stream      bool // B is stored [n,k] and not packed
	pairs       bool
	tiles       bool
	fetch       int // columns from a tile to the one that the unit comes to later, 0: none
	panels      int // elements from a packed panel of B to the next, for calls of many columns
	split       int // 1: words of three parts
}

// rows is the height of the next tile when left rows remain.
func (t *tilePass[T]) rows(left int) int {
	if t.stream {
		return left
	}
	if t.tiles {
		return left
	}
	return tileRows[T](left)
}

// streams says that a panel of B is used where it lies: it is transposed and
// has too few rows of A to pay for packing.
func (g *gemmOperands[T]) streams(cols, kc int) bool {
	return g.m <= gemmFew && !g.pairs && g.transB && !g.transA && streamsTile[T](cols, kc)
}

// firstPass adds beta S; nextPass makes the following passes add to C.
func (g *gemmOperands[T]) firstPass() tilePass[T] {
	t := tilePass[T]{alpha: g.alpha, beta: g.beta, s: g.s, lds: g.lds, c: g.c, ldc: g.ldc, pairs: g.pairs, tiles: g.tiles}
	if g.source.split {
		t.split = 1
	}
	return t
}

func (t *tilePass[T]) nextPass() { t.beta, t.s, t.lds = 1, t.c, t.ldc }

// column computes rows i..end of C, cols columns from j on, a tile at a time.
// Row r of op(A) is at a[(r-i)*step], with the strides rsa and csa inside a tile;
// csa = 0 stands for the height of the tile.
func (t *tilePass[T]) column(i, end, cols int, a []T, rsa, csa, step int, b []T, rsb, j int) {
	c := t.c[i*t.ldc+j:]
	var s []T
	if t.beta != 0 {
		s = t.s[i*t.lds+j:]
	}
	if t.k == 0 {
		step = 0
	}
	if unsafe.Sizeof(t.alpha) == 4 && gemmKernel != portableKernel {
		// Field by field: a literal is copied in 16-byte pieces, and a load of
		// two fresh 8-byte stores waits until the last tile has left the store
		// queue.
		var args tileArgs
		args.cols, args.k = cols, t.k
		args.a, args.rsa, args.csa = unsafe.Pointer(unsafe.SliceData(a)), rsa*4, csa*4
		args.b, args.rsb = unsafe.Pointer(unsafe.SliceData(b)), rsb*4
		args.s, args.lds = unsafe.Pointer(unsafe.SliceData(s)), t.lds*4
		args.c, args.ldc = unsafe.Pointer(unsafe.SliceData(c)), t.ldc*4
		args.panels, args.split = t.panels*4, t.split
		args.alpha, args.beta = float32(t.alpha), float32(t.beta)
		if t.fetch > 0 {
			args.next = unsafe.Pointer(&c[t.fetch])
		}
		for {
			rows := t.rows(end - i)
			args.rows = rows
			if csa == 0 {
				args.csa = rows * 4
			}
			switch {
			case t.stream:
				args.stream()
			case t.tiles:
				args.runTiles()
			case t.pairs:
				args.runPairs()
			default:
				args.run()
			}
			if i += rows; i >= end {
				return
			}
			args.a = unsafe.Add(args.a, rows*step*4)
			args.c = unsafe.Add(args.c, rows*args.ldc)
			if args.s != nil {
				args.s = unsafe.Add(args.s, rows*args.lds)
			}
			if args.next != nil {
				args.next = unsafe.Add(args.next, rows*args.ldc)
			}
		}
	}
	for i < end {
		rows := t.rows(end - i)
		across := csa
		if csa == 0 {
			across = rows
		}
		tilePortable(rows, cols, t.k, a, rsa, across, b, rsb, t.alpha, t.beta, s, t.lds, c, t.ldc)
		if i += rows; i < end {
			a, c = a[rows*step:], c[rows*t.ldc:]
			if s != nil {
				s = s[rows*t.lds:]
			}
		}
	}
}

// tileArgs are the arguments of an assembly tile; strides are in bytes. The
// offsets are known to the .s files. A nil s means beta = 0.
type tileArgs struct {
	rows, cols, k int            // 0, 8, 16
	a             unsafe.Pointer // 24
	rsa, csa      int            // 32, 40
	b             unsafe.Pointer // 48
	rsb           int            // 56
	s             unsafe.Pointer // 64
	lds           int            // 72
	c             unsafe.Pointer // 80
	ldc           int            // 88
	alpha, beta   float32        // 96, 100
	next          unsafe.Pointer // 104: C of a later tile, to be fetched; nil: nothing; AMX has its own way
	panels        int            // 112: from a packed panel of B to the next, AMX alone
	split         int            // 120: not 0: words of three parts, AMX alone
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
