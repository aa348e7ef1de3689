package cuda

import "fmt"

// Pairing names which elements of a head rotate together.
type Pairing uint8

// The two pairings: Half rotates (x[i], x[i+rot/2]), Interleaved (x[2i], x[2i+1]).
const (
	Half Pairing = iota
	Interleaved
)

func (p Pairing) String() string {
	if p == Half {
		return "half"
	}
	return "interleaved"
}

// Rotary launches the rotation of q [T,Hq,D] and k [T,Hk,D] by their positions, in place or not. With QWeight and KWeight
// the heads pass an RMSNorm first. With Slots, k, and V [T,Hk,D] where given, are also written to the pools [slots,Hk,D] at
// Slots[t] = page*page_size + offset, nowhere when negative; then KOut may be nil. With KSteps, and VSteps where V is given,
// the pools hold E4M3 codes. Strides are of tokens, in elements; zero means packed. Positions, slots, the table, the weights of
// the norms and the steps are read before the launch in front has ended, unless Computed.
type Rotary struct {
	Type              DType
	Pairing           Pairing
	T, Hq, Hk, D, Rot int
	MaxPositions      int
	Q, K, QOut, KOut  Pointer
	Cos, Sin          Pointer // f32 [MaxPositions, Rot/2]
	Positions         Pointer // int32 [T]
	QWeight, KWeight  Pointer // optional, [D]
	Eps               float32
	V, KPool, VPool   Pointer // optional, with Slots
	KSteps, VSteps    Pointer // optional, f32 [Hk]
	Slots             Pointer // int32 [T]
	QStride, KStride  int64
	VStride           int64
	QOutStride        int64
	KOutStride        int64
	Computed          bool // the launch in front may write one of these
}

// rotaryFewTokens leave multiprocessors idle: a token's items are spread over several blocks, one a thread.
const rotaryFewTokens = 64

// Launch queues the kernel.
func (r Rotary) Launch(q Queue) error {
	const op = "rotary"
	if r.T < 0 || r.Hq < 0 || r.Hk < 0 || r.Hq+r.Hk < 1 || r.D < 1 || r.Rot > r.D || r.Rot < 2 || r.Rot%2 != 0 || r.MaxPositions < 1 {
		return fmt.Errorf("%s: T >= 0, heads >= 1, an even rotated width from 2 to D and a table are required, got T %d, Hq %d, Hk %d, D %d, rot %d, table of %d",
			op, r.T, r.Hq, r.Hk, r.D, r.Rot, r.MaxPositions)
	}
	lanes := r.Rot / 16
	whole := r.D%8 == 0 && r.Rot%16 == 0
	if !r.Slots.IsNil() && (r.KPool.IsNil() || r.V.IsNil() != r.VPool.IsNil()) {
		return fmt.Errorf("%s: slots need the pool of k, and v goes with its pool, got v %v, k pool %v, v pool %v", op, r.V, r.KPool, r.VPool)
	}
	codes := !r.KSteps.IsNil()
	if codes != !r.VSteps.IsNil() && !r.V.IsNil() {
		return fmt.Errorf("%s: the pools of k and v hold codes both or neither, got k steps %v, v steps %v", op, r.KSteps, r.VSteps)
	}
	if r.Slots.IsNil() && r.Hk > 0 && r.KOut.IsNil() {
		return fmt.Errorf("%s: k has neither an output nor a slot in the cache", op)
	}
	strides := []struct {
		name   string
		stride *int64
		packed int
	}{{"q", &r.QStride, r.Hq * r.D}, {"k", &r.KStride, r.Hk * r.D}, {"v", &r.VStride, r.Hk * r.D}, {"q out", &r.QOutStride, r.Hq * r.D}, {"k out", &r.KOutStride, r.Hk * r.D}}
	for _, s := range strides {
		if *s.stride == 0 {
			*s.stride = int64(s.packed)
		}
		if *s.stride < int64(s.packed) {
			return fmt.Errorf("%s: token stride %d of %s: at least %d elements are required", op, *s.stride, s.name, s.packed)
		}
		whole = whole && *s.stride*int64(r.Type.Size())%16 == 0
	}
	for _, p := range []Pointer{r.Q, r.K, r.QOut, r.KOut, r.Cos, r.Sin, r.V, r.KPool, r.VPool, r.QWeight, r.KWeight} {
		whole = whole && p.Addr%16 == 0
	}
	if !r.QWeight.IsNil() || !r.KWeight.IsNil() {
		if r.QWeight.IsNil() || r.KWeight.IsNil() {
			return fmt.Errorf("%s: the head norms of q and k go together, got q %v, k %v", op, r.QWeight, r.KWeight)
		}
		if !whole || r.Rot != r.D || lanes > 32 || lanes&(lanes-1) != 0 {
			return unsupported(op, "head norm with D %d, rot %d: a kernel exists for rot = D = 16 * (1, 2, 4, 8, 16 or 32), rows aligned to 16 bytes", r.D, r.Rot)
		}
	}
	if r.T == 0 {
		return nil
	}
	kernel := fmt.Sprintf("rotary_%v_%v", r.Pairing, r.Type)
	if codes {
		kernel += "_e4m3"
	}
	early := !r.Computed && q.Target().Hopper()
	stream := int64(r.T)*int64((r.Hq+r.Hk)*r.D*r.Type.Size()) > 32<<20
	parts, block := 1, min(256, ceilDiv((r.Hq+r.Hk)*r.Rot/2, 32)*32)
	switch few := r.T <= rotaryFewTokens && r.Rot == r.D; {
	case !whole:
		kernel += "_any"
	default:
		heads := r.Hq + r.Hk
		if few {
			kernel += "_few"
		} else {
			heads = ceilDiv(heads, 2) // two a thread
		}
		items := ceilDiv(heads*lanes, 32) * 32
		if !r.Slots.IsNil() && !r.V.IsNil() {
			items += ceilDiv(r.Hk*r.D*r.Type.Size(), 32) // two packs of v a thread
		}
		if few {
			parts = ceilDiv(items, 160)
		}
		block = min(256, ceilDiv(ceilDiv(items, parts), 32)*32)
	}
	return q.Launch(Launch{Kernel: kernel, Grid: [3]int{r.T, parts, 1}, Block: block, Overlap: q.Target().Hopper(), Args: []Arg{
		{"q_out", r.QOut}, {"k_out", r.KOut}, {"q", r.Q}, {"k", r.K}, {"q_weight", r.QWeight}, {"k_weight", r.KWeight}, {"cos", r.Cos}, {"sin", r.Sin},
		{"positions", r.Positions}, {"k_pool", r.KPool}, {"v_pool", r.VPool}, {"v", r.V}, {"slots", r.Slots}, {"k_steps", r.KSteps}, {"v_steps", r.VSteps},
		{"q_stride", r.QStride}, {"k_stride", r.KStride}, {"v_stride", r.VStride}, {"q_out_stride", r.QOutStride}, {"k_out_stride", r.KOutStride},
		{"hq", int32(r.Hq)}, {"hk", int32(r.Hk)}, {"d", int32(r.D)}, {"rot", int32(r.Rot)}, {"max_positions", int32(r.MaxPositions)}, {"early", bit(early)}, {"stream", bit(stream)}, {"eps", r.Eps}}})
}
