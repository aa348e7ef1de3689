package optest

import "math"

// KDA is one call of Kimi Delta Attention in float64, tokens packed over the
// sequences of Cu: Q, K [T,H,DK]; V [T,HV,DV]; G [T,HV,DK]; Beta [T,HV];
// S0 [N,HV,DK,DV] or nil for zeros.
type KDA struct {
	Q, K, V, G, Beta, S0 []float64
	Cu                   []int32
	H, HV, DK, DV        int
	Scale                float64
}

// KDAGrads are the gradients of the inputs of a KDA call.
type KDAGrads struct{ Q, K, V, G, Beta, S0 []float64 }

// transition returns the dense matrices of token t, value head h, of the form
//
//	S_t = A S_{t-1} + beta k v',  A = B diag(alpha),  B = I - beta k k'
func (c KDA) transition(t, h int) (a, b []float64) {
	n := c.DK
	k := c.K[(t*c.H+h*c.H/c.HV)*n:][:n]
	beta := c.Beta[t*c.HV+h]
	a, b = make([]float64, n*n), make([]float64, n*n)
	for i := range n {
		for j := range n {
			if i == j {
				b[i*n+j] = 1
			}
			b[i*n+j] -= beta * k[i] * k[j]
			a[i*n+j] = b[i*n+j] * math.Exp(c.G[(t*c.HV+h)*n+j])
		}
	}
	return a, b
}

// states returns S before the first token and after each one of sequence s.
func (c KDA) states(s, h int) [][]float64 {
	S := make([]float64, c.DK*c.DV)
	if c.S0 != nil {
		copy(S, c.S0[(s*c.HV+h)*c.DK*c.DV:])
	}
	all := [][]float64{S}
	for t := int(c.Cu[s]); t < int(c.Cu[s+1]); t++ {
		a, _ := c.transition(t, h)
		k := c.K[(t*c.H+h*c.H/c.HV)*c.DK:]
		v := c.V[(t*c.HV+h)*c.DV:]
		next := make([]float64, c.DK*c.DV)
		for i := range c.DK {
			for j := range c.DV {
				sum := c.Beta[t*c.HV+h] * k[i] * v[j]
				for d := range c.DK {
					sum += a[i*c.DK+d] * S[d*c.DV+j]
				}
				next[i*c.DV+j] = sum
			}
		}
		S = next
		all = append(all, S)
	}
	return all
}

// Forward returns o [T,HV,DV] and the final states [N,HV,DK,DV] of the
// recurrence in its matrix form (Kimi Linear report):
//
//	S_t = (I - beta k k') diag(exp g) S_{t-1} + beta k v',  o_t = scale S_t' q_t
func (c KDA) Forward() (o, st []float64) {
	n := len(c.Cu) - 1
	o = make([]float64, len(c.V))
	st = make([]float64, n*c.HV*c.DK*c.DV)
	for s := range n {
		for h := range c.HV {
			all := c.states(s, h)
			for i, S := range all[1:] {
				t := int(c.Cu[s]) + i
				q := c.Q[(t*c.H+h*c.H/c.HV)*c.DK:]
				for j := range c.DV {
					for d := range c.DK {
						o[(t*c.HV+h)*c.DV+j] += c.Scale * S[d*c.DV+j] * q[d]
					}
				}
			}
			copy(st[(s*c.HV+h)*c.DK*c.DV:], all[len(all)-1])
		}
	}
	return o, st
}

// Grad differentiates Forward: do and dst are the gradients of o and of the
// final states (dst nil: zeros).
func (c KDA) Grad(do, dst []float64) KDAGrads {
	g := KDAGrads{
		make([]float64, len(c.Q)), make([]float64, len(c.K)), make([]float64, len(c.V)),
		make([]float64, len(c.G)), make([]float64, len(c.Beta)), make([]float64, (len(c.Cu)-1)*c.HV*c.DK*c.DV),
	}
	for s := range len(c.Cu) - 1 {
		for h := range c.HV {
			c.gradHead(g, s, h, do, dst)
		}
	}
	return g
}

