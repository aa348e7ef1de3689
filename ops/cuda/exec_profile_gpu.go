//go:build gpu

package cuda

import (
	"context"
	"fmt"
	"slices"

	"gorgonia.org/cu"

	"github.com/seafan/seafan/graph"
)

// Profile times the launches that a run with these feeds makes. Those of one kernel for one role, one for each layer, are
// captured as a graph of their own and replayed, so that they follow each other as in a run and find the weights and the
// caches of their layers in memory; the median counts. It is for measuring: values and states hold nothing of use afterwards.
// Native steps are not timed.
func (e *Executor) Profile(ctx context.Context, feeds graph.Feeds, replays int) (Profile, error) {
	if replays < 1 {
		return Profile{}, fmt.Errorf("cuda: Profile: %d replays, at least 1 is required", replays)
	}
	if err := e.Do(ctx, feeds); err != nil {
		return Profile{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []queued
	for _, seg := range e.segments {
		all = append(all, seg.queued...)
	}
	p := Profile{}
	var err error
	if p.Bandwidth, p.Rate, err = e.unit.dev.rates(e.prog.compute); err != nil {
		return p, err
	}
	const least = 16 // launches of a graph, so that its own start counts for little
	mixed := e.prog.needsMixed(feeds)
	var run []queued
	for _, q := range all {
		if !q.mixed || mixed {
			run = append(run, q)
		}
	}
	if p.Micros, err = e.unit.dev.clock(run, 1, replays); err != nil {
		return p, err
	}
	for _, g := range e.prog.groups(feeds) {
		var list []queued
		for _, i := range g.index {
			list = append(list, all[i])
		}
		if g.Micros, err = e.unit.dev.clock(list, ceilDiv(least, len(list)), replays); err != nil {
			return p, err
		}
		g.Floor = 1e6 * max(g.Bytes/p.Bandwidth, g.FLOPs/p.Rate)
		p.Kernels = append(p.Kernels, g.KernelTime)
	}
	slices.SortStableFunc(p.Kernels, longestFirst)
	return p, nil
}

// clock is the time of the launches as a captured graph of several rounds, in microseconds a round.
func (d *Device) clock(list []queued, rounds, replays int) (float64, error) {
	s := d.Main()
	send := func(q Queue) error {
		for range rounds {
			for _, x := range list {
				if err := x.send(q); err != nil {
					return err
				}
			}
		}
		return nil
	}
	g, err := s.Capture(send)
	if err != nil {
		return 0, err
	}
	defer g.Close()
	start, err := d.NewEvent()
	if err != nil {
		return 0, err
	}
	defer start.Free()
	end, err := d.NewEvent()
	if err != nil {
		return 0, err
	}
	defer end.Free()
	var times []float64
	for i := range replays + 1 {
		if err := start.Record(s); err != nil {
			return 0, err
		}
		if err := g.Replay(s); err != nil {
			return 0, err
		}
		if err := end.Record(s); err != nil {
			return 0, err
		}
		ms, err := end.Since(start)
		if err != nil {
			return 0, err
		}
		if i > 0 {
			times = append(times, ms*1e3/float64(rounds))
		}
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// rates are the highest of the device: bytes of memory and floating-point operations of products a second.
func (d *Device) rates(compute DType) (bandwidth, rate float64, err error) {
	err = d.do(func() error {
		var v [3]int
		for i, a := range []cu.DeviceAttribute{cu.MemoryClockRate, cu.GlobalMemoryBusWidth, cu.ClockRate} {
			var err error
			if v[i], err = d.dev.Attribute(a); err != nil {
				return wrap(err, "clocks of the device")
			}
		}
		bandwidth = 2 * 1e3 * float64(v[0]) * float64(v[1]) / 8 // two transfers a clock
		each := 256.                                            // of a multiprocessor in a clock
		switch {
		case d.Info.Compute == 80 && compute == F32:
			each = 128
		case compute == F32:
		case d.Info.Compute == 90:
			each = 4096
		case d.Info.Compute == 80:
			each = 2048
		default:
			each = 1024
		}
		rate = each * 1e3 * float64(v[2]) * float64(d.Info.SMs)
		return nil
	})
	return bandwidth, rate, err
}
