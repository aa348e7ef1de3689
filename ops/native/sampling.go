package native

import (
	"fmt"
	"math"
	"slices"
)

// This file draws the next token of each request from its logits.

// Draw says how the next token of one request is drawn. The steps apply in the
// order of the fields: penalty, temperature, then the three cuts, each on what
// the one before left.
type Draw struct {
	Penalty     float32 // divides the positive logits of seen tokens, and multiplies the others; 1: off
	Temperature float32 // divides the logits; 0 takes the largest, the lowest id among equals
	TopK        int32   // keep the K likeliest tokens, the lower id first among equals; 0: all
	TopP        float32 // keep the fewest likeliest tokens that hold this much of what top-k left; 0 or 1: all
	MinP        float32 // keep tokens with at least this part of the likeliest one's probability; 0: all
	Number      int32   // of the token to draw; below 0: none is drawn
	Seed        uint64
}

// DrawWords is the number of int32 words that hold a Draw.
const DrawWords = 8

// What Sampling gives where it gives no token.
const (
	NoDraw    = -1 // none was asked for
	NaNLogit  = -2 // a logit is NaN
	NoneDrawn = -3 // the largest logit is infinite
)

// Put writes the Draw as words.
func (d Draw) Put(words []int32) {
	bits := func(x float32) int32 { return int32(math.Float32bits(x)) }
	copy(words[:DrawWords], []int32{bits(d.Penalty), bits(d.Temperature), d.TopK, bits(d.TopP), bits(d.MinP), d.Number, int32(d.Seed), int32(d.Seed >> 32)})
}

func drawOf(words []int32) Draw {
	float := func(w int32) float32 { return math.Float32frombits(uint32(w)) }
	return Draw{float(words[0]), float(words[1]), words[2], float(words[3]), float(words[4]), words[5], uint64(uint32(words[6])) | uint64(uint32(words[7]))<<32}
}

// CheckDraws refuses parameters out of range in the words of some requests.
func CheckDraws(words []int32) error {
	for r := 0; len(words) > 0; words, r = words[DrawWords:], r+1 {
		d := drawOf(words)
		if d.Number < 0 {
			continue
		}
		for _, x := range []struct {
			name string
			v    float32
			ok   bool
			want string
		}{
			{"penalty", d.Penalty, d.Penalty > 0 && d.Penalty <= math.MaxFloat32, "above 0 and finite"},
			{"temperature", d.Temperature, d.Temperature >= 0 && d.Temperature <= math.MaxFloat32, "0 or above and finite"},
			{"top-k", float32(d.TopK), d.TopK >= 0, "0 or above"},
			{"top-p", d.TopP, d.TopP >= 0 && d.TopP <= 1, "0 to 1"},
			{"min-p", d.MinP, d.MinP >= 0 && d.MinP <= 1, "0 to 1"},
		} {
			if !x.ok {
				return fmt.Errorf("%s of request %d must be %s, got %v", x.name, r, x.want, x.v)
			}
		}
	}
	return nil
}

// Sampling draws tokens[n] from logits[n,v] by draws[n,DrawWords]. Seen, for
// the penalty, has bits of tokens [n,ceil(v/32)], or is nil. With weights
// w = exp((z - max z) / temperature) of the tokens that are left, likeliest
// first (all of them in the order of their ids when nothing cuts), the token is
// the first whose sum of weights is above u times their total,
//
//	u = the upper 53 bits of w0:w1, Philox4x32-10(counter = (Number, 0, 0, 0), key = (Seed low, Seed high))
//
// as a number in [0,1). A row is a function of its own inputs alone. It fails
// on a parameter out of range, before it writes. Sources: Keskar et al., CTRL
// (arXiv:1909.05858) for the penalty; Holtzman et al. (arXiv:1904.09751) for top-p.
func Sampling[T Float](tokens []int32, logits []T, draws, seen []int32, n, v int) error {
	if err := CheckDraws(draws[:n*DrawWords]); err != nil {
		return err
	}
	k := pick[samplingArgs[T]](sampling32, sampling64)
	k.launch(n, samplingArgs[T]{tokens, logits, draws, seen, v})
	return nil
}

type samplingArgs[T Float] struct {
	tokens      []int32
	logits      []T
	draws, seen []int32
	v           int
}

var (
	sampling32 = newKernel(samplingRow[float32])
	sampling64 = newKernel(samplingRow[float64])
)

func samplingRow[T Float](a *samplingArgs[T], r int) {
	d, z := drawOf(a.draws[r*DrawWords:]), a.logits[r*a.v:][:a.v]
	if d.Number < 0 {
		a.tokens[r] = NoDraw
		return
	}
	if a.seen == nil || d.Penalty == 1 {
		a.tokens[r] = drawToken(z, d)
		return
	}
	punished := takeScratch[T](a.v)
	words := (a.v + 31) / 32
	punish(punished, z, a.seen[r*words:][:words], T(d.Penalty))
	a.tokens[r] = drawToken(punished, d)
	giveScratch(punished)
}

// punish applies the penalty to the tokens whose bits are set.
func punish[T Float](y, z []T, seen []int32, penalty T) {
	for id, x := range z {
		if seen[id/32]>>(id%32)&1 != 0 {
			if x > 0 {
				x /= penalty
			} else {
				x *= penalty
			}
		}
		y[id] = x
	}
}

// drawBlock is the logits whose largest is looked for at a time; the weights of a
// row are summed in up to drawBlocks blocks of at least as many.
const drawBlock, drawBlocks = 1024, 256

func drawToken[T Float](z []T, d Draw) int32 {
	best, top := NoneDrawn, T(math.Inf(-1))
	for at := 0; at < len(z); at += drawBlock {
		block := z[at:min(at+drawBlock, len(z))]
		m := maxOf(block)
		if m != m {
			return NaNLogit
		}
		if m > top {
			best, top = at+slices.Index(block, m), m
		}
	}
	if math.IsInf(float64(top), 0) {
		return NoneDrawn
	}
	if d.Temperature == 0 {
		return int32(best)
	}
	rate := math.Log2E / float64(d.Temperature)
	w := scratch64.take(len(z))
	defer scratch64.give(w)
	weights(w, z, float64(top), rate)
	if d.TopK > 0 || d.cutsP() || d.MinP > 0 {
		return drawInOrder(d, z, w, float64(top))
	}
	var sums [drawBlocks]float64
	block := max(drawBlock, ceilDiv(len(z), drawBlocks))
	for b := 0; b*block < len(z); b++ {
		sums[b] = sumOf(w[b*block : min((b+1)*block, len(z))])
	}
	u := d.uniform() * sumOf(sums[:])
	token := best // where the sum rounds up to its end
	for b := 0; b*block < len(z); b++ {
		if u >= sums[b] {
			u -= sums[b]
			continue
		}
		for id := b * block; id < min((b+1)*block, len(z)); id++ {
			if x := w[id]; x > 0 {
				token = id
				if u -= x; u < 0 {
					break
				}
			}
		}
		break
	}
	return int32(token)
}

func (d Draw) uniform() float64 {
	w0, w1, _, _ := philox(uint64(d.Number), 0, d.Seed)
	return float64((uint64(w0)<<32|uint64(w1))>>11) * 0x1p-53
}

// cutsP says whether top-p cuts.
func (d Draw) cutsP() bool { return d.TopP > 0 && d.TopP < 1 }
