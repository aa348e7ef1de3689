// What KDA refuses before it computes, with the position or both sizes.

package native

import (
	"fmt"
	"math"
)

// KDADecayError is a log-decay that is positive or not finite.
type KDADecayError struct {
	Token, Head, Channel int
	Value                float64
}

func (e *KDADecayError) Error() string {
	return fmt.Sprintf("kda: g must be finite and at most 0 (it is the logarithm of a decay): g[%d,%d,%d] is %v", e.Token, e.Head, e.Channel, e.Value)
}

// CheckKDADecay returns a *KDADecayError for the first element of g [T,HV,K]
// that is above 0 or not finite.
func CheckKDADecay[T Float](g []T, heads, dk int) error {
	for i := 0; i < len(g); i += dk {
		row := g[i:][:dk]
		if m, sum := maxOf(row), sumMul(row, row); m <= 0 && sum-sum == 0 {
			continue
		}
		for d, v := range row {
			if !(v <= 0) || math.IsInf(float64(v), -1) {
				return &KDADecayError{Token: i / dk / heads, Head: i / dk % heads, Channel: d, Value: float64(v)}
			}
		}
	}
	return nil
}

// CheckCuSeqlens refuses boundaries that do not cut tokens into sequences: at
// least one number, from 0, never decreasing, up to tokens.
func CheckCuSeqlens[I int32 | int64](cu []I, tokens int) error {
	if len(cu) == 0 {
		return fmt.Errorf("cu_seqlens: want at least one number, got none")
	}
	if cu[0] != 0 {
		return fmt.Errorf("cu_seqlens: must start at 0, cu_seqlens[0] is %d", cu[0])
	}
	for i := 1; i < len(cu); i++ {
		if cu[i] < cu[i-1] {
			return fmt.Errorf("cu_seqlens: must not decrease, cu_seqlens[%d] is %d after %d", i, cu[i], cu[i-1])
		}
	}
	if last := cu[len(cu)-1]; int64(last) != int64(tokens) {
		return fmt.Errorf("cu_seqlens: must end at the number of tokens %d, ends at %d", tokens, last)
	}
	return nil
}

// CheckKDAGate refuses parameters of the decay gate that do not fit heads of dk
// key channels, and a bound that is not 0 (the softplus form) or negative.
// A length of -1 stands for an absent parameter.
func CheckKDAGate(aLog, dtBias, heads, dk int, bound float64) error {
	if aLog >= 0 && aLog != heads {
		return fmt.Errorf("kda gate: A_log has %d values, want one for each of %d heads", aLog, heads)
	}
	if dtBias >= 0 && dtBias != heads*dk {
		return fmt.Errorf("kda gate: dt_bias has %d values, want one for each channel: %d heads x %d = %d", dtBias, heads, dk, heads*dk)
	}
	if !(bound <= 0) || math.IsInf(bound, 0) {
		return fmt.Errorf("kda gate: the lower bound must be negative, or 0 for the softplus form, got %v", bound)
	}
	return nil
}

// KDAStateShape is what a state is for. Two states of the same size can differ
// in it, so it travels with the state.
type KDAStateShape struct {
	HV, DK, DV      int
	VFirst          bool // [HV,V,K] instead of [HV,K,V]
	Channels, Width int  // of the short convolution
}

func (s KDAStateShape) String() string {
	layout := fmt.Sprintf("[%d,%d,%d] (heads, K, V)", s.HV, s.DK, s.DV)
	if s.VFirst {
		layout = fmt.Sprintf("[%d,%d,%d] (heads, V, K)", s.HV, s.DV, s.DK)
	}
	return fmt.Sprintf("%s with a convolution of %d channels, width %d", layout, s.Channels, s.Width)
}

// Check refuses a state of shape got where one of shape s is wanted.
func (s KDAStateShape) Check(got KDAStateShape) error {
	if s != got {
		return fmt.Errorf("kda: the state is %v, want %v", got, s)
	}
	return nil
}

