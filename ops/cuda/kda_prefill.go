package cuda

import (
	"errors"
	"fmt"
)

// KDAChunk is the number of tokens of a chunk of the prefill kernels.
const KDAChunk = 64

// KDASequences are N sequences in packed tokens, as the table of four int32 each that the host makes: first token, number of
// tokens (-1: not for this launch), number of the state (-1: outputs are 0 and no state is touched; | 1<<30: from zeros), and
// number of the first chunk.
type KDASequences struct {
	N     int
	Table Pointer // int32 [N,4]
}

func (s KDASequences) check(op string) error { return fits(op, "sequences", s.N) }

// KDATokens are the operands of KDA over packed tokens: q and k [T,H,K], v and o [T,HV,V], g [T,HV,K] and beta [T,HV] in f32.
// A sequence starts from its state of S0 [slots,HV,K,V] in f32 (nil: zeros) and leaves the last one in Final, which may be S0.
type KDATokens struct {
	Type DType
	KDAHeads
	KDASequences
	Scale      float32 // 0: K^-1/2
	Out, Final Pointer
	Q, K, V    Pointer
	G, Beta    Pointer
	S0         Pointer
}

func (d KDATokens) check(op string) error {
	if err := errors.Join(d.KDAHeads.check(op, d.Type), d.KDASequences.check(op)); err != nil {
		return err
	}
	return given(op, Arg{"out", d.Out}, Arg{"final", d.Final}, Arg{"q", d.Q}, Arg{"k", d.K}, Arg{"v", d.V}, Arg{"g", d.G}, Arg{"beta", d.Beta}, Arg{"sequences", d.Table})
}

// KDARecurrent launches KDA token by token in f32: exact for every type and head dim.
type KDARecurrent struct{ KDATokens }

// Launch queues the kernel.
func (d KDARecurrent) Launch(q Queue) error {
	const op = "kda recurrent"
	if err := d.check(op); err != nil || d.N == 0 {
		return err
	}
	variant, columns := "4_8", 32
	switch {
	case d.DV%4 == 0 && d.DK <= 64:
		variant = "4_4"
	case d.DV%4 == 0 && d.DK <= 128:
	case d.DV%2 == 0 && d.DK > 128:
		variant, columns = "2_16", 16
	case d.DK <= 64:
		variant, columns = "1_4", 8
	default:
		variant, columns = "1_16", 8
	}
	return q.Launch(Launch{Kernel: fmt.Sprintf("kda_recurrent_%v_%s", d.Type, variant), Grid: [3]int{ceilDiv(d.DV, columns), d.HV, d.N}, Block: 128, Overlap: q.Target().Hopper(), Args: []Arg{
		{"out", d.Out}, {"final", d.Final}, {"q", d.Q}, {"k", d.K}, {"v", d.V}, {"g", d.G}, {"beta", d.Beta}, {"s0", d.S0}, {"sequences", d.Table},
		{"h", int32(d.H)}, {"hv", int32(d.HV)}, {"dk", int32(d.DK)}, {"dv", int32(d.DV)}, {"scale", d.scale(d.Scale)}}})
}

// KDAPrefill launches KDA in chunks on the tensor cores, in 16-bit types. ChunkTable has two int32 for each of Chunks chunks,
// sequence by sequence: first token and number of tokens, 0 where there is no chunk. The chunks go in sections, whose
// intermediate values take Scratch.
type KDAPrefill struct {
	KDATokens
	Chunks     int
	ChunkTable Pointer // int32 [Chunks,2]
	Scratch    Pointer // ScratchBytes, aligned to 16 bytes
}

// kdaShape is the key width of the kernels for K, the bytes of an item of the scratch, and the shared memory of both kernels;
// stages is how many items the second one holds.
type kdaShape struct {
	width                           int
	item                            int64
	chunkShared, scanShared, stages int
}

