//go:build amd64 && !purego

#include "textflag.h"

// Transposes for packing a panel of B that is stored [n,k]: rows of the source
// become columns of the panel. Both read each cache line of the source once and
// write whole vectors; the shuffles (two a cycle) are the bound: 4 for 16
// elements with AVX-512, 3 for 8 with AVX2.
//
// The scheme is the same for both: rows 2i and 2i+1 are interleaved by element,
// then groups of four rows by pairs, which transposes every 4x4 block in its
// 128-bit lane; the rest moves whole lanes.

// PUT stores a row of the panel and goes on to the next.
#define PUT(z) \
	VMOVUPS z, (DI) \
	ADDQ    AX, DI

// func transposeAVX512(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, blocks int)
//
// 16 rows of 16*blocks columns at src (row stride lds bytes) become 16*blocks
// rows of 16 at dst (row stride ldd bytes).
//	Z0..Z15 rows, then lanes transposed; Z16..Z31 the other half of each stage
//	SI R8 R9 R10 source at rows 0, 4, 8, 12, R11 lds, R12 3 lds
//	DI destination, AX ldd
TEXT ·transposeAVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ ldd+8(FP), AX
	MOVQ src+16(FP), SI
	MOVQ lds+24(FP), R11
	MOVQ blocks+32(FP), CX
	LEAQ (R11)(R11*2), R12
	LEAQ (SI)(R11*4), R8
	LEAQ (R8)(R11*4), R9
	LEAQ (R9)(R11*4), R10

block16:
	VMOVUPS (SI), Z0
	VMOVUPS (SI)(R11*1), Z1
	VMOVUPS (SI)(R11*2), Z2
	VMOVUPS (SI)(R12*1), Z3
	VMOVUPS (R8), Z4
	VMOVUPS (R8)(R11*1), Z5
	VMOVUPS (R8)(R11*2), Z6
	VMOVUPS (R8)(R12*1), Z7
	VMOVUPS (R9), Z8
	VMOVUPS (R9)(R11*1), Z9
	VMOVUPS (R9)(R11*2), Z10
	VMOVUPS (R9)(R12*1), Z11
	VMOVUPS (R10), Z12
	VMOVUPS (R10)(R11*1), Z13
	VMOVUPS (R10)(R11*2), Z14
	VMOVUPS (R10)(R12*1), Z15

	VUNPCKLPS Z1, Z0, Z16
	VUNPCKHPS Z1, Z0, Z17
	VUNPCKLPS Z3, Z2, Z18
	VUNPCKHPS Z3, Z2, Z19
	VUNPCKLPS Z5, Z4, Z20
	VUNPCKHPS Z5, Z4, Z21
	VUNPCKLPS Z7, Z6, Z22
	VUNPCKHPS Z7, Z6, Z23
	VUNPCKLPS Z9, Z8, Z24
	VUNPCKHPS Z9, Z8, Z25
	VUNPCKLPS Z11, Z10, Z26
	VUNPCKHPS Z11, Z10, Z27
	VUNPCKLPS Z13, Z12, Z28
	VUNPCKHPS Z13, Z12, Z29
	VUNPCKLPS Z15, Z14, Z30
	VUNPCKHPS Z15, Z14, Z31

	VUNPCKLPD Z18, Z16, Z0
	VUNPCKHPD Z18, Z16, Z1
	VUNPCKLPD Z19, Z17, Z2
	VUNPCKHPD Z19, Z17, Z3
	VUNPCKLPD Z22, Z20, Z4
	VUNPCKHPD Z22, Z20, Z5
	VUNPCKLPD Z23, Z21, Z6
	VUNPCKHPD Z23, Z21, Z7
	VUNPCKLPD Z26, Z24, Z8
	VUNPCKHPD Z26, Z24, Z9
	VUNPCKLPD Z27, Z25, Z10
	VUNPCKHPD Z27, Z25, Z11
	VUNPCKLPD Z30, Z28, Z12
	VUNPCKHPD Z30, Z28, Z13
	VUNPCKLPD Z31, Z29, Z14
	VUNPCKHPD Z31, Z29, Z15

	VSHUFF32X4 $0x88, Z4, Z0, Z16
	VSHUFF32X4 $0xdd, Z4, Z0, Z17
	VSHUFF32X4 $0x88, Z12, Z8, Z18
	VSHUFF32X4 $0xdd, Z12, Z8, Z19
	VSHUFF32X4 $0x88, Z5, Z1, Z20
	VSHUFF32X4 $0xdd, Z5, Z1, Z21
	VSHUFF32X4 $0x88, Z13, Z9, Z22
	VSHUFF32X4 $0xdd, Z13, Z9, Z23
	VSHUFF32X4 $0x88, Z6, Z2, Z24
	VSHUFF32X4 $0xdd, Z6, Z2, Z25
	VSHUFF32X4 $0x88, Z14, Z10, Z26
	VSHUFF32X4 $0xdd, Z14, Z10, Z27
	VSHUFF32X4 $0x88, Z7, Z3, Z28
	VSHUFF32X4 $0xdd, Z7, Z3, Z29
	VSHUFF32X4 $0x88, Z15, Z11, Z30
	VSHUFF32X4 $0xdd, Z15, Z11, Z31

	VSHUFF32X4 $0x88, Z18, Z16, Z0
	VSHUFF32X4 $0x88, Z19, Z17, Z4
	VSHUFF32X4 $0xdd, Z18, Z16, Z8
	VSHUFF32X4 $0xdd, Z19, Z17, Z12
	VSHUFF32X4 $0x88, Z22, Z20, Z1
	VSHUFF32X4 $0x88, Z23, Z21, Z5
	VSHUFF32X4 $0xdd, Z22, Z20, Z9
	VSHUFF32X4 $0xdd, Z23, Z21, Z13
	VSHUFF32X4 $0x88, Z26, Z24, Z2
	VSHUFF32X4 $0x88, Z27, Z25, Z6
	VSHUFF32X4 $0xdd, Z26, Z24, Z10
	VSHUFF32X4 $0xdd, Z27, Z25, Z14
	VSHUFF32X4 $0x88, Z30, Z28, Z3
	VSHUFF32X4 $0x88, Z31, Z29, Z7
	VSHUFF32X4 $0xdd, Z30, Z28, Z11
	VSHUFF32X4 $0xdd, Z31, Z29, Z15

	PUT(Z0)
	PUT(Z1)
	PUT(Z2)
	PUT(Z3)
	PUT(Z4)
	PUT(Z5)
	PUT(Z6)
	PUT(Z7)
	PUT(Z8)
	PUT(Z9)
	PUT(Z10)
	PUT(Z11)
	PUT(Z12)
	PUT(Z13)
	PUT(Z14)
	PUT(Z15)

	ADDQ $64, SI
	ADDQ $64, R8
	ADDQ $64, R9
	ADDQ $64, R10
	DECQ CX
	JNZ  block16
	VZEROUPPER
	RET

