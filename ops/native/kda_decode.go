// The fused one-token decode: packed projections in, short convolution,
// normalisation and recurrence on states that stay where they are.

package native

import (
	"fmt"
	"math"
)

// KDAFusedConfig is the geometry of a fused decode. GateLowerBound (0: the
// softplus form) and FullRankGate describe the layer; the decode does not use
// them, since its gate argument arrives as the log-decay.
type KDAFusedConfig struct {
	Heads, HeadDim, ConvKernel int
	GateLowerBound             float64
	FullRankGate               bool
}

// QKVDim is Heads x HeadDim, the channels of one of q, k and v.
func (c KDAFusedConfig) QKVDim() int { return c.Heads * c.HeadDim }

// ConvDim is the channels of the packed projection and of the convolution.
func (c KDAFusedConfig) ConvDim() int { return 3 * c.QKVDim() }

// ConvElems is the elements of the convolution state and of its weights.
func (c KDAFusedConfig) ConvElems() int { return c.ConvDim() * c.ConvKernel }

// RecurrentElems is the elements of the recurrent state.
func (c KDAFusedConfig) RecurrentElems() int { return c.Heads * c.HeadDim * c.HeadDim }

// KDAFusedEps is the epsilon of the L2 norms of the fused decode.
const KDAFusedEps = 1e-6

// KDAStateElems are the elements of a pair of states.
type KDAStateElems struct{ Conv, Recurrent int }

// KDAFusedLengths are the lengths of the operands of a fused decode. Host and
// Resident say which states are given; ResidentOf is the configuration that
// the resident state was made for.
type KDAFusedLengths struct {
	XQKV, ConvW, Gate, Beta int
	Host, Resident          *KDAStateElems
	ResidentOf              KDAFusedConfig
}

// Check refuses operands that do not fit c, in the order of the contract.
func (c KDAFusedConfig) Check(n KDAFusedLengths) error {
	want := KDAStateElems{c.ConvElems(), c.RecurrentElems()}
	switch {
	case n.XQKV != c.ConvDim():
		return fmt.Errorf("k3 kda: x_qkv %d != conv_dim %d", n.XQKV, c.ConvDim())
	case n.ConvW != c.ConvElems():
		return fmt.Errorf("k3 kda: conv_w %d != %d", n.ConvW, c.ConvElems())
	case n.Gate != c.QKVDim() || n.Beta != c.Heads:
		return fmt.Errorf("k3 kda: gate/beta rank: gate %d, want %d, and beta %d, want %d", n.Gate, c.QKVDim(), n.Beta, c.Heads)
	case n.Host != nil && *n.Host != want:
		return fmt.Errorf("k3 kda: state rank: conv %d, want %d, and recurrent %d, want %d", n.Host.Conv, want.Conv, n.Host.Recurrent, want.Recurrent)
	case c.ConvKernel <= 0 || c.HeadDim <= 0:
		return fmt.Errorf("k3 kda: D and conv_kernel must be > 0: D %d, conv_kernel %d", c.HeadDim, c.ConvKernel)
	case n.Resident != nil && *n.Resident != want:
		return fmt.Errorf("k3 kda: resident state rank: conv %d, want %d, and recurrent %d, want %d",
			n.Resident.Conv, want.Conv, n.Resident.Recurrent, want.Recurrent)
	case n.Resident != nil && (n.ResidentOf.Heads != c.Heads || n.ResidentOf.HeadDim != c.HeadDim || n.ResidentOf.ConvKernel != c.ConvKernel):
		// Other geometries can have the same two counts: 4 heads of 4 with
		// kernel 2 and 1 head of 8 with kernel 4.
		return fmt.Errorf("k3 kda: resident state rank: made for %d heads of %d with conv_kernel %d, used with %d heads of %d with conv_kernel %d",
			n.ResidentOf.Heads, n.ResidentOf.HeadDim, n.ResidentOf.ConvKernel, c.Heads, c.HeadDim, c.ConvKernel)
	case n.Host == nil && n.Resident == nil:
		return fmt.Errorf("k3 kda: host or device state")
	}
	return nil
}

