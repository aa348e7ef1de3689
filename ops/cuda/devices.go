package cuda

import (
	"fmt"
	"sort"
	"strings"

	"github.com/seafan/seafan/kernels"
)

// DeviceInfo describes one GPU.
type DeviceInfo struct {
	Index   int
	Name    string
	Compute int   // 90 for compute capability 9.0
	SMs     int   // multiprocessors
	Memory  int64 // bytes
	Driver  int   // CUDA version of the driver: 13000 for 13.0
}

func (d DeviceInfo) String() string {
	return fmt.Sprintf("device %d: %s, compute capability %d.%d, %d multiprocessors, %d MiB, driver for CUDA %d.%d",
		d.Index, d.Name, d.Compute/10, d.Compute%10, d.SMs, d.Memory>>20, d.Driver/1000, d.Driver%1000/10)
}

// minDriver is the oldest driver that can load the images: PTX and images of CUDA 13.0.
const minDriver = 13000

// pick is the device that was asked for, or what is wrong with it.
func pick(list []DeviceInfo, reason string, index int, variant string) (DeviceInfo, error) {
	if reason != "" {
		return DeviceInfo{}, fmt.Errorf("cuda: device %d was asked for: %s", index, reason)
	}
	if index < 0 || index >= len(list) {
		return DeviceInfo{}, fmt.Errorf("cuda: device %d was asked for, %d present (0 to %d)", index, len(list), len(list)-1)
	}
	info := list[index]
	if info.Driver < minDriver {
		return info, fmt.Errorf("cuda: %v: a driver for CUDA %d.%d or later is required", info, minDriver/1000, minDriver%1000/10)
	}
	if info.Compute < 80 {
		return info, fmt.Errorf("cuda: %v: compute capability 8.0 or later is required", info)
	}
	if err := kernels.Covers(info.Compute); err != nil {
		return info, fmt.Errorf("cuda: %v: %w", info, err)
	}
	if variant != "" && variant != "portable" && variant != "ptx" {
		return info, fmt.Errorf("cuda: SEAFAN_CUDA_VARIANT=%q: portable and ptx are known", variant)
	}
	return info, nil
}

// Stats is what a device's memory holds now.
type Stats struct {
	Bytes   int64            // device bytes allocated
	Peak    int64            // the most at any time
	Buffers int              // live buffers
	Pinned  int64            // bytes of page-locked host memory
	ByLabel map[string]int64 // device bytes by the label that Alloc was given

	Uploads, Downloads Copies // by Upload and Send, by Download and Fetch, since the device was opened
}

// Copies counts copies between host and device.
type Copies struct{ Count, Bytes int64 }

// String lists the holders, the largest first.
func (s Stats) String() string {
	labels := make([]string, 0, len(s.ByLabel))
	for label := range s.ByLabel {
		labels = append(labels, label)
	}
	sort.Slice(labels, func(i, j int) bool {
		if s.ByLabel[labels[i]] != s.ByLabel[labels[j]] {
			return s.ByLabel[labels[i]] > s.ByLabel[labels[j]]
		}
		return labels[i] < labels[j]
	})
	var b strings.Builder
	fmt.Fprintf(&b, "%d bytes in %d buffers (peak %d, pinned %d)", s.Bytes, s.Buffers, s.Peak, s.Pinned)
	for _, label := range labels {
		fmt.Fprintf(&b, "; %s %d", label, s.ByLabel[label])
	}
	return b.String()
}

// Error is a failed driver call.
type Error struct {
	Call   string // what was asked for, with kernel, grid, block and shared memory for a launch
	Code   int    // the driver's number
	Reason string // the driver's text
}

func (e *Error) Error() string {
	return fmt.Sprintf("cuda: %s: driver error %d: %s", e.Call, e.Code, e.Reason)
}
