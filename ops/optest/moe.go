package optest

import (
	"math"
	"sort"
)

// Router chooses TopK of Experts for each token from its logits [T, E]:
//
//	scores  s = softmax(logits) or sigmoid(logits)
//	choice  the TopK largest s + bias, in falling order, the lower index first
//	        among equals; with Groups > 1 only from the KeepGroups groups whose
//	        two best s + bias have the largest sum
//	weights s of the chosen (without the bias), divided by their sum + 1e-20
//	        where Renormalize is set, times Scale
//
// The bias [E] or nil takes part in the choice alone and has no gradient.
type Router struct {
	Experts, TopK      int
	Groups, KeepGroups int // 0 or 1: no groups
	Sigmoid            bool
	Renormalize        bool
	Scale              float64 // 0: 1
}

const routerEps = 1e-20

// Scores returns s [T, E].
func (r Router) Scores(logits []float64) []float64 {
	var s []float64
	for t := 0; t < len(logits); t += r.Experts {
		row := logits[t : t+r.Experts]
		p, _ := Softmax(row)
		for e := range row {
			if r.Sigmoid {
				p[e] = Sigmoid(row[e])
			}
		}
		s = append(s, p...)
	}
	return s
}

func (r Router) scale() float64 {
	if r.Scale == 0 {
		return 1
	}
	return r.Scale
}

// Route returns the chosen experts and their weights, both [T, TopK].
func (r Router) Route(logits, bias []float64) (ids []int32, weights []float64) {
	scores := r.Scores(logits)
	for t := 0; t < len(scores); t += r.Experts {
		s := scores[t : t+r.Experts]
		chosen := r.choose(s, bias)
		sum := 0.0
		for _, e := range chosen {
			sum += s[e]
		}
		for _, e := range chosen {
			w := s[e]
			if r.Renormalize {
				w /= sum + routerEps
			}
			ids, weights = append(ids, int32(e)), append(weights, w*r.scale())
		}
	}
	return ids, weights
}

func (r Router) choose(s, bias []float64) []int {
	rank := append([]float64(nil), s...)
	for e := range bias {
		rank[e] += bias[e]
	}
	allowed := make([]int, r.Experts)
	for e := range allowed {
		allowed[e] = e
	}
	if r.Groups > 1 {
		size := r.Experts / r.Groups
		value := make([]float64, r.Groups)
		for g := range value {
			best := append([]float64(nil), rank[g*size:(g+1)*size]...)
			sort.Sort(sort.Reverse(sort.Float64Slice(best)))
			for _, v := range best[:min(2, size)] {
				value[g] += v
			}
		}
		allowed = allowed[:0]
		for _, g := range largest(value, r.KeepGroups) {
			for e := range size {
				allowed = append(allowed, g*size+e)
			}
		}
		sort.Ints(allowed)
	}
	among := make([]float64, len(allowed))
	for i, e := range allowed {
		among[i] = rank[e]
	}
	var chosen []int
	for _, i := range largest(among, r.TopK) {
		chosen = append(chosen, allowed[i])
	}
	return chosen
}

// largest returns the indices of the n largest values in falling order.
func largest(x []float64, n int) []int {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return x[order[a]] > x[order[b]] })
	return order[:n]
}

// RouteGrad returns dlogits for dweights [T, TopK], the choice being fixed. It
// contracts with the Jacobians of the division, dw_a/ds_b = c (sum [a=b] - s_a)
// / sum^2, and of the score function.
func (r Router) RouteGrad(dweights, logits []float64, ids []int32) []float64 {
	scores := r.Scores(logits)
	d := make([]float64, len(logits))
	for t := range len(ids) / r.TopK {
		s := scores[t*r.Experts : (t+1)*r.Experts]
		chosen := ids[t*r.TopK : (t+1)*r.TopK]
		sum := routerEps
		for _, e := range chosen {
			sum += s[e]
		}
		ds := make([]float64, r.Experts)
		for a, ea := range chosen {
			for b, eb := range chosen {
				jacobian := 0.0
				if a == b {
					jacobian = 1
				}
				if r.Renormalize {
					jacobian = (sum*jacobian - s[ea]) / (sum * sum)
				}
				ds[eb] += dweights[t*r.TopK+a] * jacobian * r.scale()
			}
		}
		for a := range s {
			for b := range s {
				switch {
				case r.Sigmoid && a == b:
					d[t*r.Experts+b] += ds[a] * s[a] * (1 - s[a])
				case !r.Sigmoid && a == b:
					d[t*r.Experts+b] += ds[a] * s[a] * (1 - s[b])
				case !r.Sigmoid:
					d[t*r.Experts+b] -= ds[a] * s[a] * s[b]
				}
			}
		}
	}
	return d
}

