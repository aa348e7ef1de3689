package cuda

import (
	"errors"
	"fmt"
	"math"
)

// kdaFresh in a slot says that its request begins here, from a state of zeros.
const kdaFresh = 1 << 30

// mostKDADim is the widest head that kernels of KDA exist for.
const mostKDADim = 256

// KDAHeads are the sizes of a call of KDA: H heads of queries and keys of DK, HV heads of values of DV.
type KDAHeads struct{ H, HV, DK, DV int }

func (h KDAHeads) check(op string, t DType) error {
	switch {
	case h.H < 1 || h.HV < 1 || h.HV%h.H != 0:
		return fmt.Errorf("%s: value heads must be a multiple of the query heads, both 1 or more, got HV %d and H %d", op, h.HV, h.H)
	case h.DK < 1 || h.DV < 1:
		return fmt.Errorf("%s: K and V must be 1 or more, got K %d and V %d", op, h.DK, h.DV)
	case h.DK > mostKDADim || h.DV > mostKDADim:
		return unsupported(op, "K %d and V %d: kernels exist up to %d", h.DK, h.DV, mostKDADim)
	case h.HV > math.MaxUint16:
		return unsupported(op, "%d heads: kernels exist for up to %d", h.HV, math.MaxUint16)
	case t != BF16 && t != F16 && t != F32:
		return unsupported(op, "%v", t)
	}
	return nil
}

func (h KDAHeads) scale(given float32) float32 {
	if given == 0 {
		return float32(1 / math.Sqrt(float64(h.DK)))
	}
	return given
}

// given refuses a call that lacks an operand.
func given(op string, named ...Arg) error {
	var errs []error
	for _, a := range named {
		if a.Value.(Pointer).IsNil() {
			errs = append(errs, fmt.Errorf("%s: %s is required", op, a.Name))
		}
	}
	return errors.Join(errs...)
}

// StepRows says what the N entries of a launch of single tokens are: entry i is row Rows[i] (nil: i) of the operands and has
// its state in slot Slots[i] (nil: i). A negative row is nothing; a negative slot gives zeros and touches no state; slot |
// 1<<30 starts from a state of zeros. No two entries may share a slot. Settled says that no launch that may still run writes
// the states, Rows or Slots: then they are read before the launch in front has ended.
type StepRows struct {
	N           int
	Rows, Slots Pointer // int32 [N], optional
	Settled     bool
}

func (s StepRows) check(op string) error { return fits(op, "rows", s.N) }

// fits refuses a number of rows or sequences that a dimension of a grid does not hold.
func fits(op, what string, n int) error {
	switch {
	case n < 0:
		return fmt.Errorf("%s: a launch has 0 %s or more, got %d", op, what, n)
	case n > math.MaxUint16:
		return unsupported(op, "%d %s: kernels exist for up to %d", n, what, math.MaxUint16)
	}
	return nil
}

// KDADecode launches the core of KDA for one token a row, on a pool of states [slots,HV,K,V] in f32, each read and written
// once:
//
//	S <- diag(exp g) S,  delta = beta (v - S' k),  S <- S + k delta',  o = Scale S' q
//
// q and k [R,H,K], normalised here where Normalize is set; v and o [R,HV,V]; g [R,HV,K] and beta [R,HV] in f32. Factor above
// 0: beta is the logit of Factor sigmoid(beta).
type KDADecode struct {
	Type DType
	KDAHeads
	StepRows
	Scale, Factor float32 // Scale 0: K^-1/2
	Normalize     bool
	Eps           float32 // of the norms
	Out, State    Pointer
	Q, K, V       Pointer
	G, Beta       Pointer
}

// Launch queues the kernel.
func (d KDADecode) Launch(q Queue) error {
	const op = "kda decode"
	if err := errors.Join(d.KDAHeads.check(op, d.Type), d.StepRows.check(op)); err != nil || d.N == 0 {
		return err
	}
	if err := given(op, Arg{"out", d.Out}, Arg{"state", d.State}, Arg{"q", d.Q}, Arg{"k", d.K}, Arg{"v", d.V}, Arg{"g", d.G}, Arg{"beta", d.Beta}); err != nil {
		return err
	}
	if d.whole(q.Target()) {
		return d.launchHeads(q)
	}
	return d.launchColumns(q)
}

// manyHeads is from how many heads of all rows on their states go through shared memory: with fewer, the latency counts.
const manyHeads = 256

func (d KDADecode) whole(gpu Target) bool {
	return gpu.Compute >= 90 && d.N*d.HV >= manyHeads && d.DV%4 == 0 && d.State.Addr%16 == 0
}

func (d KDADecode) eps() float32 {
	if d.Normalize {
		return d.Eps
	}
	return -1
}

// launchColumns gives a block 32 columns of the state of a head, or 8 where rows of it are not whole packs.
func (d KDADecode) launchColumns(q Queue) error {
	variant, columns := "4_8", 32
	switch {
	case d.DV%4 != 0 || d.State.Addr%16 != 0:
		variant, columns = "1_8", 8
	case d.DK <= 128:
		variant = "4_4"
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_decode_step_%v_%s", d.Type, variant), Grid: [3]int{ceilDiv(d.DV, columns), d.HV, d.N}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"out", d.Out}, {"state", d.State}, {"q", d.Q}, {"k", d.K}, {"v", d.V}, {"g", d.G}, {"beta", d.Beta}, {"rows", d.Rows}, {"slots", d.Slots},
		{"h", int32(d.H)}, {"hv", int32(d.HV)}, {"dk", int32(d.DK)}, {"dv", int32(d.DV)}, {"scale", d.scale(d.Scale)}, {"eps", d.eps()}, {"factor", d.Factor}, {"settled", bit(d.Settled)}}})
}

