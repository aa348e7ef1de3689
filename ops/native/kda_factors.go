// What the chunked form of KDA knows of a chunk before it sees values: decays,
// scaled queries and keys, and the two triangular matrices of their products.
//
// Notation, for one head: G_i is the sum of g up to row i of the chunk, q' is
// scale q, and
//
//	M_ij = sum_d k_id k_jd exp(G_id - G_jd)   j < i
//	P_ij = sum_d q'_id k_jd exp(G_id - G_jd)  j <= i
//
// No sum G is ever formed: a decay is a product of exp g, which loses neither
// digits nor range. Rows are grouped in blocks of 16.
//   - Between blocks a decay is split at the entry of the row's block, and both
//     factors are at most 1 for any gate.
//   - Inside a block it is split at the first row. The factor of the column is
//     then an inverse; elements where that inverse is too large (a decay by more
//     than 2^-86 in float32 inside one block) are left out of the matrix
//     product and added one by one from products of exp g.
//
// Neither looks at rows behind i, so what a prefix computes does not depend on
// what follows it, not even in the last bit.

package native

import "unsafe"

const (
	kdaBlock    = 16   // rows of a block
	kdaMaxChunk = 1024 // rows of a chunk
)

// kdaFactors holds one chunk of one value head. Queries and keys are kept in
// pairs, row 2i a key and row 2i+1 a query, so that one product serves both.
type kdaFactors[T Float] struct {
	nk, c  int // K and the rows there is room for
	wide   int // the larger of K and the columns of V at hand
	n      int // tokens of the chunk
	blocks int // blocks in use; rows from n on are zero, without decay

	raw     []T                          // [C,2,K] k and q'
	diag    []T                          // [C,2,K] raw times fall
	near    []T                          // [C,2,K] raw times the decay since the entry of the block
	far     []T                          // [C,2,K] raw times the decay since the start of the chunk
	alpha   []T                          // [C,K] exp g
	fall    []T                          // [C,K] the decay since the first row of the block
	rise    []T                          // [C,K] 1/fall, or 0 where that is out of range
	tail    []T                          // [C,K] the decay behind row i to the end of its block
	risen   []T                          // [C,K] the keys times rise
	whole   []T                          // [C/16,K] the decay of a whole block
	entry   []T                          // [C/16+1,K] the decay from the start of the chunk to the entry of block b
	reach   []T                          // for b = 1..C/16 a matrix [16b,K]: the keys before the entry of block b, decayed to it
	mp      []T                          // [C,2,C] rows of M and P; beyond the diagonal block undefined
	inverse []T                          // [C/16,16,16] of the diagonal blocks of I + diag(beta) M
	write   []T                          // [C/16,16,16] inverse times diag(beta)
	beta    []T                          // [C]
	one     []T                          // [wide] ones
	steep   [kdaMaxChunk / kdaBlock]bool // whether rise has a 0 in block b
}

// size returns how many elements the parts take.
func (f *kdaFactors[T]) size() int {
	nb := f.c / kdaBlock
	return 13*f.c*f.nk + (2*nb+1)*f.nk + f.nk*kdaBlock*nb*(nb+1)/2 + 2*f.c*f.c + 2*f.c*kdaBlock + f.c + f.wide
}

// cut lays the parts out in buf and returns what is left of it.
func (f *kdaFactors[T]) cut(buf []T) []T {
	nb := f.c / kdaBlock
	part := func(p *[]T, n int) { *p, buf = buf[:n], buf[n:] }
	part(&f.raw, 2*f.c*f.nk)
	part(&f.diag, 2*f.c*f.nk)
	part(&f.near, 2*f.c*f.nk)
	part(&f.far, 2*f.c*f.nk)
	part(&f.alpha, f.c*f.nk)
	part(&f.fall, f.c*f.nk)
	part(&f.rise, f.c*f.nk)
	part(&f.tail, f.c*f.nk)
	part(&f.risen, f.c*f.nk)
	part(&f.whole, nb*f.nk)
	part(&f.entry, (nb+1)*f.nk)
	part(&f.reach, f.nk*kdaBlock*nb*(nb+1)/2)
	part(&f.mp, 2*f.c*f.c)
	part(&f.inverse, f.c*kdaBlock)
	part(&f.write, f.c*kdaBlock)
	part(&f.beta, f.c)
	part(&f.one, f.wide)
	for i := range f.one {
		f.one[i] = 1
	}
	return buf
}

