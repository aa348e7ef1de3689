package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// With no device every build says why, and an explicit request is an error that carries the reason.
func TestNoDeviceHasAReason(t *testing.T) {
	list, reason := Devices()
	if len(list) > 0 {
		t.Skip("a device is present")
	}
	require.NotEmpty(t, reason)
	_, err := Open(0)
	require.ErrorContains(t, err, reason)
}

func TestStatsAndErrorsAsText(t *testing.T) {
	s := Stats{Bytes: 30, Peak: 40, Buffers: 3, Pinned: 5, ByLabel: map[string]int64{"weights": 20, "arena": 5, "pages": 5}}
	require.Equal(t, "30 bytes in 3 buffers (peak 40, pinned 5); weights 20; arena 5; pages 5", s.String())
	require.Equal(t, "device 0: H200, compute capability 9.0, 132 multiprocessors, 1024 MiB, driver for CUDA 13.0",
		DeviceInfo{Name: "H200", Compute: 90, SMs: 132, Memory: 1 << 30, Driver: 13000}.String())
	require.EqualError(t, &Error{Call: "launch of k", Code: 700, Reason: "an illegal memory access"}, "cuda: launch of k: driver error 700: an illegal memory access")
}