// BalanceLoss is E sum_e f_e P_e, with f_e the share of the T*TopK choices that
// went to expert e and P_e the mean over the tokens of s_e / sum(s). It is 1
// for an even load of even scores.
func (r Router) BalanceLoss(logits []float64, ids []int32) float64 {
	share, tokens := r.load(ids), len(logits)/r.Experts
	scores, loss := r.Scores(logits), 0.0
	for t := range tokens {
		s := scores[t*r.Experts : (t+1)*r.Experts]
		total := 0.0
		for _, v := range s {
			total += v
		}
		for e, v := range s {
			loss += float64(r.Experts) * share[e] * v / total / float64(tokens)
		}
	}
	return loss
}

// load is the share of all choices that each expert received.
func (r Router) load(ids []int32) []float64 {
	share := make([]float64, r.Experts)
	for _, e := range ids {
		share[e] += 1 / float64(len(ids))
	}
	return share
}

// BalanceLossGrad returns dlogits; the choices are constants. P is taken as a
// softmax in both cases: s / sum(s) of sigmoids is the softmax of log s, whose
// derivative by the logit is 1 - s.
func (r Router) BalanceLossGrad(dloss float64, logits []float64, ids []int32) []float64 {
	share, tokens := r.load(ids), len(logits)/r.Experts
	scores, d := r.Scores(logits), make([]float64, len(logits))
	for t := range tokens {
		s := scores[t*r.Experts : (t+1)*r.Experts]
		logS := make([]float64, r.Experts)
		for e := range s {
			logS[e] = math.Log(s[e])
		}
		p, _ := Softmax(logS)
		for a := range p {
			for b := range p {
				jacobian := -p[a] * p[b]
				if a == b {
					jacobian += p[a]
				}
				if r.Sigmoid {
					jacobian *= 1 - s[b]
				}
				d[t*r.Experts+b] += dloss * float64(r.Experts) * share[a] / float64(tokens) * jacobian
			}
		}
	}
	return d
}

// BalanceBias returns the bias after a step of rate u towards an even load:
// up for an expert below the mean load, down for one above it.
func (r Router) BalanceBias(bias []float64, ids []int32, u float64) []float64 {
	next := append([]float64(nil), bias...)
	for e, share := range r.load(ids) {
		count := math.Round(share * float64(len(ids)))
		mean := float64(len(ids)) / float64(r.Experts)
		switch {
		case count < mean:
			next[e] += u
		case count > mean:
			next[e] -= u
		}
	}
	return next
}

// SortByExpert lists the T*TopK choices by expert, in the order of the tokens
// inside each: order[i] is the index of a choice in ids, and the rows of expert
// e are offsets[e]..offsets[e+1].
func SortByExpert(ids []int32, experts int) (order, offsets []int32) {
	offsets = []int32{0}
	for e := range experts {
		for i, id := range ids {
			if int(id) == e {
				order = append(order, int32(i))
			}
		}
		offsets = append(offsets, int32(len(order)))
	}
	return order, offsets
}

// GroupedLinear is y[rows of e] = x[rows of e] w[e]^T with x [M,K], w [E,N,K]
// and the rows cut by offsets [E+1].
func GroupedLinear(x, w []float64, offsets []int32, n, k int) []float64 {
	var y []float64
	for e := range len(offsets) - 1 {
		from, to := int(offsets[e]), int(offsets[e+1])
		y = append(y, Linear(x[from*k:to*k], w[e*n*k:(e+1)*n*k], nil, to-from, n, k)...)
	}
	return y
}

