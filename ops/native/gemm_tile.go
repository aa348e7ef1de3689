package native

import "unsafe"

// This file chooses the matrix-product kernel and holds the portable tile.

// The kernel sets, in ascending order of what they need of the CPU.
const (
	portableKernel = iota // Go, any CPU, and float64 everywhere
	avx2Kernel            // AVX2 and FMA
	avx512Kernel          // AVX-512 F, DQ, BW, VL
	bf16Kernel            // and AVX-512 BF16 and VBMI, for products of bf16 and bytes of codes; the rest is avx512
	amxKernel             // and AMX tiles, for the same
)

// gemmKernel is the kernel set in use, chosen once at start.
var gemmKernel = chooseKernel()

// GemmKernel names the kernel set in use: "amx", "avx512bf16", "avx512", "avx2"
// or "portable". The best one that the CPU can run is chosen at start; the
// environment variable SEAFAN_KERNELS names another one, and is ignored when
// the CPU or the build cannot run it. Build tag purego leaves only "portable".
func GemmKernel() string { return kernelNames[gemmKernel] }

var kernelNames = [...]string{portableKernel: "portable", avx2Kernel: "avx2", avx512Kernel: "avx512", bf16Kernel: "avx512bf16", amxKernel: "amx"}

const (
	portableRows = 2
	portableCols = 4
)

// tileCols is the width of a tile and of a packed panel of B.
func tileCols[T Float]() int {
	var z T
	if unsafe.Sizeof(z) == 8 {
		return portableCols
	}
	switch gemmKernel {
	case avx512Kernel, bf16Kernel, amxKernel:
		return 32
	case avx2Kernel:
		return 16
	}
	return portableCols
}

// tileRows is the height of the next tile when left rows remain.
func tileRows[T Float](left int) int {
	var z T
	full := portableRows
	if unsafe.Sizeof(z) == 4 {
		switch gemmKernel {
		case avx512Kernel, bf16Kernel, amxKernel:
			if left >= 12 {
				return 12
			}
			full = 8
		case avx2Kernel:
			full = 6
		}
	}
	switch {
	case left >= full:
		return full
	case left >= 4:
		return 4
	case left >= 2:
		return 2
	}
	return 1
}

// transposeEdge is the side of the blocks that transposeBlocks moves, 0 if none.
func transposeEdge[T Float]() int {
	var z T
	if unsafe.Sizeof(z) == 4 {
		switch gemmKernel {
		case avx512Kernel, bf16Kernel, amxKernel:
			return 16
		case avx2Kernel:
			return 8
		}
	}
	return 0
}

// packsColumns says that packColumns can pack the columns of a transposed A.
func packsColumns[T Float]() bool {
	var z T
	return unsafe.Sizeof(z) == 4 && gemmKernel >= avx512Kernel
}

// streamsTile says that there is a tile for gemmFew rows and a B stored [n,k].
func streamsTile[T Float](cols, kc int) bool {
	var z T
	return unsafe.Sizeof(z) == 4 && gemmKernel >= avx512Kernel && cols == 32 && kc > 0 && kc%16 == 0
}

// tileMasks says that a tile reads no column of B beyond cols.
func tileMasks[T Float]() bool {
	var z T
	return unsafe.Sizeof(z) == 8 || gemmKernel != avx2Kernel
}

// tilePortable computes C = alpha A B + beta S for a tile of at most
// portableRows x portableCols. A is at a[i*rsa+p*csa], B at b[p*rsb+j]. S is
// not read when beta = 0.
func tilePortable[T Float](rows, cols, k int, a []T, rsa, csa int, b []T, rsb int, alpha, beta T, s []T, lds int, c []T, ldc int) {
	var acc [portableRows][portableCols]T
	switch {
	case rows == portableRows && cols == portableCols && k > 0:
		tile2x4(&acc, k, a, rsa, csa, b, rsb)
	default:
		for p := range k {
			for i := range rows {
				x := a[i*rsa+p*csa]
				for j := range cols {
					acc[i][j] += x * b[p*rsb+j]
				}
			}
		}
	}
	for i := range rows {
		ci := c[i*ldc:][:cols]
		if beta == 0 {
			for j := range ci {
				ci[j] = alpha * acc[i][j]
			}
			continue
		}
		si := s[i*lds:][:cols]
		for j := range ci {
			ci[j] = alpha*acc[i][j] + beta*si[j]
		}
	}
}

// tile2x4 keeps a 2x4 tile of sums in registers: with the row of B and the
// elements of A that is what 16 registers hold.
func tile2x4[T Float](acc *[portableRows][portableCols]T, k int, a []T, rsa, csa int, b []T, rsb int) {
	a0, a1 := a, a[rsa:]
	var c00, c01, c02, c03, c10, c11, c12, c13 T
	ai, bi := 0, 0
	for range k {
		bp := (*[4]T)(b[bi:])
		b0, b1, b2, b3 := bp[0], bp[1], bp[2], bp[3]
		x, y := a0[ai], a1[ai]
		c00 += x * b0
		c01 += x * b1
		c02 += x * b2
		c03 += x * b3
		c10 += y * b0
		c11 += y * b1
		c12 += y * b2
		c13 += y * b3
		ai += csa
		bi += rsb
	}
	acc[0] = [4]T{c00, c01, c02, c03}
	acc[1] = [4]T{c10, c11, c12, c13}
}

// pack4 packs four rows of B [n,k] as columns of a panel of portableCols.
func pack4[T Float](dst, b []T, ldb, kc int) {
	b0, b1, b2, b3 := b[:kc], b[ldb:][:kc], b[2*ldb:][:kc], b[3*ldb:][:kc]
	for q := range b0 {
		*(*[4]T)(dst[4*q:]) = [4]T{b0[q], b1[q], b2[q], b3[q]}
	}
}