func (c KDA) gradHead(g KDAGrads, s, h int, do, dst []float64) {
	all := c.states(s, h)
	dS := make([]float64, c.DK*c.DV)
	at := (s*c.HV + h) * c.DK * c.DV
	if dst != nil {
		copy(dS, dst[at:])
	}
	for t := int(c.Cu[s+1]) - 1; t >= int(c.Cu[s]); t-- {
		i := t - int(c.Cu[s])
		before, after := all[i], all[i+1]
		qk, gv, kv := (t*c.H+h*c.H/c.HV)*c.DK, (t*c.HV+h)*c.DK, (t*c.HV+h)*c.DV
		for d := range c.DK {
			for j := range c.DV {
				dS[d*c.DV+j] += c.Scale * c.Q[qk+d] * do[kv+j]
				g.Q[qk+d] += c.Scale * after[d*c.DV+j] * do[kv+j]
			}
		}
		a, b := c.transition(t, h)
		beta := c.Beta[t*c.HV+h]
		dA := make([]float64, c.DK*c.DK)
		for r := range c.DK {
			for d := range c.DK {
				for j := range c.DV {
					dA[r*c.DK+d] += dS[r*c.DV+j] * before[d*c.DV+j]
				}
			}
		}
		for r := range c.DK {
			for d := range c.DK {
				alpha := math.Exp(c.G[gv+d])
				dB := dA[r*c.DK+d] * alpha
				g.G[gv+d] += b[r*c.DK+d] * dA[r*c.DK+d] * alpha
				g.Beta[t*c.HV+h] -= dB * c.K[qk+r] * c.K[qk+d]
				g.K[qk+r] -= beta * dB * c.K[qk+d]
				g.K[qk+d] -= beta * dB * c.K[qk+r]
			}
			for j := range c.DV {
				g.Beta[t*c.HV+h] += dS[r*c.DV+j] * c.K[qk+r] * c.V[kv+j]
				g.K[qk+r] += beta * dS[r*c.DV+j] * c.V[kv+j]
				g.V[kv+j] += beta * dS[r*c.DV+j] * c.K[qk+r]
			}
		}
		prev := make([]float64, c.DK*c.DV)
		for d := range c.DK {
			for r := range c.DK {
				for j := range c.DV {
					prev[d*c.DV+j] += a[r*c.DK+d] * dS[r*c.DV+j]
				}
			}
		}
		dS = prev
	}
	copy(g.S0[at:], dS)
}

// KDAChunk holds the matrices of the chunked form for one chunk of one head
// (all rows of the call, Cu ignored): G [C,K] running sums of g; M, P, T [C,C]; U, Vn [C,V];
// W [C,K]; Next [K,V].
type KDAChunk struct{ G, M, P, T, U, W, Vn, Next []float64 }

// ChunkForm evaluates the chunked form of value head h with every decay written as
// exp(G_i - G_j) and the triangular system inverted row by row.
func (c KDA) ChunkForm(h, rows int) KDAChunk {
	n, nk, nv := rows, c.DK, c.DV
	x := KDAChunk{
		make([]float64, n*nk), make([]float64, n*n), make([]float64, n*n), make([]float64, n*n),
		make([]float64, n*nv), make([]float64, n*nk), make([]float64, n*nv), make([]float64, nk*nv),
	}
	k := func(i, d int) float64 { return c.K[(i*c.H+h*c.H/c.HV)*nk+d] }
	q := func(i, d int) float64 { return c.Q[(i*c.H+h*c.H/c.HV)*nk+d] }
	S := make([]float64, nk*nv)
	if c.S0 != nil {
		copy(S, c.S0[h*nk*nv:(h+1)*nk*nv])
	}
	for i := range n {
		for d := range nk {
			x.G[i*nk+d] = c.G[(i*c.HV+h)*nk+d]
			if i > 0 {
				x.G[i*nk+d] += x.G[(i-1)*nk+d]
			}
		}
		for j := 0; j <= i; j++ {
			for d := range nk {
				e := math.Exp(x.G[i*nk+d] - x.G[j*nk+d])
				x.P[i*n+j] += c.Scale * q(i, d) * k(j, d) * e
				if j < i {
					x.M[i*n+j] += k(i, d) * k(j, d) * e
				}
			}
		}
		x.T[i*n+i] = 1
		for j := 0; j < i; j++ {
			for l := j; l < i; l++ {
				x.T[i*n+j] -= c.Beta[i*c.HV+h] * x.M[i*n+l] * x.T[l*n+j]
			}
		}
		for j := 0; j <= i; j++ {
			w := x.T[i*n+j] * c.Beta[j*c.HV+h]
			for d := range nk {
				x.W[i*nk+d] += w * k(j, d) * math.Exp(x.G[j*nk+d])
			}
			for v := range nv {
				x.U[i*nv+v] += w * c.V[(j*c.HV+h)*nv+v]
			}
		}
		for v := range nv {
			x.Vn[i*nv+v] = x.U[i*nv+v]
			for d := range nk {
				x.Vn[i*nv+v] -= x.W[i*nk+d] * S[d*nv+v]
			}
		}
	}
	for d := range nk {
		last := x.G[(n-1)*nk+d]
		for v := range nv {
			sum := math.Exp(last) * S[d*nv+v]
			for i := range n {
				sum += k(i, d) * math.Exp(last-x.G[i*nk+d]) * x.Vn[i*nv+v]
			}
			x.Next[d*nv+v] = sum
		}
	}
	return x
}
