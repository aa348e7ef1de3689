// What starting the program leaves in memory.

package main

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetStartup gives back the pages of the program's own file that starting it
// has touched: 8 MB, most of it code and tables of libraries that run once. What
// is needed again is read again from the system's cache of the file.
func forgetStartup() {
	program, err := os.Executable()
	if err != nil {
		return // it is a saving, nothing needs it
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close() // only read
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		// from-to permissions offset device inode path
		f := strings.Fields(lines.Text())
		if len(f) != 6 || f[5] != program || strings.Contains(f[1], "w") {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		a, errA := strconv.ParseUint(from, 16, 64)
		b, errB := strconv.ParseUint(to, 16, 64)
		if errA == nil && errB == nil {
			unix.Syscall(unix.SYS_MADVISE, uintptr(a), uintptr(b-a), unix.MADV_DONTNEED)
		}
	}
}
