package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// report is what ptxas says of two kernels for one architecture.
const report = `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'second' for 'sm_80'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 400 bytes cmem[0]
ptxas info    : Compiling entry function 'first' for 'sm_80'
ptxas info    : Function properties for first
    %FRAME
ptxas info    : Used 255 registers, used 1 barriers, 400 bytes cmem[0]
`

// A kernel that spills or has a stack frame fails, unless its source declares as much local memory.
func TestSpillsFail(t *testing.T) {
	with := func(frame string) string { return strings.Replace(report, "%FRAME", frame, 1) }
	var c compiler
	for _, x := range []struct{ header, frame, want string }{
		{"// A kernel.", "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", ""},
		{"// A kernel.", "8 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads", "k.cu: kernel first for sm_80: stack frame 8 bytes, spill stores 8, spill loads 4; the header declares 0"},
		{"// local memory: 32 bytes", "32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", ""},
		{"// local memory: 32 bytes", "40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", "k.cu: kernel first for sm_80: stack frame 40 bytes, spill stores 0, spill loads 0; the header declares 32"},
	} {
		entries, err := c.check("k.cu", x.header, with(x.frame))
		if x.want != "" {
			require.EqualError(t, err, x.want)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, []string{"first", "second"}, entries)
	}
	_, err := c.check("k.cu", "", "ptxas info    : 0 bytes gmem\n")
	require.EqualError(t, err, "k.cu: the compiler reported no kernel")
}
