//go:build !purego

package native

import "syscall"

// requestTiles asks the kernel for the registers of AMX, which a process may
// use only after it has asked; the permission is that of all its threads.
func requestTiles() bool {
	const (
		archReqXcompPerm  = 0x1023
		xfeatureXtiledata = 18
	)
	_, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXcompPerm, xfeatureXtiledata, 0)
	return errno == 0
}
