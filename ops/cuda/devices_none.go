//go:build !gpu

package cuda

import "errors"

const noTag = "this program was built without the tag gpu, so it looked for no CUDA driver"

// Devices lists the GPUs, or none and the reason.
func Devices() (list []DeviceInfo, reason string) { return nil, noTag }

// Device is a GPU that is open for use.
type Device struct{}

// Open fails: there is no driver in this build.
func Open(index int) (*Device, error) { return nil, errors.New("cuda: " + noTag) }
