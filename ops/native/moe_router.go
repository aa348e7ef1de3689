// The router of a mixture of experts: scores, choice, weights, balance.

package native

import (
	"fmt"
	"math"
)

// Router chooses TopK of Experts for each token from its logits [T,E]:
//
//	s = softmax(logits), or sigmoid(logits)
//
// The TopK largest s + bias are chosen, in falling order, the lower index first
// among equals. With Groups above 1 the choice is among the KeepGroups groups
// of neighbours whose two best s + bias have the largest sum. The weights are s
// of the chosen, without the bias, divided by their sum + 1e-20 if Renormalize
// is set, times Scale. Sources: DeepSeek-V3 (arXiv:2412.19437), Kimi Linear.
type Router struct {
	Experts, TopK      int
	Groups, KeepGroups int // 0 or 1: no groups
	Sigmoid            bool
	Renormalize        bool
	Scale              float64 // 0: 1
}

// routerEps keeps the sum of chosen scores from 0.
const routerEps = 1e-20

// Check refuses a router that cannot choose.
func (r Router) Check() error {
	if r.Experts < 1 || r.TopK < 1 || r.TopK > r.Experts {
		return fmt.Errorf("router: top-k must be from 1 to the number of experts, got top-k %d of %d experts", r.TopK, r.Experts)
	}
	if r.Groups > 1 {
		if r.Experts%r.Groups != 0 {
			return fmt.Errorf("router: %d experts do not make %d groups of one size", r.Experts, r.Groups)
		}
		if r.KeepGroups < 1 || r.KeepGroups > r.Groups {
			return fmt.Errorf("router: must keep from 1 to all %d groups, got %d", r.Groups, r.KeepGroups)
		}
		if kept := r.KeepGroups * (r.Experts / r.Groups); r.TopK > kept {
			return fmt.Errorf("router: top-k %d is more than the %d experts of %d groups", r.TopK, kept, r.KeepGroups)
		}
	}
	return nil
}

// CheckExpertIDs refuses an id that is not an expert.
func CheckExpertIDs(ids []int32, experts int) error {
	for i, e := range ids {
		if e < 0 || int(e) >= experts {
			return fmt.Errorf("experts: choice %d is expert %d, must be from 0 to %d", i, e, experts-1)
		}
	}
	return nil
}

func (r Router) scale() float64 {
	if r.Scale == 0 {
		return 1
	}
	return r.Scale
}

// scoresOf writes s of one token in float64: a choice between near equals should
// not hang on a rounding.
func scoresOf[T Float](s []float64, logits []T, sigmoids bool) {
	if sigmoids {
		for e, v := range logits {
			s[e] = sigmoid(float64(v))
		}
		return
	}
	top, sum := float64(maxOf(logits)), 0.0
	for e, v := range logits {
		s[e] = math.Exp(float64(v) - top)
		sum += s[e]
	}
	for e := range s {
		s[e] /= sum
	}
}

type routerArgs[T Float] struct {
	Router
	weights, logits, bias []T
	dlogits, dweights     []T
	ids                   []int32
	part                  []float64 // partial sums of the balance, [units,E]
	tokens                int
}

// routerRows is how many tokens one unit takes.
const routerRows = 32

var (
	route32        = newKernel(routeUnit[float32])
	route64        = newKernel(routeUnit[float64])
	routeWeights32 = newKernel(routeWeightsUnit[float32])
	routeWeights64 = newKernel(routeWeightsUnit[float64])
	routeGrad32    = newKernel(routeGradUnit[float32])
	routeGrad64    = newKernel(routeGradUnit[float64])
	balance32      = newKernel(balanceUnit[float32])
	balance64      = newKernel(balanceUnit[float64])
	balanceGrad32  = newKernel(balanceGradUnit[float32])
	balanceGrad64  = newKernel(balanceGradUnit[float64])
)

// Route writes the chosen experts ids [T,TopK] and their weights [T,TopK] (nil:
// not wanted) for logits [T,E]; bias [E] takes part in the choice alone (nil: none). A NaN is
// never chosen while there is something else.
func Route[T Float](ids []int32, weights, logits, bias []T, tokens int, r Router) {
	pick[routerArgs[T]](route32, route64).launch(ceilDiv(tokens, routerRows),
		routerArgs[T]{Router: r, ids: ids, weights: weights, logits: logits, bias: bias, tokens: tokens})
}

