package cuda

import "fmt"

// Moves launches copies of parts of rows: for each part, row r of To, from its first column on, becomes row r/Divide of
// From. Strides and N are elements.
type Moves struct {
	Type  DType
	Rows  int
	Parts []MovePart // 1 to 4
}

// MovePart is one part of Moves.
type MovePart struct {
	To, From             Pointer
	ToStride, FromStride int64
	N, Divide            int // Divide 0: 1
}

// Launch queues the kernel.
func (m Moves) Launch(q Queue) error {
	if m.Rows < 0 || len(m.Parts) < 1 || len(m.Parts) > 4 {
		return fmt.Errorf("moves: rows >= 0 and 1 to 4 parts are required, got rows %d, %d parts", m.Rows, len(m.Parts))
	}
	size, unit := int64(m.Type.Size()), int64(16)
	for _, p := range m.Parts {
		if p.N < 0 || p.Divide < 0 || p.ToStride < int64(p.N) || p.FromStride < int64(p.N) {
			return fmt.Errorf("moves: a part of %d columns, 0 or more, needs strides of as many, got to %d, from %d, divide %d", p.N, p.ToStride, p.FromStride, p.Divide)
		}
		for _, v := range []int64{int64(p.To.Addr), int64(p.From.Addr), p.ToStride * size, p.FromStride * size, int64(p.N) * size} {
			if v%16 != 0 {
				unit = size
			}
		}
	}
	if m.Rows == 0 {
		return nil
	}
	args := make([]Arg, 0, 26)
	for i := range 4 {
		p := MovePart{Divide: 1}
		if i < len(m.Parts) {
			p = m.Parts[i]
			p.Divide = max(p.Divide, 1)
		}
		args = append(args, Arg{"to", p.To}, Arg{"from", p.From}, Arg{"to_stride", p.ToStride * size / unit}, Arg{"from_stride", p.FromStride * size / unit},
			Arg{"n", int32(int64(p.N) * size / unit)}, Arg{"divide", int32(p.Divide)})
	}
	args = append(args, Arg{"rows", int32(m.Rows)}, Arg{"parts", int32(len(m.Parts))})
	return q.Launch(Launch{Kernel: fmt.Sprintf("latent_move_%d", unit), Grid: [3]int{ceilDiv(m.Rows, 4), len(m.Parts), 1}, Block: 128, Overlap: q.Target().Hopper(), Args: args})
}

// LatentProduct launches one of the two products of absorbed latent attention for every head, w [H,N+V,R]:
//
//	Query: y[t,h] = [Wk_h' x[t,h,:N] | x[t,h,N:]], x [T,H,N+P], y [T,H,R+P]
//	Value: y[t,h] = Wv_h x[t,h], x [T,H,R], y [T,H,V]
//
// with Wk_h the first N rows of head h and Wv_h the last V. W is read before the launch in front has ended, unless it is
// Computed.
type LatentProduct struct {
	Type             DType
	Value            bool
	T, H, N, P, V, R int
	Y, X, W          Pointer
	Computed         bool // the launch in front may write W
}

// Launch queues the kernel.
func (l LatentProduct) Launch(q Queue) error {
	op, w, columns, inner, tail := "latent_query", l.W, l.R, l.N, l.P
	if l.Value {
		op, w, columns, inner, tail = "latent_value", l.W.At(int64(l.N)*int64(l.R)*int64(l.Type.Size())), l.V, l.R, 0
	}
	if l.T < 0 || l.H < 1 || l.N < 1 || l.P < 0 || l.V < 1 || l.R < 1 {
		return fmt.Errorf("%s: T, P >= 0 and H, N, V, R >= 1 are required, got T %d, H %d, N %d, P %d, V %d, R %d", op, l.T, l.H, l.N, l.P, l.V, l.R)
	}
	if l.H > 65535 {
		return unsupported(op, "%d heads: the grid holds 65535", l.H)
	}
	if l.T == 0 {
		return nil
	}
	rows, block, kind := 16, 256, "any"
	if l.Type != F32 && (l.N|l.P|l.V|l.R)%8 == 0 && w.Addr%16 == 0 && l.X.Addr%16 == 0 && l.Y.Addr%16 == 0 {
		if l.T > 16 {
			rows = 64
		}
		block, kind = 128, fmt.Sprint(rows)
	}
	if ceilDiv(l.T, rows) > 65535 {
		return unsupported(op, "%d tokens: the grid holds %d", l.T, 65535*rows)
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("%s_%v_%s", op, l.Type, kind), Grid: [3]int{ceilDiv(columns, 64), l.H, ceilDiv(l.T, rows)}, Block: block, Overlap: q.Target().Hopper() && !l.Computed, Args: []Arg{
		{"y", l.Y}, {"x", l.X}, {"w", w}, {"head", int64(l.N+l.V) * int64(l.R)}, {"tokens", int32(l.T)}, {"heads", int32(l.H)}, {"columns", int32(columns)}, {"inner", int32(inner)},
		{"x_row", int32(inner + tail)}, {"y_row", int32(columns + tail)}, {"tail", int32(tail)}, {"pad", int32(0)}}})
}

// LatentAppend launches the write of T tokens' latents into their pages: of row t of X [T,R+P] the first R numbers pass the
// RMSNorm and the P behind them, the part of a key that heads share, are turned by the token's position when there is a table;
// both go to slot Slots[t] of KPool [slots,R+P], the latent also to VPool [slots,R]. A negative slot writes nothing.
type LatentAppend struct {
	Type                DType
	T, R, P             int
	KPool, VPool, X, W  Pointer
	Eps                 float32
	Slots               Pointer // int32 [T]
	Cos, Sin, Positions Pointer // optional: f32 [MaxPositions,P/2], int32 [T]
	MaxPositions        int
	Pairing             Pairing
}

// Launch queues the kernel.
func (l LatentAppend) Launch(q Queue) error {
	turned := !l.Cos.IsNil()
	if l.T < 0 || l.R < 1 || l.P < 0 || turned && (l.P%2 != 0 || l.MaxPositions < 1 || l.Sin.IsNil() || l.Positions.IsNil()) {
		return fmt.Errorf("latent append: T, P >= 0, R >= 1 and, to turn them, an even P with a table and positions are required, got T %d, R %d, P %d, a table of %d positions", l.T, l.R, l.P, l.MaxPositions)
	}
	if l.T == 0 {
		return nil
	}
	pairing := int32(2)
	if turned {
		pairing = map[Pairing]int32{Interleaved: 0, Half: 1}[l.Pairing]
	}
	return q.Launch(Launch{Kernel: "latent_append_" + l.Type.String(), Grid: [3]int{l.T, 1, 1}, Block: min(256, (l.R+31)/32*32), Overlap: q.Target().Hopper(), Args: []Arg{
		{"k_pool", l.KPool}, {"v_pool", l.VPool}, {"x", l.X}, {"w", l.W}, {"cos", l.Cos}, {"sin", l.Sin}, {"positions", l.Positions}, {"slots", l.Slots},
		{"r", int32(l.R)}, {"p", int32(l.P)}, {"pairing", pairing}, {"max_positions", int32(l.MaxPositions)}, {"eps", l.Eps}, {"pad", int32(0)}}})
}
