//go:build !amd64 || purego

package native

// This file stands in for the assembly where there is none.

func chooseKernel() int { return portableKernel }

func (t *tileArgs) run() {}
