package cuda

import (
	"fmt"
	"math"
)

// ShortConv launches the depthwise causal convolution with SiLU over packed tokens x [T,C] of sequences:
//
//	a_t = sum_j w[c,j] x[t-W+1+j, c],  y_t = a_t sigmoid(a_t)
//
// with W [C,Width] in f32. Samples before a sequence are those of its state in State [slots,C,Width-1] in f32, oldest first,
// or 0 without. Owner [T] names the sequence of each token, -1 for 0 in y. With Next, which may be State, the last samples of
// every sequence go there.
type ShortConv struct {
	Type        DType
	T, C, Width int
	KDASequences
	Y, X, W     Pointer
	State, Next Pointer // optional
	Owner       Pointer // int32 [T]
}

// Launch queues one kernel, or two with Next.
func (s ShortConv) Launch(q Queue) error {
	const op = "short_conv"
	if s.T < 0 || s.C < 1 || s.Width < 2 {
		return fmt.Errorf("%s: T >= 0, C >= 1 and a width of 2 or more are required, got T %d, C %d, width %d", op, s.T, s.C, s.Width)
	}
	if s.T > 8*math.MaxUint16 {
		return unsupported(op, "%d tokens: kernels exist for up to %d", s.T, 8*math.MaxUint16)
	}
	if err := s.KDASequences.check(op); err != nil {
		return err
	}
	if err := given(op, Arg{"y", s.Y}, Arg{"x", s.X}, Arg{"w", s.W}, Arg{"sequences", s.Table}, Arg{"owner", s.Owner}); err != nil {
		return err
	}
	overlap := q.Target().Hopper()
	args := []Arg{{"y", s.Y}, {"x", s.X}, {"w", s.W}, {"state", s.State}, {"sequences", s.Table}, {"owner", s.Owner}, {"tokens", int32(s.T)}, {"channels", int32(s.C)}}
	l := Launch{Kernel: fmt.Sprintf("kda_parts_conv_%v", s.Type), Grid: [3]int{ceilDiv(s.C, 256), ceilDiv(s.T, 8), 1}, Block: 256, Overlap: overlap, Args: append(args, Arg{"width", int32(s.Width)})}
	if s.Width == 4 && s.C%4 == 0 && s.W.Addr%16 == 0 && s.X.Addr%16 == 0 && s.Y.Addr%16 == 0 {
		block := min(256, (s.C/4+31)/32*32)
		l = Launch{Kernel: fmt.Sprintf("kda_parts_conv4_%v", s.Type), Grid: [3]int{ceilDiv(s.C/4, block), ceilDiv(s.T, 16), 1}, Block: block, Overlap: overlap, Args: args}
	}
	if s.T > 0 {
		if err := q.Launch(l); err != nil {
			return err
		}
	}
	if s.Next.IsNil() || s.N == 0 {
		return nil
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_parts_keep_%v", s.Type), Grid: [3]int{ceilDiv(s.C, 256), s.N, 1}, Block: 256, Overlap: overlap, Args: []Arg{
		{"next", s.Next}, {"x", s.X}, {"state", s.State}, {"sequences", s.Table}, {"channels", int32(s.C)}, {"width", int32(s.Width)}}})
}

// ShortConvStep launches the convolution for one token a row on a pool of states [slots,C,Width-1] in f32, which moves on.
type ShortConvStep struct {
	Type     DType
	C, Width int
	StepRows
	Y, X, W, Pool Pointer
}

// Launch queues the kernel.
func (s ShortConvStep) Launch(q Queue) error {
	const op = "short_conv step"
	if s.C < 1 || s.Width < 2 {
		return fmt.Errorf("%s: C >= 1 and a width of 2 or more are required, got C %d, width %d", op, s.C, s.Width)
	}
	if err := s.StepRows.check(op); err != nil || s.N == 0 {
		return err
	}
	if err := given(op, Arg{"y", s.Y}, Arg{"x", s.X}, Arg{"w", s.W}, Arg{"pool", s.Pool}, Arg{"slots", s.Slots}); err != nil {
		return err
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_parts_step_%v", s.Type), Grid: [3]int{ceilDiv(s.C, 256), s.N, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", s.Y}, {"x", s.X}, {"w", s.W}, {"pool", s.Pool}, {"rows", s.Rows}, {"slots", s.Slots}, {"channels", int32(s.C)}, {"width", int32(s.Width)}}})
}