type kdaFusedArgs[T Float] struct {
	KDAFusedConfig
	y, conv, x, w              []T
	out, recurrent, gate, beta []T
}

// kdaFusedChannels is how many channels one unit of the convolution takes.
const kdaFusedChannels = 128

var (
	kdaFusedConv32      = newKernel(kdaFusedConvUnit[float32])
	kdaFusedConv64      = newKernel(kdaFusedConvUnit[float64])
	kdaFusedRecurrent32 = newKernel(kdaFusedRecurrentUnit[float32])
	kdaFusedRecurrent64 = newKernel(kdaFusedRecurrentUnit[float64])
)

// KDAFusedConv is the first step of the fused decode: every channel of conv
// [3HD,W] drops its oldest column and takes x [3HD] as its newest, and
// y = a sigmoid(a) with a = sum_j w[c,j] conv[c,j], w [3HD,W].
func KDAFusedConv[T Float](y, conv, x, w []T, c KDAFusedConfig) {
	pick[kdaFusedArgs[T]](kdaFusedConv32, kdaFusedConv64).launch(ceilDiv(c.ConvDim(), kdaFusedChannels),
		kdaFusedArgs[T]{KDAFusedConfig: c, y: y, conv: conv, x: x, w: w})
}

func kdaFusedConvUnit[T Float](a *kdaFusedArgs[T], i int) {
	n := a.ConvKernel
	for c := i * kdaFusedChannels; c < min((i+1)*kdaFusedChannels, a.ConvDim()); c++ {
		line, w := a.conv[c*n:][:n], a.w[c*n:][:n]
		copy(line, line[1:])
		line[n-1] = a.x[c]
		var sum T
		for j, v := range line {
			sum += w[j] * v
		}
		a.y[c] = sum * sigmoid(sum)
	}
}

// KDAFusedRecurrent is the second step: y [3HD] holds q, k and v of all heads
// (q|k|v, HD each). Per head q and k are normalised, alpha = exp(gate) with
// gate [HD] the log-decay, the write strength is sigmoid(beta) with beta [H] a
// logit, and recurrent [H,D,D] (key axis first) advances by one token in place.
// out is [HD], scaled by D^-1/2.
func KDAFusedRecurrent[T Float](out, recurrent, y, gate, beta []T, c KDAFusedConfig) {
	pick[kdaFusedArgs[T]](kdaFusedRecurrent32, kdaFusedRecurrent64).launch(c.Heads,
		kdaFusedArgs[T]{KDAFusedConfig: c, y: y, out: out, recurrent: recurrent, gate: gate, beta: beta})
}

func kdaFusedRecurrentUnit[T Float](a *kdaFusedArgs[T], h int) {
	d, all := a.HeadDim, a.QKVDim()
	part := func(x []T) []T { return x[h*d:][:d] }
	buf := takeScratch[T](2 * d)
	q, k := buf[:d], buf[d:]
	for _, p := range [2]struct{ to, from []T }{{q, part(a.y)}, {k, part(a.y[all:])}} {
		scale := 1 / math.Sqrt(sumMul(p.from, p.from)+KDAFusedEps)
		for j, v := range p.from {
			p.to[j] = T(float64(v) * scale)
		}
	}
	s := a.recurrent[h*d*d:][:d*d]
	for v0 := 0; v0 < d; v0 += kdaStepTile {
		n := min(kdaStepTile, d-v0)
		kdaStep(part(a.out)[v0:v0+n], s, q, k, part(a.y[2*all:])[v0:v0+n], part(a.gate), sigmoid(a.beta[h]),
			T(1/math.Sqrt(float64(d))), v0, d, false)
	}
	giveScratch(buf)
}

// KDAFusedDecode is both steps on host states, updated in place; out [HD].
func KDAFusedDecode[T Float](out, conv, recurrent, x, convW, gate, beta []T, c KDAFusedConfig) {
	y := takeScratch[T](c.ConvDim())
	KDAFusedConv(y, conv, x, convW, c)
	KDAFusedRecurrent(out, recurrent, y, gate, beta, c)
	giveScratch(y)
}