// Check refuses operands that do not fit together.
func (k *KDA[T]) Check() error {
	if k.H <= 0 || k.HV <= 0 || k.HV%k.H != 0 {
		return fmt.Errorf("kda: value heads must be a multiple of the query heads, got HV %d and H %d", k.HV, k.H)
	}
	if k.DK <= 0 || k.DV <= 0 || k.Tokens < 0 {
		return fmt.Errorf("kda: want K and V above 0 and no negative size, got K %d, V %d, %d tokens", k.DK, k.DV, k.Tokens)
	}
	if k.Chunk < 0 || k.Chunk%kdaBlock != 0 || k.Chunk > kdaMaxChunk {
		return fmt.Errorf("kda: the chunk must be a multiple of %d up to %d (0: %d), got %d", kdaBlock, kdaMaxChunk, kdaChunk, k.Chunk)
	}
	n := k.Seqs
	if k.Cu != nil {
		if err := CheckCuSeqlens(k.Cu, k.Tokens); err != nil {
			return fmt.Errorf("kda: %w", err)
		}
		n = len(k.Cu) - 1
	} else if n <= 0 || k.Tokens%n != 0 {
		return fmt.Errorf("kda: %d tokens do not make %d sequences of equal length", k.Tokens, n)
	}
	for _, x := range []struct {
		name      string
		got, want int
		shape     string
	}{
		{"q", len(k.Q), k.Tokens * k.H * k.DK, fmt.Sprintf("[%d,%d,%d]", k.Tokens, k.H, k.DK)},
		{"k", len(k.K), k.Tokens * k.H * k.DK, fmt.Sprintf("[%d,%d,%d]", k.Tokens, k.H, k.DK)},
		{"v", len(k.V), k.Tokens * k.HV * k.DV, fmt.Sprintf("[%d,%d,%d]", k.Tokens, k.HV, k.DV)},
		{"g", len(k.G), k.Tokens * k.HV * k.DK, fmt.Sprintf("[%d,%d,%d]", k.Tokens, k.HV, k.DK)},
		{"beta", len(k.Beta), k.Tokens * k.HV, fmt.Sprintf("[%d,%d]", k.Tokens, k.HV)},
	} {
		if x.got != x.want {
			return fmt.Errorf("kda: %s has %d elements, want %s = %d", x.name, x.got, x.shape, x.want)
		}
	}
	if one := k.HV * k.DK * k.DV; k.Slots != nil {
		if len(k.Slots) != n {
			return fmt.Errorf("kda: %d slots for %d sequences", len(k.Slots), n)
		}
		if len(k.S0)%one != 0 {
			return fmt.Errorf("kda: the pool of states has %d elements, want a multiple of the %d of one state", len(k.S0), one)
		}
		if err := CheckKDASlots(k.Slots, len(k.S0)/one); err != nil {
			return err
		}
	} else if k.S0 != nil && len(k.S0) != n*one {
		a, b := k.DK, k.DV
		if k.VFirst {
			a, b = b, a
		}
		return fmt.Errorf("kda: the initial state has %d elements, want [%d,%d,%d,%d] = %d (one state for each of %d sequences)",
			len(k.S0), n, k.HV, a, b, n*k.HV*a*b, n)
	}
	return CheckKDADecay(k.G, k.HV, k.DK)
}

// CheckKDASlots refuses slots outside a pool of states and slots that two rows
// share; a negative slot skips its row.
func CheckKDASlots(slots []int32, pool int) error {
	seen := make(map[int32]int, len(slots))
	for r, s := range slots {
		if s < 0 {
			continue
		}
		if int(s) >= pool {
			return fmt.Errorf("kda: row %d has slot %d, the pool has %d", r, s, pool)
		}
		if first, twice := seen[s]; twice {
			return fmt.Errorf("kda: rows %d and %d share slot %d", first, r, s)
		}
		seen[s] = r
	}
	return nil
}