func (d KDATokens) shape(gpu Target) (kdaShape, error) {
	const op = "kda prefill"
	if d.Type != BF16 && d.Type != F16 {
		return kdaShape{}, unsupported(op, "%v: kernels exist for bf16 and f16", d.Type)
	}
	if d.DK < 16 || d.DV < 16 {
		return kdaShape{}, unsupported(op, "K %d and V %d: kernels exist from 16 on", d.DK, d.DV)
	}
	s := kdaShape{width: 64}
	for s.width < d.DK {
		s.width *= 2
	}
	kp := s.width
	tile := 2 * KDAChunk * 32
	shared := 2 * (3*KDAChunk*kp + KDAChunk*KDAChunk + 2*kp)
	handover := 2 * (kp/16 + KDAChunk/16) * 32 * 16
	s.item = int64(shared + ceilDiv(d.DV, 32)*tile)
	s.chunkShared = 8*KDAChunk*(kp+8) + 4*(KDAChunk*68+32*36+13*kp+2*KDAChunk) + 6*kp
	for s.stages = 2; s.stages > 0; s.stages-- {
		if s.scanShared = s.stages*(shared+tile) + 48 + handover; s.scanShared <= gpu.MaxShared {
			break
		}
	}
	if s.stages == 0 || s.chunkShared > gpu.MaxShared {
		return s, unsupported(op, "K %d needs %d bytes of shared memory, %s gives a block %d", d.DK, max(s.chunkShared, shared+tile+48+handover), gpu.Name, gpu.MaxShared)
	}
	return s, nil
}

// section is how many chunks the scratch holds: about two blocks of the first kernel for every place on the GPU.
func (d KDAPrefill) section(gpu Target) int { return max(1, 4*gpu.SMs/d.HV) }

// ScratchBytes is the scratch that Launch needs, 0 where there is no kernel.
func (d KDAPrefill) ScratchBytes(gpu Target) int64 {
	s, err := d.shape(gpu)
	if err != nil {
		return 0
	}
	return s.item * int64(d.HV) * int64(min(d.Chunks, d.section(gpu)))
}

// Launch queues the kernels.
func (d KDAPrefill) Launch(q Queue) error {
	const op = "kda prefill"
	if err := d.check(op); err != nil || d.N == 0 {
		return err
	}
	s, err := d.shape(q.Target())
	if err != nil {
		return err
	}
	if err := errors.Join(given(op, Arg{"chunks", d.ChunkTable}, Arg{"scratch", d.Scratch}), aligned16(op, Arg{"scratch", d.Scratch}, Arg{"q", d.Q}, Arg{"k", d.K}, Arg{"v", d.V})); err != nil {
		return err
	}
	overlap := q.Target().Hopper()
	sizes := []Arg{{"dk", int32(d.DK)}, {"dv", int32(d.DV)}}
	for first := 0; first < max(1, d.Chunks); first += d.section(q.Target()) {
		n := min(d.section(q.Target()), d.Chunks-first)
		if n > 0 {
			if err := q.Launch(Launch{Kernel: fmt.Sprintf("kda_prefill_chunk_%v_%d", d.Type, s.width), Grid: [3]int{n, d.HV, 1}, Block: 256, Shared: s.chunkShared, Overlap: overlap, Args: append([]Arg{
				{"items", d.Scratch}, {"q", d.Q}, {"k", d.K}, {"v", d.V}, {"g", d.G}, {"beta", d.Beta}, {"chunks", d.ChunkTable}, {"first", int32(first)}, {"h", int32(d.H)}, {"hv", int32(d.HV)}},
				append(sizes, Arg{"scale", d.scale(d.Scale)})...)}); err != nil {
				return err
			}
		}
		if err := q.Launch(Launch{Kernel: fmt.Sprintf("kda_prefill_scan_%v_%d", d.Type, s.width), Grid: [3]int{ceilDiv(d.DV, 32), d.HV, d.N}, Block: 128, Shared: s.scanShared, Overlap: overlap, Args: append([]Arg{
			{"out", d.Out}, {"final", d.Final}, {"s0", d.S0}, {"items", d.Scratch}, {"sequences", d.Table}, {"chunks", d.ChunkTable}, {"from", int32(first)}, {"to", int32(first + max(n, 0))}, {"hv", int32(d.HV)}},
			append(sizes, Arg{"stages", int32(s.stages)})...)}); err != nil {
			return err
		}
	}
	return nil
}