// GroupedLinearGrad returns dx [M,K] and dw [E,N,K]; an expert without rows has
// zeros.
func GroupedLinearGrad(dy, x, w []float64, offsets []int32, n, k int) (dx, dw []float64) {
	for e := range len(offsets) - 1 {
		from, to := int(offsets[e]), int(offsets[e+1])
		gx, gw, _ := LinearGrad(dy[from*n:to*n], x[from*k:to*k], w[e*n*k:(e+1)*n*k], to-from, n, k)
		dx, dw = append(dx, gx...), append(dw, gw...)
	}
	return dx, dw
}

// Experts is the feed-forward of a mixture, token by token and choice by
// choice: y = sum over the choices of weight * down_e(silu(gate_e x) up_e x),
// x [T,D], gate and up [E,F,D], down [E,D,F], ids and weights [T,TopK].
type Experts struct{ D, F, TopK int }

// expert returns the three matrices of expert e.
func (x Experts) expert(gate, up, down []float64, e int32) (g, u, d []float64) {
	at, size := int(e)*x.F*x.D, x.F*x.D
	return gate[at : at+size], up[at : at+size], down[at : at+size]
}

// Forward returns y [T, D].
func (x Experts) Forward(in, weights []float64, ids []int32, gate, up, down []float64) []float64 {
	y := make([]float64, len(in))
	for i, e := range ids {
		at := i / x.TopK * x.D
		token := in[at : at+x.D]
		g, u, d := x.expert(gate, up, down, e)
		h := SwiGLU(Linear(token, g, nil, 1, x.F, x.D), Linear(token, u, nil, 1, x.F, x.D))
		for j, v := range Linear(h, d, nil, 1, x.D, x.F) {
			y[at+j] += weights[i] * v
		}
	}
	return y
}

// Backward returns the gradients of the tokens, the weights of the choices and
// the three stacks of matrices.
func (x Experts) Backward(dy, in, weights []float64, ids []int32, gate, up, down []float64) (din, dweights, dgate, dup, ddown []float64) {
	din, dweights = make([]float64, len(in)), make([]float64, len(weights))
	dgate, dup, ddown = make([]float64, len(gate)), make([]float64, len(up)), make([]float64, len(down))
	add := func(to, from []float64) {
		for i := range from {
			to[i] += from[i]
		}
	}
	for i, e := range ids {
		at := i / x.TopK * x.D
		token := in[at : at+x.D]
		g, u, d := x.expert(gate, up, down, e)
		a, b := Linear(token, g, nil, 1, x.F, x.D), Linear(token, u, nil, 1, x.F, x.D)
		h := SwiGLU(a, b)
		out := Linear(h, d, nil, 1, x.D, x.F)
		dout := make([]float64, x.D)
		for j := range dout {
			dweights[i] += dy[at+j] * out[j]
			dout[j] = dy[at+j] * weights[i]
		}
		dh, dd, _ := LinearGrad(dout, h, d, 1, x.D, x.F)
		da, db := SwiGLUGrad(dh, a, b)
		t1, dg, _ := LinearGrad(da, token, g, 1, x.F, x.D)
		t2, du, _ := LinearGrad(db, token, u, 1, x.F, x.D)
		add(din[at:at+x.D], Add(t1, t2))
		g, u, d = x.expert(dgate, dup, ddown, e)
		add(g, dg)
		add(u, du)
		add(d, dd)
	}
	return din, dweights, dgate, dup, ddown
}

// ClampedExperts are experts with biases, Gate and Up [E,F], Down [E,D], and the unit
// (u + 1) g sigmoid(Alpha g) of g at most Limit and u within -Limit..Limit.
type ClampedExperts struct {
	Experts
	Alpha, Limit   float64
	Gate, Up, Down []float64
}

// hidden is one row of an expert: before the clamps, and behind the unit.
func (x ClampedExperts) hidden(token, gate, up []float64, e int32) (a, b, h []float64) {
	at := int(e) * x.F
	a, b = Linear(token, gate, x.Gate[at:at+x.F], 1, x.F, x.D), Linear(token, up, x.Up[at:at+x.F], 1, x.F, x.D)
	for f := range a {
		g, u := math.Min(a[f], x.Limit), math.Max(-x.Limit, math.Min(b[f], x.Limit))
		h = append(h, (u+1)*g*Sigmoid(x.Alpha*g))
	}
	return a, b, h
}

