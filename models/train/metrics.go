// The metrics of a run: a JSON line for each step.

package train

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/seafan/seafan/autocast"
)

// Metric is what is known of a step.
type Metric struct {
	Step       int      `json:"step"`      // counted from 1
	Loss       float64  `json:"loss"`      // mean over the counted tokens, before the update
	LR         float64  `json:"lr"`        // learning rate
	GradNorm   float64  `json:"grad_norm"` // before clipping
	Tokens     int64    `json:"tokens"`    // counted tokens
	TokensPerS float64  `json:"tokens_per_s"`
	StepMS     float64  `json:"step_ms"`
	Skipped    bool     `json:"skipped,omitempty"`  // no token counted, nothing was updated
	ValLoss    *float64 `json:"val_loss,omitempty"` // where there was an evaluation

	FP8 *autocast.Summary `json:"fp8,omitempty"` // scaling, of a model in FP8
}

const metricsName = "metrics.jsonl"

// metricsFile appends lines, one write each, so that a killed process leaves
// whole lines up to its last.
type metricsFile struct {
	f   *os.File
	buf bytes.Buffer
	enc *json.Encoder
}

// openMetrics opens the metrics of a run that has done step steps; lines of
// later steps, and a torn last one, are cut off.
func openMetrics(dir string, step int) (*metricsFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, metricsName), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	end, err := endOf(f, step)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	m := &metricsFile{f: f}
	m.enc = json.NewEncoder(&m.buf)
	return m, nil
}

// checkMetrics fails where openMetrics would on the lines that are there.
func checkMetrics(dir string, step int) error {
	f, err := os.Open(filepath.Join(dir, metricsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = endOf(f, step)
	return err
}

// endOf is where the lines of the first step steps end. A last line without
// its newline was torn by a kill and does not count; any other that is not the
// metric of a later step than the line before is damage.
func endOf(f *os.File, step int) (int64, error) {
	in := bufio.NewReader(f)
	var end int64
	for n, last := 1, 0; last < step; n++ {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", f.Name(), err)
		}
		var m Metric
		if err := json.Unmarshal(line, &m); err != nil {
			return 0, fmt.Errorf("%s: line %d: must be the metric of a step: %w", f.Name(), n, err)
		}
		if m.Step <= last {
			return 0, fmt.Errorf("%s: line %d: must be of a step after %d, got %d", f.Name(), n, last, m.Step)
		}
		if last = m.Step; last > step {
			break
		}
		end += int64(len(line))
	}
	return end, nil
}

func (m *metricsFile) write(v *Metric) error {
	m.buf.Reset()
	if err := m.enc.Encode(v); err != nil {
		return err
	}
	_, err := m.f.Write(m.buf.Bytes())
	return err
}

// sync makes the lines so far last, before a checkpoint counts on them.
func (m *metricsFile) sync() error { return m.f.Sync() }

func (m *metricsFile) close() error { return m.f.Close() }

// readMetrics calls f for every line of a metrics file.
func readMetrics(path string, f func(Metric) error) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	dec := json.NewDecoder(bufio.NewReader(in))
	for {
		var m Metric
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := f(m); err != nil {
			return err
		}
	}
}
