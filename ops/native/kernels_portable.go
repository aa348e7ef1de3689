//go:build !amd64 || purego

package native

import "unsafe"

// This file stands in for the assembly where there is none.

func chooseKernel() int { return portableKernel }

func (t *tileArgs) run() {}

func transposeBlocks(dst unsafe.Pointer, ldd int, src unsafe.Pointer, lds, blocks int) {}