func routeUnit[T Float](a *routerArgs[T], i int) {
	groups := max(a.Groups, 1)
	buf := scratch64.take(2*a.Experts + groups)
	s, rank, value := buf[:a.Experts], buf[a.Experts:2*a.Experts], buf[2*a.Experts:]
	for t := i * routerRows; t < min((i+1)*routerRows, a.tokens); t++ {
		scoresOf(s, a.logits[t*a.Experts:][:a.Experts], a.Sigmoid)
		for e, v := range s {
			if a.bias != nil {
				v += float64(a.bias[e])
			}
			rank[e] = lowestIfNaN(v)
		}
		if groups > 1 {
			a.dropGroups(rank, value)
		}
		ids := a.ids[t*a.TopK:][:a.TopK]
		for c := range ids {
			ids[c] = int32(takeLargest(rank))
		}
		if a.weights != nil {
			weighChosen(a.weights[t*a.TopK:][:a.TopK], s, ids, a.Router)
		}
	}
	scratch64.give(buf)
}

// weighChosen writes the weights of the chosen experts of a token from its s.
func weighChosen[T Float](weights []T, s []float64, ids []int32, r Router) {
	scale := r.scale()
	if r.Renormalize {
		sum := routerEps
		for _, e := range ids {
			sum += s[e]
		}
		scale /= sum
	}
	for c, e := range ids {
		weights[c] = T(s[e] * scale)
	}
}

// RouteWeights writes the weights [T,TopK] that Route gives the choices ids.
func RouteWeights[T Float](weights, logits []T, ids []int32, tokens int, r Router) {
	pick[routerArgs[T]](routeWeights32, routeWeights64).launch(ceilDiv(tokens, routerRows),
		routerArgs[T]{Router: r, ids: ids, weights: weights, logits: logits, tokens: tokens})
}

func routeWeightsUnit[T Float](a *routerArgs[T], i int) {
	s := scratch64.take(a.Experts)
	for t := i * routerRows; t < min((i+1)*routerRows, a.tokens); t++ {
		scoresOf(s, a.logits[t*a.Experts:][:a.Experts], a.Sigmoid)
		weighChosen(a.weights[t*a.TopK:][:a.TopK], s, a.ids[t*a.TopK:][:a.TopK], a.Router)
	}
	scratch64.give(s)
}

// takeLargest returns the index of the largest value, the lowest among equals,
// and replaces it by NaN. There must be a value that is not NaN.
func takeLargest(x []float64) int {
	best := -1
	for i, v := range x {
		if v == v && (best < 0 || v > x[best]) {
			best = i
		}
	}
	x[best] = math.NaN()
	return best
}

// dropGroups moves the experts of all but the best groups to -Inf.
func (r Router) dropGroups(rank, value []float64) {
	size := r.Experts / r.Groups
	for g := range value {
		first, second := math.Inf(-1), math.Inf(-1)
		for _, v := range rank[g*size:][:size] {
			switch {
			case v > first:
				first, second = v, first
			case v > second:
				second = v
			}
		}
		if size > 1 {
			first += second
		}
		value[g] = lowestIfNaN(first)
	}
	for range r.KeepGroups {
		takeLargest(value)
	}
	for g, v := range value {
		if v == v {
			for e := range size {
				rank[g*size+e] = math.Inf(-1)
			}
		}
	}
}

func lowestIfNaN(x float64) float64 {
	if x != x {
		return math.Inf(-1)
	}
	return x
}

// RouteGrad writes dlogits [T,E] for dweights [T,TopK] of the choices ids,
// which are constants.
func RouteGrad[T Float](dlogits, dweights, logits []T, ids []int32, tokens int, r Router) {
	pick[routerArgs[T]](routeGrad32, routeGrad64).launch(ceilDiv(tokens, routerRows),
		routerArgs[T]{Router: r, ids: ids, logits: logits, dlogits: dlogits, dweights: dweights, tokens: tokens})
}

func routeGradUnit[T Float](a *routerArgs[T], i int) {
	buf := scratch64.take(2 * a.Experts)
	s, ds := buf[:a.Experts], buf[a.Experts:]
	for t := i * routerRows; t < min((i+1)*routerRows, a.tokens); t++ {
		logits, out := a.logits[t*a.Experts:][:a.Experts], a.dlogits[t*a.Experts:][:a.Experts]
		ids, dw := a.ids[t*a.TopK:][:a.TopK], a.dweights[t*a.TopK:][:a.TopK]
		scoresOf(s, logits, a.Sigmoid)
		sum, dot := routerEps, 0.0
		for c, e := range ids {
			sum += s[e]
			dot += float64(dw[c]) * s[e]
		}
		clear(ds)
		for c, e := range ids {
			d := float64(dw[c])
			if a.Renormalize {
				d = (d - dot/sum) / sum
			}
			ds[e] += d * a.scale()
		}
		if a.Sigmoid {
			for e, v := range ds {
				out[e] = T(v * s[e] * sigmoid(-float64(logits[e])))
			}
			continue
		}
		dot = 0
		for e, v := range ds {
			dot += v * s[e]
		}
		for e, v := range ds {
			out[e] = T(s[e] * (v - dot))
		}
	}
	scratch64.give(buf)
}

