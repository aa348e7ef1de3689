//go:build !gpu

package cuda

import "errors"

const noTag = "this program was built without the tag gpu, so it looked for no CUDA driver"

var errNoTag = errors.New("cuda: " + noTag)

// Devices lists the GPUs, or none and the reason.
func Devices() (list []DeviceInfo, reason string) { return nil, noTag }

// Device is a GPU that is open for use; in this build there is none.
type Device struct{}

// Open fails: there is no driver in this build.
func Open(index int) (*Device, error) { return nil, errNoTag }

// Stats is empty in this build.
func (d *Device) Stats() Stats { return Stats{} }

// Close fails: there is no driver in this build.
func (d *Device) Close() error { return errNoTag }
