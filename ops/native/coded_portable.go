//go:build !amd64 || purego

package native

import "unsafe"

// This file stands in for coded_amd64.s; its caller asks inAssembly first.

func codedSteps(Coding) (step int, of func(y *float32, x *byte, n int)) { return 1, nil }

func superQ4_K(*float32, *byte, *superRuns) {}

func superQ5_K(*float32, *byte, *superRuns) {}

func superQ6_K(*float32, *byte, *superRuns) {}

func (t *codedTile) stream(Coding) {}

func streamE4M3(*fp8Tile) {}

func (t *panelTile) run(Coding) {}

func panelRows(Coding, *float32, *byte, int) {}

func fetchLines(unsafe.Pointer, int) {}

func madeByIntel() bool { return false }