func (f *kdaFactors[T]) rows() int { return f.blocks * kdaBlock }

// row returns row i of a part with rows of K.
func (f *kdaFactors[T]) row(x []T, i int) []T { return x[i*f.nk:][:f.nk] }

// decay returns exp of the sum of g over the chunk.
func (f *kdaFactors[T]) decay() []T { return f.row(f.entry, f.blocks) }

// reached returns matrix b of reach, b >= 1.
func (f *kdaFactors[T]) reached(b int) []T { return f.reach[f.nk*kdaBlock*b*(b-1)/2:] }

// square returns block b of inverse or write.
func (f *kdaFactors[T]) square(x []T, b int) []T {
	return x[b*kdaBlock*kdaBlock:][:kdaBlock*kdaBlock]
}

// fill computes the factors of tokens [from,from+n) of value head hv.
func (f *kdaFactors[T]) fill(a *KDA[T], hv, from, n int) {
	f.n, f.blocks = n, ceilDiv(n, kdaBlock)
	h := hv * a.H / a.HV
	nk, scale := f.nk, a.scale()
	for i := range f.rows() {
		raw, alpha := f.raw[2*i*nk:][:2*nk], f.alpha[i*nk:][:nk]
		if i >= n {
			clear(raw)
			copy(alpha, f.one)
			f.beta[i] = 0
			continue
		}
		t := from + i
		expSlice(alpha, a.G[(t*a.HV+hv)*nk:][:nk])
		copy(raw, a.K[(t*a.H+h)*nk:][:nk])
		scaleMul(raw[nk:], a.Q[(t*a.H+h)*nk:], f.one, scale)
		f.beta[i] = a.Beta[t*a.HV+hv]
	}
	copy(f.row(f.entry, 0), f.one)
	for b := range f.blocks {
		f.decays(b)
		f.scaled(b)
		f.products(b)
		f.invert(b)
	}
}

// invertible is the smallest decay whose inverse is used: a product of the two
// factors of a decay then keeps its digits down to a decay of 2^-40 and more.
func invertible[T Float]() T {
	var z T
	if unsafe.Sizeof(z) == 4 {
		return 0x1p-86
	}
	least := 0x1p-500
	return T(least)
}

// decays fills the decays of block b.
func (f *kdaFactors[T]) decays(b int) {
	first, last := b*kdaBlock, (b+1)*kdaBlock-1
	least, steep := invertible[T](), false
	copy(f.row(f.fall, first), f.one)
	copy(f.row(f.rise, first), f.one)
	copy(f.row(f.tail, last), f.one)
	for i := first + 1; i <= last; i++ {
		fall, rise := f.row(f.fall, i), f.row(f.rise, i)
		scaleMul(fall, f.row(f.fall, i-1), f.row(f.alpha, i), 1)
		for d, v := range fall {
			r := 1 / v
			if !(v >= least) {
				r, steep = 0, true
			}
			rise[d] = r
		}
	}
	for i := last - 1; i >= first; i-- {
		scaleMul(f.row(f.tail, i), f.row(f.tail, i+1), f.row(f.alpha, i+1), 1)
	}
	scaleMul(f.row(f.whole, b), f.row(f.fall, last), f.row(f.alpha, first), 1)
	scaleMul(f.row(f.entry, b+1), f.row(f.entry, b), f.row(f.whole, b), 1)
	f.steep[b] = steep
}

// scaled fills diag, near, far and risen of block b, and matrix b+1 of reach:
// matrix b decayed over the block, and the keys of the block decayed to its end.
func (f *kdaFactors[T]) scaled(b int) {
	first, to := b*kdaBlock, f.reached(b+1)
	alpha, entry := f.row(f.alpha, first), f.row(f.entry, b)
	if b > 0 {
		from, whole := f.reached(b), f.row(f.whole, b)
		for i := range first {
			scaleMul(f.row(to, i), f.row(from, i), whole, 1)
		}
	}
	for i := first; i < first+kdaBlock; i++ {
		fall, key := f.row(f.fall, i), f.row(f.raw, 2*i)
		for r := 2 * i; r < 2*i+2; r++ {
			diag, near := f.row(f.diag, r), f.row(f.near, r)
			scaleMul(diag, f.row(f.raw, r), fall, 1)
			scaleMul(near, diag, alpha, 1)
			scaleMul(f.row(f.far, r), near, entry, 1)
		}
		scaleMul(f.row(f.risen, i), key, f.row(f.rise, i), 1)
		scaleMul(f.row(to, i), key, f.row(f.tail, i), 1)
	}
}

