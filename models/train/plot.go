// The losses of a run as a table and as a picture.

package train

import (
	"bufio"
	"errors"
	"fmt"
	"image/color"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	lossesName = "loss.csv"
	curveName  = "loss.png"
)

// WriteLosses makes loss.csv and loss.png from the metrics in the folder of a
// run. Without any metrics it does nothing.
func WriteLosses(dir string) error {
	path := filepath.Join(dir, metricsName)
	var train, val plotter.XYs
	every, n, sum := 1, 0, 0.0
	err := ReplaceFile(filepath.Join(dir, lossesName), func(w io.Writer) error {
		out := bufio.NewWriter(w)
		fmt.Fprintln(out, "step,loss,val_loss,lr,grad_norm")
		err := readMetrics(path, func(m Metric) error {
			v := ""
			if m.ValLoss != nil {
				v = number(*m.ValLoss)
				val = append(val, plotter.XY{X: float64(m.Step), Y: *m.ValLoss})
			}
			_, err := fmt.Fprintf(out, "%d,%s,%s,%s,%s\n", m.Step, number(m.Loss), v, number(m.LR), number(m.GradNorm))
			if m.Skipped {
				return err
			}
			// A curve of a long run is means of equal stretches.
			sum += m.Loss
			if n++; n == every {
				train = append(train, plotter.XY{X: float64(m.Step), Y: sum / float64(n)})
				n, sum = 0, 0
			}
			if len(train) == maxPoints {
				every, train = 2*every, halved(train)
			}
			return err
		})
		return errors.Join(err, out.Flush())
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("train: loss.csv: %w", err)
	}
	if len(train) == 0 {
		return nil
	}
	if err := ReplaceFile(filepath.Join(dir, curveName), func(w io.Writer) error { return drawLosses(w, train, val) }); err != nil {
		return fmt.Errorf("train: loss.png: %w", err)
	}
	return nil
}

// maxPoints bounds the points of a curve.
const maxPoints = 2048

// halved joins neighbours.
func halved(xy plotter.XYs) plotter.XYs {
	half := xy[:len(xy)/2]
	for i := range half {
		a, b := xy[2*i], xy[2*i+1]
		half[i] = plotter.XY{X: b.X, Y: (a.Y + b.Y) / 2}
	}
	return half
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// widen leaves room on an axis for the marks, which are set at steps that must be
// more than the roundings of its numbers.
func widen(a *plot.Axis) {
	a.Min, a.Max = min(max(a.Min, -maxDrawn), maxDrawn), max(-maxDrawn, min(a.Max, maxDrawn))
	if least := 1e-6 * max(1, math.Abs(a.Min), math.Abs(a.Max)); a.Max-a.Min < least {
		a.Min, a.Max = a.Min-least, a.Max+least
	}
}

// maxDrawn is where a picture ends: no axis is as long as the float64 numbers.
const maxDrawn = 1e100

func drawLosses(w io.Writer, train, val plotter.XYs) error {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "step", "loss (nats a token)"
	p.Add(plotter.NewGrid())
	p.Legend.Top = true
	line, err := plotter.NewLine(train)
	if err != nil {
		return err
	}
	line.Color = color.RGBA{R: 0x33, G: 0x66, B: 0xcc, A: 0xff}
	p.Add(line)
	p.Legend.Add("training", line)
	if len(val) > 0 {
		line, points, err := plotter.NewLinePoints(val)
		if err != nil {
			return err
		}
		orange := color.RGBA{R: 0xe0, G: 0x6c, B: 0x10, A: 0xff}
		line.Color, points.Color, points.Shape = orange, orange, draw.CircleGlyph{}
		line.Width = vg.Points(1.5)
		p.Add(line, points)
		p.Legend.Add("held out", line, points)
	}
	widen(&p.X)
	widen(&p.Y)
	out, err := p.WriterTo(6*vg.Inch, 4*vg.Inch, "png")
	if err != nil {
		return err
	}
	_, err = out.WriteTo(w)
	return err
}