// load adds up how often each expert was chosen.
func load(counts []float64, ids []int32) {
	clear(counts)
	for _, e := range ids {
		counts[e]++
	}
}

// BalanceLoss writes loss [1] = E sum_e f_e P_e with f_e the share of the
// T TopK choices that went to expert e and P_e the mean of s_e / sum(s) over
// the tokens: 1 for an even load. Source: Switch Transformer (arXiv:2101.03961).
func BalanceLoss[T Float](loss, logits []T, ids []int32, tokens int, r Router) {
	units := ceilDiv(tokens, routerRows)
	part, counts := scratch64.take(units*r.Experts), scratch64.take(r.Experts)
	pick[routerArgs[T]](balance32, balance64).launch(units, routerArgs[T]{Router: r, logits: logits, part: part, tokens: tokens})
	load(counts, ids)
	sum := 0.0
	for u := range units {
		for e, p := range part[u*r.Experts:][:r.Experts] {
			sum += p * counts[e]
		}
	}
	if tokens > 0 {
		sum *= float64(r.Experts) / float64(len(ids)) / float64(tokens)
	}
	loss[0] = T(sum)
	scratch64.give(part)
	scratch64.give(counts)
}

// shares writes s / sum(s) of one token.
func (a *routerArgs[T]) shares(s []float64, t int) (logits []T) {
	logits = a.logits[t*a.Experts:][:a.Experts]
	scoresOf(s, logits, a.Sigmoid)
	if a.Sigmoid {
		sum := 0.0
		for _, v := range s {
			sum += v
		}
		for e := range s {
			s[e] /= sum
		}
	}
	return logits
}

func balanceUnit[T Float](a *routerArgs[T], i int) {
	s := scratch64.take(a.Experts)
	sum := a.part[i*a.Experts:][:a.Experts]
	clear(sum)
	for t := i * routerRows; t < min((i+1)*routerRows, a.tokens); t++ {
		a.shares(s, t)
		for e, v := range s {
			sum[e] += v
		}
	}
	scratch64.give(s)
}

// BalanceLossGrad writes dlogits [T,E] for dloss [1]; the choices are constants.
func BalanceLossGrad[T Float](dlogits, dloss, logits []T, ids []int32, tokens int, r Router) {
	counts := scratch64.take(r.Experts)
	load(counts, ids)
	for e := range counts {
		counts[e] *= float64(dloss[0]) * float64(r.Experts) / float64(len(ids)) / float64(tokens)
	}
	pick[routerArgs[T]](balanceGrad32, balanceGrad64).launch(ceilDiv(tokens, routerRows),
		routerArgs[T]{Router: r, logits: logits, dlogits: dlogits, part: counts, tokens: tokens})
	scratch64.give(counts)
}

func balanceGradUnit[T Float](a *routerArgs[T], i int) {
	p := scratch64.take(a.Experts)
	for t := i * routerRows; t < min((i+1)*routerRows, a.tokens); t++ {
		logits, out := a.shares(p, t), a.dlogits[t*a.Experts:][:a.Experts]
		mean := 0.0
		for e, v := range p {
			mean += v * a.part[e]
		}
		for e, v := range p {
			d := v * (a.part[e] - mean)
			if a.Sigmoid {
				d *= sigmoid(-float64(logits[e]))
			}
			out[e] = T(d)
		}
	}
	scratch64.give(p)
}

// BalanceBias writes next [E], the bias after a step of rate u towards an even
// load: up for an expert chosen less often than the mean, down for one chosen
// more often. next may be bias.
func BalanceBias[T Float](next, bias []T, ids []int32, r Router, u float64) {
	counts := scratch64.take(r.Experts)
	load(counts, ids)
	for e, n := range counts {
		next[e] = bias[e]
		switch mean := float64(len(ids)) / float64(r.Experts); {
		case n < mean:
			next[e] += T(u)
		case n > mean:
			next[e] -= T(u)
		}
	}
	scratch64.give(counts)
}