// products fills the rows of M and P of block b.
func (f *kdaFactors[T]) products(b int) {
	nk, c, first := f.nk, f.c, b*kdaBlock
	mp := f.mp[2*first*c:]
	if b > 0 {
		gemmSerial(false, true, 2*kdaBlock, first, nk, 1, f.near[2*first*nk:], nk, f.reached(b), nk, 0, mp, c)
	}
	gemmSerial(false, true, 2*kdaBlock, kdaBlock, nk, 1, f.diag[2*first*nk:], nk, f.risen[first*nk:], nk, 0, mp[first:], c)
	f.maskDiagonal(f.mp, b)
	f.eachSteep(b, func(j, d int) {
		k := f.raw[2*j*nk+d]
		f.mp[(2*j+1)*c+j] += f.raw[(2*j+1)*nk+d] * k
		for i := j + 1; i < first+kdaBlock && k != 0; i++ {
			k *= f.alpha[i*nk+d]
			f.mp[2*i*c+j] += f.raw[2*i*nk+d] * k
			f.mp[(2*i+1)*c+j] += f.raw[(2*i+1)*nk+d] * k
		}
	})
}

// maskDiagonal zeroes what lies above the diagonal of block b in pairs of rows
// [C,2,C]: from the diagonal on in the first, behind it in the second.
func (f *kdaFactors[T]) maskDiagonal(x []T, b int) {
	last := (b + 1) * kdaBlock
	for i := b * kdaBlock; i < last; i++ {
		clear(x[2*i*f.c+i : 2*i*f.c+last])
		clear(x[(2*i+1)*f.c+i+1 : (2*i+1)*f.c+last])
	}
}

// eachSteep calls fn for the elements (row j, channel d) of block b that the
// matrix product leaves out.
func (f *kdaFactors[T]) eachSteep(b int, fn func(j, d int)) {
	if !f.steep[b] {
		return
	}
	for j := b * kdaBlock; j < min((b+1)*kdaBlock, f.n); j++ {
		for d, r := range f.row(f.rise, j) {
			if r == 0 {
				fn(j, d)
			}
		}
	}
}

// invert inverts the diagonal block b of I + diag(beta) M by forward
// substitution. (A product of powers of M loses all digits where keys repeat.)
func (f *kdaFactors[T]) invert(b int) {
	first, inv, write := b*kdaBlock, f.square(f.inverse, b), f.square(f.write, b)
	beta := f.beta[first:][:kdaBlock]
	clear(inv)
	for i := range kdaBlock {
		row := inv[i*kdaBlock:][:kdaBlock]
		row[i] = 1
		m := f.mp[2*(first+i)*f.c+first:][:kdaBlock]
		for j := range i {
			w := beta[i] * m[j]
			for l, x := range inv[j*kdaBlock:][:j+1] {
				row[l] -= w * x
			}
		}
		scaleMul(write[i*kdaBlock:][:kdaBlock], row, beta, 1)
	}
}

// solve turns block b of y, the values less what the state already holds, into
// the increments that its tokens write:
//
//	vn_i = beta_i (y_i - sum_{j<i} M_ij vn_j)
//
// y comes in rows of stride ldy and loses the sums over earlier blocks; those
// of vn [C,nv] are done.
func (f *kdaFactors[T]) solve(vn, y []T, ldy, nv, b int) {
	first := b * kdaBlock
	y = y[first*ldy:]
	if b > 0 {
		gemmSerial(false, false, kdaBlock, nv, first, -1, f.mp[2*first*f.c:], 2*f.c, vn, nv, 1, y, ldy)
	}
	gemmSerial(false, false, kdaBlock, nv, kdaBlock, 1, f.square(f.write, b), kdaBlock, y, ldy, 0, vn[first*nv:], nv)
}