// func transposeAVX2(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, blocks int)
//
// 8 rows of 8*blocks columns at src (row stride lds bytes) become 8*blocks rows
// of 8 at dst (row stride ldd bytes).
//	Y0..Y7 rows, then lanes transposed; Y8..Y15 the other half of each stage
//	SI R8 source at rows 0, 4, R11 lds, R12 3 lds, DI destination, AX ldd
TEXT ·transposeAVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ ldd+8(FP), AX
	MOVQ src+16(FP), SI
	MOVQ lds+24(FP), R11
	MOVQ blocks+32(FP), CX
	LEAQ (R11)(R11*2), R12
	LEAQ (SI)(R11*4), R8

block8:
	VMOVUPS (SI), Y0
	VMOVUPS (SI)(R11*1), Y1
	VMOVUPS (SI)(R11*2), Y2
	VMOVUPS (SI)(R12*1), Y3
	VMOVUPS (R8), Y4
	VMOVUPS (R8)(R11*1), Y5
	VMOVUPS (R8)(R11*2), Y6
	VMOVUPS (R8)(R12*1), Y7

	VUNPCKLPS Y1, Y0, Y8
	VUNPCKHPS Y1, Y0, Y9
	VUNPCKLPS Y3, Y2, Y10
	VUNPCKHPS Y3, Y2, Y11
	VUNPCKLPS Y5, Y4, Y12
	VUNPCKHPS Y5, Y4, Y13
	VUNPCKLPS Y7, Y6, Y14
	VUNPCKHPS Y7, Y6, Y15

	VUNPCKLPD Y10, Y8, Y0
	VUNPCKHPD Y10, Y8, Y1
	VUNPCKLPD Y11, Y9, Y2
	VUNPCKHPD Y11, Y9, Y3
	VUNPCKLPD Y14, Y12, Y4
	VUNPCKHPD Y14, Y12, Y5
	VUNPCKLPD Y15, Y13, Y6
	VUNPCKHPD Y15, Y13, Y7

	VPERM2F128 $0x20, Y4, Y0, Y8
	VPERM2F128 $0x31, Y4, Y0, Y12
	VPERM2F128 $0x20, Y5, Y1, Y9
	VPERM2F128 $0x31, Y5, Y1, Y13
	VPERM2F128 $0x20, Y6, Y2, Y10
	VPERM2F128 $0x31, Y6, Y2, Y14
	VPERM2F128 $0x20, Y7, Y3, Y11
	VPERM2F128 $0x31, Y7, Y3, Y15

	PUT(Y8)
	PUT(Y9)
	PUT(Y10)
	PUT(Y11)
	PUT(Y12)
	PUT(Y13)
	PUT(Y14)
	PUT(Y15)

	ADDQ $32, SI
	ADDQ $32, R8
	DECQ CX
	JNZ  block8
	VZEROUPPER
	RET

