package ops

import (
	"fmt"
	"math"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops/native"
)

// FP8Policy says which format an operand has.
type FP8Policy uint8

const (
	Hybrid   FP8Policy = iota // E4M3 forward, E5M2 for the gradient
	OnlyE4M3                  // E4M3 everywhere
	OnlyE5M2                  // E5M2 everywhere
)

func (p FP8Policy) String() string {
	switch p {
	case Hybrid:
		return "hybrid"
	case OnlyE4M3:
		return "E4M3"
	case OnlyE5M2:
		return "E5M2"
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// Forward is the format of x and w.
func (p FP8Policy) Forward() native.FP8 {
	if p == OnlyE5M2 {
		return native.E5M2
	}
	return native.E4M3
}

// Backward is the format of the gradient.
func (p FP8Policy) Backward() native.FP8 {
	if p == OnlyE4M3 {
		return native.E4M3
	}
	return native.E5M2
}

// FP8Recipe is how an operand of an FP8 linear gets its step:
//
//	step = amax / max(format) * 2^Margin
//
// Without a History, amax is that of the tensor being quantised (dynamic). With
// one it is the largest, or with MostRecent the newest, of the last History
// training steps before this one (delayed); the first uses its own. An amax of
// 0, infinity or NaN is not recorded, and where there is nothing else keeps the
// step of before, at the start 1.
type FP8Recipe struct {
	Format     FP8Policy
	History    int // 0: dynamic
	Margin     int // headroom in powers of 2
	MostRecent bool
}

// maxFP8History bounds the memory of a state.
const maxFP8History = 1 << 16

// Check refuses values out of range.
func (r FP8Recipe) Check() error {
	switch {
	case r.Format > OnlyE5M2:
		return fmt.Errorf("the format must be hybrid, E4M3 or E5M2, got %s", r.Format)
	case r.History < 0 || r.History > maxFP8History:
		return fmt.Errorf("the history must be 0 (dynamic) to %d steps, got %d", maxFP8History, r.History)
	case r.MostRecent && r.History == 0:
		return fmt.Errorf("the most recent amax needs a history of 1 or more, got 0")
	case r.Margin < -64 || r.Margin > 64:
		return fmt.Errorf("the margin must be -64 to 64, got %d", r.Margin)
	}
	return nil
}

func (r FP8Recipe) String() string {
	s := "dynamic"
	if r.History > 0 {
		s = fmt.Sprintf("delayed (history %d, max)", r.History)
		if r.MostRecent {
			s = fmt.Sprintf("delayed (history %d, most recent)", r.History)
		}
	}
	if r.Margin != 0 {
		s += fmt.Sprintf(", margin %d", r.Margin)
	}
	return s + ", " + r.Format.String()
}

// WeightStep is the step that a forward pass takes for a weight of the largest magnitude amax, given its state. Replaced says that
// the weight is another one than the history's: then the histories of all operands are left aside.
func (r FP8Recipe) WeightStep(state []float32, amax float32) (step float32, replaced bool) {
	s := fp8State(state)
	replaced = s.replaced(amax)
	return r.step(s, amax, r.Format.Forward(), replaced), replaced
}

// HistoryStep is the step that a forward pass takes for x from its state alone; known is false where it takes that of x's own
// largest magnitude.
func (r FP8Recipe) HistoryStep(state []float32) (step float32, known bool) {
	s := fp8State(state)
	if r.History == 0 || s[fp8Filled] == 0 {
		return 0, false
	}
	return r.step(s, 0, r.Format.Forward(), false), true
}

// The state of an operand is float32 [fp8History + History]; zeros are an
// operand that no training step has seen.
const (
	fp8Recipe  = iota // 1 + format + 4 when delayed + 8 when most recent; 0 before the first step
	fp8Margin         // of the recipe
	fp8Step           // the step used last
	fp8Filled         // amax values in the history
	fp8Next           // where the next one goes
	fp8Skipped        // training steps whose amax was 0, infinite or NaN
	fp8Amax           // the last amax that was none of these
	fp8NaN            // NaN elements met
	fp8History
)

// fp8State is the memory of a state.
type fp8State []float32

func (r FP8Recipe) tag() float32 {
	t := 1 + float32(r.Format)
	if r.History > 0 {
		t += 4
	}
	if r.MostRecent {
		t += 8
	}
	return t
}

// recipe is the one that wrote the state.
func (s fp8State) recipe() FP8Recipe {
	t := int(s[fp8Recipe]) - 1
	return FP8Recipe{Format: FP8Policy(t & 3), History: len(s) - fp8History, Margin: int(s[fp8Margin]), MostRecent: t&8 != 0}
}

// fits refuses a state, if it is there, with a history of another length.
func (r FP8Recipe) fits(p *graph.Param) error {
	if p == nil || p.Type.Size() == fp8History+r.History {
		return nil
	}
	was := FP8Recipe{History: p.Type.Size() - fp8History}
	if s := fp8State(graph.Data[float32](p.Tensor())); s[fp8Recipe] != 0 {
		was = s.recipe()
	}
	return fmt.Errorf("fp8_linear: the state %s is of the recipe %s, the graph has %s", p.Name, was, r)
}

// check refuses the state of another recipe.
func (r FP8Recipe) check(s fp8State, name string) error {
	if s[fp8Recipe] != 0 && (s[fp8Recipe] != r.tag() || s[fp8Margin] != float32(r.Margin)) {
		return fmt.Errorf("the state %s is of the recipe %s, the graph has %s", name, s.recipe(), r)
	}
	return nil
}

// step is the step for a tensor of the given amax. It reads the state and does
// not change it. fresh leaves the history aside.
func (r FP8Recipe) step(s fp8State, amax float32, f native.FP8, fresh bool) float32 {
	if r.History > 0 && s[fp8Filled] > 0 && !fresh {
		amax = s.latest()
		if !r.MostRecent {
			_, amax = s.bounds()
		}
	}
	if step, ok := native.FP8Step(amax, f, r.Margin); ok {
		return step
	}
	if s[fp8Step] > 0 {
		return s[fp8Step]
	}
	return 1
}

func (s fp8State) history() []float32 { return s[fp8History:][:int(s[fp8Filled])] }

func (s fp8State) latest() float32 {
	n := len(s) - fp8History
	return s[fp8History+(int(s[fp8Next])+n-1)%n]
}

// bounds is the smallest and the largest amax of the history.
func (s fp8State) bounds() (lo, hi float32) {
	lo = float32(math.Inf(1))
	for _, a := range s.history() {
		lo, hi = min(lo, a), max(hi, a)
	}
	return lo, hi
}

// replaced reports that a weight of this amax cannot be the next one after
// those of the history: no training step halves or doubles the largest weight,
// so other weights were loaded and what the history knows is of no use.
func (s fp8State) replaced(amax float32) bool {
	if len(s) == fp8History || s[fp8Filled] == 0 || !usable(amax) {
		return false
	}
	lo, hi := s.bounds()
	return amax < lo/2 || amax > 2*hi
}

// record adds what a training step met to the state. fresh drops the history
// first.
func (r FP8Recipe) record(s fp8State, amax, step float32, nan int, fresh bool) {
	s[fp8Recipe], s[fp8Margin] = r.tag(), float32(r.Margin)
	s[fp8Step] = step
	s[fp8NaN] = min(s[fp8NaN]+float32(nan), 1<<24) // the counts stay exact in a float32
	if fresh {
		s[fp8Filled], s[fp8Next] = 0, 0
	}
	if !usable(amax) {
		s[fp8Skipped] = min(s[fp8Skipped]+1, 1<<24)
		return
	}
	s[fp8Amax] = amax
	if r.History == 0 {
		return
	}
	at := int(s[fp8Next])
	s[fp8History+at] = amax
	s[fp8Next] = float32((at + 1) % r.History)
	s[fp8Filled] = min(s[fp8Filled]+1, float32(r.History))
}

func usable(amax float32) bool { return amax > 0 && !math.IsInf(float64(amax), 0) }

// FP8Stat is what an operand of an FP8 linear has met in training.
type FP8Stat struct {
	State    string    `json:"state"` // its name: the weight's, ".fp8.", and x, w or g
	Recipe   string    `json:"recipe"`
	Step     float32   `json:"step"` // used last
	Amax     float32   `json:"amax"` // met last, of those not skipped
	History  []float32 `json:"history,omitempty"`
	Skipped  int       `json:"skipped"` // steps whose amax was 0, infinite or NaN
	NaN      int       `json:"nan"`     // NaN elements
	Recorded bool      `json:"recorded"`
}

// FP8Stats reads the states of all FP8 linears among the parameters, in their
// order.
func FP8Stats(params *graph.Params) []FP8Stat {
	var stats []FP8Stat
	for _, p := range params.All() {
		base, _, ok := strings.Cut(p.Name, ".fp8.")
		if !ok || base == "" || !p.State || p.Type.DType != dtype.Float32 || p.Type.Size() < fp8History {
			continue
		}
		s := fp8State(graph.Data[float32](p.Tensor()))
		st := FP8Stat{State: p.Name, Step: s[fp8Step], Amax: s[fp8Amax], Skipped: int(s[fp8Skipped]), NaN: int(s[fp8NaN]), Recorded: s[fp8Recipe] != 0}
		if st.Recorded {
			st.Recipe = s.recipe().String()
		}
		n := len(s) - fp8History
		for i := range int(s[fp8Filled]) { // oldest first
			st.History = append(st.History, s[fp8History+(int(s[fp8Next])+n-int(s[fp8Filled])+i)%n])
		}
		stats = append(stats, st)
	}
	return stats
}
