// The operands of the KDA core and what its forms share.

package native

import "math"

// KDA holds the operands of Kimi Delta Attention. Tokens are packed over the
// sequences; value head hv reads the query and key of head hv/(HV/H). For each
// sequence and value head, from S = S0 (a K x V matrix),
//
//	S <- diag(exp g_t) S
//	S <- S + k_t (beta_t (v_t - S' k_t))'
//	o_t = Scale S' q_t
//
// so the decay acts on the key axis before the read, and the output reads the
// updated state. q and k come normalised, g activated (natural logarithm,
// never above 0), beta activated, in (0,1), or in (0,2) for negative eigenvalues.
type KDA[T Float] struct {
	Q, K          []T     // [T,H,K]
	V             []T     // [T,HV,V]
	G             []T     // [T,HV,K]
	Beta          []T     // [T,HV]
	S0            []T     // [N,HV,K,V], or [N,HV,V,K] if VFirst; nil: zeros
	Slots         []int32 // [N] which state of S0 and of the final states a sequence has; negative: skip it; nil: its own number
	Cu            []int32 // [N+1] where the sequences begin and end; nil: Seqs of equal length
	Seqs, Tokens  int
	H, HV, DK, DV int
	Scale         float64 // 0: K^-1/2
	VFirst        bool    // layout of S0 and of the final state
	Chunk         int     // tokens of a chunk, a multiple of 16; 0: 64
}

// KDAGrads are the gradients of the operands; S0 may be nil where not wanted.
type KDAGrads[T Float] struct{ Q, K, V, G, Beta, S0 []T }

func (a *KDA[T]) seg() segments { return newSegments(a.Cu, a.Seqs, a.Tokens) }

func (a *KDA[T]) scale() T {
	if a.Scale == 0 {
		return T(1 / math.Sqrt(float64(a.DK)))
	}
	return T(a.Scale)
}

// kdaChunk is the default length of a chunk.
const kdaChunk = 64

func (a *KDA[T]) chunk() int {
	if a.Chunk == 0 {
		return kdaChunk
	}
	return a.Chunk
}

// KDACheckpoints returns how many states [HV,K,V] a forward pass may keep for
// its gradient: one for each chunk, and a chunk ends with its sequence.
func KDACheckpoints(seqs, tokens, chunk int) int {
	if chunk == 0 {
		chunk = kdaChunk
	}
	return tokens/chunk + seqs
}

// firstCheckpoint returns where the checkpoints of sequence s begin: at most
// one more than its first token is chunks away, for every sequence before it.
func (a *KDA[T]) firstCheckpoint(s, lo int) int { return lo/a.chunk() + s }

// checkpoint returns state number i [K,V] of a value head.
func (a *KDA[T]) checkpoint(all []T, i, hv int) []T {
	n := a.DK * a.DV
	return all[(i*a.HV+hv)*n:][:n]
}

// slot returns the number of the state of a sequence, negative where it is to
// be skipped.
func (a *KDA[T]) slot(seq int) int {
	if a.Slots == nil {
		return seq
	}
	return int(a.Slots[seq])
}

// skip writes zeros for columns [v0,v0+n) of a skipped sequence.
func (a *KDA[T]) skip(o []T, lo, hi, hv, v0, n int) {
	for t := lo; t < hi; t++ {
		clear(o[(t*a.HV+hv)*a.DV+v0:][:n])
	}
}

// loadState copies columns [v0,v0+n) of the state of (sequence, head) to
// s [K,n]; nil: zeros.
func (a *KDA[T]) loadState(s, from []T, seq, hv, v0, n int) {
	if from == nil {
		clear(s[:a.DK*n])
		return
	}
	from = from[(a.slot(seq)*a.HV+hv)*a.DK*a.DV:][:a.DK*a.DV]
	for d := range a.DK {
		if !a.VFirst {
			copy(s[d*n:][:n], from[d*a.DV+v0:])
			continue
		}
		for v := range n {
			s[d*n+v] = from[(v0+v)*a.DK+d]
		}
	}
}

// storeState is loadState the other way; nil: nothing.
func (a *KDA[T]) storeState(to, s []T, seq, hv, v0, n int) {
	if to == nil {
		return
	}
	to = to[(a.slot(seq)*a.HV+hv)*a.DK*a.DV:][:a.DK*a.DV]
	for d := range a.DK {
		if !a.VFirst {
			copy(to[d*a.DV+v0:][:n], s[d*n:])
			continue
		}
		for v := range n {
			to[(v0+v)*a.DK+d] = s[d*n+v]
		}
	}
}
