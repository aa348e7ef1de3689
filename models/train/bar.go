// The progress bar.

package train

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar shows the steps done, the time left, loss and speed. A nil bar shows
// nothing.
type bar struct {
	w    io.Writer
	p    *progressbar.ProgressBar
	next time.Time
	val  *float64
	rate float64 // tokens a second, smoothed
}

// redraw is how often a terminal is written to.
const redraw = 100 * time.Millisecond

func newBar(w io.Writer, steps, done int) *bar {
	if w == nil {
		return nil
	}
	p := progressbar.NewOptions(steps,
		progressbar.OptionSetWriter(w),
		progressbar.OptionThrottle(redraw),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionSetWidth(20),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionUseANSICodes(true),
	)
	_ = p.Set(done) // errors of a bar do not stop a run
	return &bar{w: w, p: p}
}

func (b *bar) step(m *Metric) {
	if b == nil {
		return
	}
	if m.ValLoss != nil {
		v := *m.ValLoss
		b.val = &v
	}
	if b.rate == 0 {
		b.rate = m.TokensPerS
	}
	b.rate += 0.05 * (m.TokensPerS - b.rate)
	now := time.Now()
	if now.Before(b.next) {
		_ = b.p.Add(1)
		return
	}
	b.next = now.Add(redraw)
	text := fmt.Sprintf("loss %.4f", m.Loss)
	if b.val != nil {
		text += fmt.Sprintf(", val %.4f", *b.val)
	}
	b.p.Describe(fmt.Sprintf("%s, %.0f tokens/s", text, b.rate))
	_ = b.p.Add(1)
}

// close leaves the bar as it is and goes to the next line.
func (b *bar) close() {
	if b == nil {
		return
	}
	_ = b.p.Exit()
	fmt.Fprintln(b.w)
}