// Forward returns y [T, D].
func (x ClampedExperts) Forward(in, weights []float64, ids []int32, gate, up, down []float64) []float64 {
	y := make([]float64, len(in))
	for i, e := range ids {
		at := i / x.TopK * x.D
		g, u, d := x.expert(gate, up, down, e)
		_, _, h := x.hidden(in[at:at+x.D], g, u, e)
		for j, v := range Linear(h, d, x.Down[int(e)*x.D:][:x.D], 1, x.D, x.F) {
			y[at+j] += weights[i] * v
		}
	}
	return y
}

// Backward returns the gradients of the tokens, the weights of the choices, the
// three stacks and their biases.
func (x ClampedExperts) Backward(dy, in, weights []float64, ids []int32, gate, up, down []float64) [][]float64 {
	var grads [][]float64
	for _, v := range [][]float64{in, weights, gate, up, down, x.Gate, x.Up, x.Down} {
		grads = append(grads, make([]float64, len(v)))
	}
	for i, e := range ids {
		at := i / x.TopK * x.D
		token := in[at : at+x.D]
		g, u, d := x.expert(gate, up, down, e)
		dg, du, dd := x.expert(grads[2], grads[3], grads[4], e)
		a, b, h := x.hidden(token, g, u, e)
		out := Linear(h, d, x.Down[int(e)*x.D:][:x.D], 1, x.D, x.F)
		for f := range x.F {
			dh := 0.0
			for j := range x.D {
				dh += weights[i] * dy[at+j] * d[j*x.F+f]
				dd[j*x.F+f] += weights[i] * dy[at+j] * h[f]
			}
			gc, uc := math.Min(a[f], x.Limit), math.Max(-x.Limit, math.Min(b[f], x.Limit))
			s, ds := Sigmoid(x.Alpha*gc), x.Alpha*Sigmoid(x.Alpha*gc)*Sigmoid(-x.Alpha*gc)
			da, db := dh*(uc+1)*(s+gc*ds), dh*gc*s
			if a[f] > x.Limit {
				da = 0
			}
			if math.Abs(b[f]) > x.Limit {
				db = 0
			}
			grads[5][int(e)*x.F+f] += da
			grads[6][int(e)*x.F+f] += db
			for j := range x.D {
				dg[f*x.D+j] += da * token[j]
				du[f*x.D+j] += db * token[j]
				grads[0][at+j] += da*g[f*x.D+j] + db*u[f*x.D+j]
			}
		}
		for j := range x.D {
			grads[1][i] += dy[at+j] * out[j]
			grads[7][int(e)*x.D+j] += weights[i] * dy[at+j]
		}
	}
	return grads
}

// FP8Forward is Forward with the stacks on the grid of E4M3, a step for each 128
// x 128 block of each matrix, and with blocks set the tokens and what the gate
// gives too, a step for each 1 x 128. Largest magnitudes are float32.
func (x Experts) FP8Forward(in, weights []float64, ids []int32, gate, up, down []float64, blocks bool) []float64 {
	grid := func(v []float64, rows, cols, side int) []float64 {
		b := Blocks{rows, cols, side, 128}
		steps, _ := b.Amax(v)
		for i, a := range steps {
			steps[i] = QuantStep(float64(float32(a)), 1, E4M3, 0)
		}
		return b.Dequantize(b.Quantize(v, steps, E4M3), steps, E4M3)
	}
	row := func(v []float64) []float64 {
		if !blocks {
			return v
		}
		return grid(v, 1, len(v), 1)
	}
	var g, u, d []float64
	for at := 0; at < len(gate); at += x.F * x.D {
		end := at + x.F*x.D
		g, u, d = append(g, grid(gate[at:end], x.F, x.D, 128)...), append(u, grid(up[at:end], x.F, x.D, 128)...), append(d, grid(down[at:end], x.D, x.F, 128)...)
	}
	y := make([]float64, len(in))
	for i, e := range ids {
		at := i / x.TopK * x.D
		a, b, c := x.expert(g, u, d, e)
		token := row(in[at : at+x.D])
		h := row(SwiGLU(Linear(token, a, nil, 1, x.F, x.D), Linear(token, b, nil, 1, x.F, x.D)))
		for j, v := range Linear(h, c, nil, 1, x.D, x.F) {
			y[at+j] += weights[i] * v
		}
	}
	return y
}
