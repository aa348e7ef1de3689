package cuda

import (
	"os"
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
	require.NotEqual(t, "1", os.Getenv("REQUIRE_CUDA"), reason)
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

// What is wrong with the device that was asked for is said before anything is opened.
func TestPickRefuses(t *testing.T) {
	one := []DeviceInfo{{Name: "H200", Compute: 90, SMs: 132, Memory: 1 << 30, Driver: 13000}}
	old, small := one[0], one[0]
	old.Driver, small.Compute = 12040, 75
	info, err := pick(one, "", 0, "ptx")
	require.NoError(t, err)
	require.Equal(t, one[0], info)
	for want, x := range map[string]struct {
		list    []DeviceInfo
		reason  string
		index   int
		variant string
	}{
		"cuda: device 1 was asked for, 1 present (0 to 0)":                 {one, "", 1, ""},
		"cuda: device -1 was asked for, 1 present (0 to 0)":                {one, "", -1, ""},
		"cuda: device 2 was asked for: no CUDA driver: libcuda.so.1: gone": {nil, "no CUDA driver: libcuda.so.1: gone", 2, ""},
		"cuda: SEAFAN_CUDA_VARIANT=\"fast\": portable and ptx are known":   {one, "", 0, "fast"},
		"cuda: device 0: H200, compute capability 9.0, 132 multiprocessors, 1024 MiB, driver for CUDA 12.4: a driver for CUDA 13.0 or later is required": {[]DeviceInfo{old}, "", 0, ""},
		"cuda: device 0: H200, compute capability 7.5, 132 multiprocessors, 1024 MiB, driver for CUDA 13.0: compute capability 8.0 or later is required": {[]DeviceInfo{small}, "", 0, ""},
	} {
		_, err := pick(x.list, x.reason, x.index, x.variant)
		require.EqualError(t, err, want)
	}
}