// rowsOfWarps is the grid of a kernel in which a warp owns a row.
func rowsOfWarps(op string, rows, d int) ([3]int, error) {
	if rows < 0 || d < 1 {
		return [3]int{}, fmt.Errorf("%s: rows >= 0 and d >= 1 are required, got rows %d, d %d", op, rows, d)
	}
	return [3]int{ceilDiv(rows, 8), 1, 1}, nil
}

// L2Norm launches y = x / sqrt(sum x^2 + eps) over rows of D elements.
type L2Norm struct {
	Type    DType
	Rows, D int
	Eps     float32
	Y, X    Pointer
}

// Launch queues the kernel.
func (n L2Norm) Launch(q Queue) error {
	grid, err := rowsOfWarps("l2norm", n.Rows, n.D)
	if err != nil || n.Rows == 0 {
		return err
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_parts_l2norm_%v", n.Type), Grid: grid, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", n.Y}, {"x", n.X}, {"rows", int32(n.Rows)}, {"d", int32(n.D)}, {"eps", n.Eps}}})
}

// GatedRMSNorm launches y = sigmoid(gate) w x / sqrt(mean x^2 + eps) over rows of D elements, w in f32. With Owner and
// Sequences, as ShortConv has them, only the rows of the tokens of this launch's sequences, Heads rows a token.
type GatedRMSNorm struct {
	Type             DType
	Rows, D, Heads   int
	Eps              float32
	Y, X, Gate, W    Pointer
	Owner, Sequences Pointer // optional
}

// Launch queues the kernel.
func (n GatedRMSNorm) Launch(q Queue) error {
	grid, err := rowsOfWarps("gated_rmsnorm", n.Rows, n.D)
	if err != nil || n.Rows == 0 {
		return err
	}
	if n.Owner.IsNil() != n.Sequences.IsNil() || !n.Owner.IsNil() && n.Heads < 1 {
		return fmt.Errorf("gated_rmsnorm: owner and sequences go together, with 1 head or more, got owner %v, sequences %v, heads %d", n.Owner, n.Sequences, n.Heads)
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_parts_norm_%v", n.Type), Grid: grid, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", n.Y}, {"x", n.X}, {"gate", n.Gate}, {"w", n.W}, {"rows", int32(n.Rows)}, {"d", int32(n.D)}, {"eps", n.Eps}, {"owner", n.Owner}, {"sequences", n.Sequences}, {"heads", int32(n.Heads)}}})
}

// KDAGate launches the log-decay g [T,H,K] in f32 of z [T,H,K], with A = exp(ALog[h]) and x = z + DtBias[h,k] (both f32):
// -A log(1 + exp x) with Bound 0, Bound sigmoid(A x) with one below 0.
type KDAGate struct {
	Type               DType
	T, H, DK           int
	Bound              float32
	G, Z, ALog, DtBias Pointer
}

// Launch queues the kernel.
func (g KDAGate) Launch(q Queue) error {
	const op = "kda_gate"
	if g.T < 0 || g.H < 1 || g.DK < 1 || g.Bound > 0 {
		return fmt.Errorf("%s: T >= 0, H >= 1, K >= 1 and a bound of 0 or below are required, got T %d, H %d, K %d, bound %g", op, g.T, g.H, g.DK, g.Bound)
	}
	n := int64(g.T) * int64(g.H) * int64(g.DK)
	if n == 0 {
		return nil
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_parts_gate_%v", g.Type), Grid: [3]int{int((n + 255) / 256), 1, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"g", g.G}, {"z", g.Z}, {"a_log", g.ALog}, {"dt_bias", g.DtBias}, {"n", n}, {"heads", int32(g.H)}, {"dk", int32(g.DK)}, {"bound", g.Bound}}})
}

// KDABeta launches the write strengths y [N] = Factor sigmoid(b) in f32.
type KDABeta struct {
	Type   DType
	N      int64
	Factor float32
	Y, B   Pointer
}

// Launch queues the kernel.
func (b KDABeta) Launch(q Queue) error {
	if b.N < 0 {
		return fmt.Errorf("kda_beta: N >= 0 is required, got %d", b.N)
	}
	if b.N == 0 {
		return nil
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_parts_beta_%v", b.Type), Grid: [3]int{int((b.N + 255) / 256), 1, 1}, Block: 256, Overlap: q.Target().Hopper(), Args: []Arg{
		{"y", b.Y}, {"b", b.B}, {"n", b.N}, {"factor", b.Factor}}})
}