// launchHeads gives a block a tile of a head's columns in shared memory.
func (d KDADecode) launchHeads(q Queue) error {
	columns := d.tile(32 << 10)
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_decode_head_%v", d.Type), Grid: [3]int{d.HV * ceilDiv(d.DV, columns), d.N, 1}, Block: 256, Shared: 4 * d.DK * columns, Overlap: q.Target().Hopper(), Args: []Arg{
		{"states", d.states(q.Target(), d.State, columns)}, {"out", d.Out}, {"state", d.State}, {"q", d.Q}, {"k", d.K}, {"v", d.V}, {"g", d.G}, {"beta", d.Beta}, {"rows", d.Rows}, {"slots", d.Slots},
		{"h", int32(d.H)}, {"hv", int32(d.HV)}, {"dk", int32(d.DK)}, {"dv", int32(d.DV)}, {"columns", int32(columns)}, {"scale", d.scale(d.Scale)}, {"eps", d.eps()}, {"factor", d.Factor}, {"settled", bit(d.Settled)}}})
}

// tile is how many columns of a head's state fit in so much memory, in whole packs.
func (h KDAHeads) tile(bytes int) int { return min((h.DV+3)/4*4, 128, bytes/4/h.DK/4*4) }

// states are the states of a pool for the copy engine, where there is one; it has as many as the slots that the kernel meets
// say.
func (h KDAHeads) states(gpu Target, pool Pointer, columns int) any {
	if gpu.Compute < 90 {
		return nil
	}
	return TensorMap{Base: pool, Type: F32, Dims: []uint64{uint64(h.DV), 1 << 31}, Strides: []uint64{uint64(4 * h.DV)}, Box: []uint32{uint32(columns), uint32(h.DK)}}
}

// KDAFused launches a KDA layer for one token a row, from its projections to its gated norm, with H = HV: XQ, XK and Z (the
// pre-activation of the decay) [R,H,K], XV and Gate [R,H,V], Beta [R,H] logits. WQ, WK, WV [channels,Width] in f32 are the
// taps of the short convolutions; their pools ConvQ, ConvK, ConvV [slots,channels,Width-1] and State [slots,H,K,V], all f32,
// move on in place. ALog [H] and DtBias [H K] in f32 with Bound make the decay as ops.KDAGate does, Factor sigmoid(beta) the
// write strength; q and k are normalised with Eps; Out [R,H,V] is the norm of the core's output with weight Norm [V] in f32
// and NormEps, times sigmoid(gate).
type KDAFused struct {
	Type DType
	KDAHeads
	StepRows
	Width                int
	Scale, Factor, Bound float32
	Eps, NormEps         float32
	Out, State           Pointer
	ConvQ, ConvK, ConvV  Pointer
	XQ, XK, XV           Pointer
	WQ, WK, WV           Pointer
	Z, ALog, DtBias      Pointer
	Beta, Gate, Norm     Pointer
}

// Launch queues the kernel.
func (d KDAFused) Launch(q Queue) error {
	const op = "kda fused decode"
	if err := errors.Join(d.KDAHeads.check(op, d.Type), d.StepRows.check(op)); err != nil || d.N == 0 {
		return err
	}
	if err := given(op, Arg{"out", d.Out}, Arg{"state", d.State}, Arg{"conv q", d.ConvQ}, Arg{"conv k", d.ConvK}, Arg{"conv v", d.ConvV}, Arg{"xq", d.XQ}, Arg{"xk", d.XK}, Arg{"xv", d.XV},
		Arg{"wq", d.WQ}, Arg{"wk", d.WK}, Arg{"wv", d.WV}, Arg{"z", d.Z}, Arg{"a_log", d.ALog}, Arg{"dt_bias", d.DtBias}, Arg{"beta", d.Beta}, Arg{"gate", d.Gate}, Arg{"norm", d.Norm}); err != nil {
		return err
	}
	switch {
	case d.Width < 2 || d.Bound > 0 || d.Factor <= 0:
		return fmt.Errorf("%s: a width of 2 or more, a bound of 0 or below and a factor above 0 are required, got %d, %g and %g", op, d.Width, d.Bound, d.Factor)
	case d.H != d.HV:
		return unsupported(op, "%d query heads for %d value heads", d.H, d.HV)
	case d.DV%4 != 0 || d.State.Addr%16 != 0:
		return unsupported(op, "V %d: rows of the state must be whole 16 bytes", d.DV)
	}
	columns := d.tile(64 << 10)
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_decode_fused_%v", d.Type), Grid: [3]int{d.H, d.N, 1}, Block: 256, Shared: 4 * d.DK * columns, Overlap: q.Target().Hopper(), Args: []Arg{
		{"states", d.states(q.Target(), d.State, columns)}, {"out", d.Out}, {"state", d.State}, {"conv_q", d.ConvQ}, {"conv_k", d.ConvK}, {"conv_v", d.ConvV}, {"xq", d.XQ}, {"xk", d.XK}, {"xv", d.XV},
		{"wq", d.WQ}, {"wk", d.WK}, {"wv", d.WV}, {"z", d.Z}, {"a_log", d.ALog}, {"dt_bias", d.DtBias}, {"beta", d.Beta}, {"gate", d.Gate}, {"norm", d.Norm},
		{"rows", d.Rows}, {"slots", d.Slots}, {"h", int32(d.H)}, {"dk", int32(d.DK)}, {"dv", int32(d.DV)}, {"columns", int32(columns)}, {"width", int32(d.Width)},
		{"bound", d.Bound}, {"factor", d.Factor}, {"scale", d.scale(d.Scale)}, {"eps", d.Eps}, {"norm_eps", d.NormEps}, {"settled", bit(d.Settled)}}})
}