// func packColumnsAVX512(dst unsafe.Pointer, panel int, src unsafe.Pointer, lds, k, columns int)
//
// Packs 1 to 48 columns of k rows at src (row stride lds bytes) into panels of
// 12, the last one as wide as is left: row p of panel i goes to dst + i*panel +
// p*width bytes. One row at a time: the rows of a transposed A are far apart,
// often in one cache set, so each is read whole.
//	DI R8 R9 R10 the panels, K1 to K4 and R12 R13 R14 DX their widths,
//	SI source, R11 lds, CX rows left
#define WIDTH(lanes, bytes) \
	XORL    BX, BX     \
	CMPQ    DX, BX     \
	CMOVQGT DX, BX     \
	MOVQ    $12, AX    \
	CMPQ    BX, AX     \
	CMOVQGT AX, BX     \
	MOVQ    $-1, AX    \
	BZHIQ   BX, AX, AX \
	KMOVW   AX, lanes  \
	SUBQ    $12, DX    \
	LEAQ    (BX*4), bytes

TEXT ·packColumnsAVX512(SB), NOSPLIT, $0-48
	MOVQ  dst+0(FP), DI
	MOVQ  panel+8(FP), AX
	MOVQ  src+16(FP), SI
	MOVQ  lds+24(FP), R11
	MOVQ  k+32(FP), CX
	MOVQ  columns+40(FP), DX
	LEAQ  (DI)(AX*1), R8
	LEAQ  (R8)(AX*1), R9
	LEAQ  (R9)(AX*1), R10
	WIDTH(K1, R12)
	WIDTH(K2, R13)
	WIDTH(K3, R14)
	WIDTH(K4, DX)

row:
	VMOVUPS.Z (SI), K1, Z0
	VMOVUPS.Z 48(SI), K2, Z1
	VMOVUPS.Z 96(SI), K3, Z2
	VMOVUPS.Z 144(SI), K4, Z3
	VMOVUPS   Z0, K1, (DI)
	VMOVUPS   Z1, K2, (R8)
	VMOVUPS   Z2, K3, (R9)
	VMOVUPS   Z3, K4, (R10)
	ADDQ      R11, SI
	ADDQ      R12, DI
	ADDQ      R13, R8
	ADDQ      R14, R9
	ADDQ      DX, R10
	DECQ      CX
	JNZ       row
	VZEROUPPER
	RET

// func copyRowsAVX512(dst, src unsafe.Pointer, lds, rows int)
//
// Packs 32 columns of rows > 0 rows at src (row stride lds bytes) one behind the
// other. Rows far apart lie on pages of their own, where nothing fetches the next
// one: it is asked for 16 rows ahead.
//	DI dst, SI source, R11 lds, R12 16 lds, CX rows left
TEXT ·copyRowsAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ lds+16(FP), R11
	MOVQ rows+24(FP), CX
	MOVQ R11, R12
	SHLQ $4, R12

copy:
	PREFETCHT0 (SI)(R12*1)
	PREFETCHT0 64(SI)(R12*1)
	VMOVUPS (SI), Z0
	VMOVUPS 64(SI), Z1
	VMOVUPS Z0, (DI)
	VMOVUPS Z1, 64(DI)
	ADDQ    R11, SI
	ADDQ    $128, DI
	DECQ    CX
	JNZ     copy
	VZEROUPPER
	RET

// func copyStripsAVX512(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, rows, vectors int)
//
// Copies rows > 0 rows of vectors > 0 vectors. Rows far apart lie on pages of
// their own, where nothing fetches the next one: it is asked for two rows ahead.
//	DI dst, R8 ldd, SI source, R11 lds, CX rows left, DX vectors, AX offset
TEXT ·copyStripsAVX512(SB), NOSPLIT, $0-48
	MOVQ dst+0(FP), DI
	MOVQ ldd+8(FP), R8
	MOVQ src+16(FP), SI
	MOVQ lds+24(FP), R11
	MOVQ rows+32(FP), CX
	MOVQ vectors+40(FP), DX
	SHLQ $6, DX
	LEAQ (SI)(R11*2), R9

strip:
	XORL AX, AX

vector:
	PREFETCHT0 (R9)(AX*1)
	VMOVUPS (SI)(AX*1), Z0
	VMOVUPS Z0, (DI)(AX*1)
	ADDQ $64, AX
	CMPQ AX, DX
	JB   vector
	ADDQ R11, SI
	ADDQ R11, R9
	ADDQ R8, DI
	DECQ CX
	JNZ  strip
	VZEROUPPER
	RET
