//go:build !gpu

package cuda

import (
	"context"
	"errors"

	"github.com/seafan/seafan/graph"
)

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

// Program is a plan on a device; in this build there is none.
type Program struct{}

// Compile fails: there is no driver in this build.
func Compile(d *Device, plan *graph.Plan, options Options) (*Program, error) { return nil, errNoTag }

// Do fails: there is no driver in this build.
func (p *Program) Do(ctx context.Context, feeds graph.Feeds) error { return errNoTag }

// Value fails: there is no driver in this build.
func (p *Program) Value(n *graph.Node) (graph.Tensor, error) { return graph.Tensor{}, errNoTag }

// Launches is 0 in this build.
func (p *Program) Launches() int { return 0 }

// Close does nothing in this build.
func (p *Program) Close() error { return nil }
