package optest

import "math"

// ShortConv is the depthwise causal convolution with SiLU. x [T,C] packed over
// the sequences of cu, w [C,W] with the last tap on the newest sample, state
// [N,C,W-1] the samples before each sequence, oldest first (nil: zeros). Each
// sequence is first laid out with its past in front.
func ShortConv(x, w, state []float64, cu []int32, channels, width int) (y, next []float64) {
	y = make([]float64, len(x))
	next = make([]float64, (len(cu)-1)*channels*(width-1))
	for s := range len(cu) - 1 {
		for c := range channels {
			line := convLine(x, state, cu, s, c, channels, width)
			for i := range int(cu[s+1] - cu[s]) {
				a := 0.0
				for j := range width {
					a += w[c*width+j] * line[i+j]
				}
				y[(int(cu[s])+i)*channels+c] = a * Sigmoid(a)
			}
			copy(next[(s*channels+c)*(width-1):][:width-1], line[len(line)-width+1:])
		}
	}
	return y, next
}

func convLine(x, state []float64, cu []int32, s, c, channels, width int) []float64 {
	line := make([]float64, width-1)
	if state != nil {
		copy(line, state[(s*channels+c)*(width-1):])
	}
	for t := cu[s]; t < cu[s+1]; t++ {
		line = append(line, x[int(t)*channels+c])
	}
	return line
}

// ShortConvGrad differentiates ShortConv; dnext is the gradient of the final
// state (nil: zeros).
func ShortConvGrad(dy, dnext, x, w, state []float64, cu []int32, channels, width int) (dx, dw, dstate []float64) {
	dx, dw = make([]float64, len(x)), make([]float64, len(w))
	dstate = make([]float64, (len(cu)-1)*channels*(width-1))
	for s := range len(cu) - 1 {
		for c := range channels {
			line := convLine(x, state, cu, s, c, channels, width)
			dline := make([]float64, len(line))
			for i := range int(cu[s+1] - cu[s]) {
				a := 0.0
				for j := range width {
					a += w[c*width+j] * line[i+j]
				}
				sg := Sigmoid(a)
				da := dy[(int(cu[s])+i)*channels+c] * (sg + a*sg*(1-sg))
				for j := range width {
					dw[c*width+j] += da * line[i+j]
					dline[i+j] += da * w[c*width+j]
				}
			}
			if dnext != nil {
				for j := range width - 1 {
					dline[len(line)-width+1+j] += dnext[(s*channels+c)*(width-1)+j]
				}
			}
			copy(dstate[(s*channels+c)*(width-1):][:width-1], dline)
			for i := range int(cu[s+1] - cu[s]) {
				dx[(int(cu[s])+i)*channels+c] = dline[width-1+i]
			}
		}
	}
	return dx, dw, dstate
}

// KDAGate returns the log-decay g [T,H,K] of z [T,H,K] with A = exp(aLog[h])
// (nil: 1) and x = z + dtBias[h,d] (nil: 0): g = -A log(1 + exp x), or
// g = bound sigmoid(A x) where bound is not 0.
func KDAGate(z, aLog, dtBias []float64, heads, dk int, bound float64) []float64 {
	g := make([]float64, len(z))
	for i := range z {
		a, x := gateArgs(z, aLog, dtBias, heads, dk, i)
		if bound != 0 {
			g[i] = bound * Sigmoid(a*x)
		} else {
			g[i] = -a * (max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))))
		}
	}
	return g
}

func gateArgs(z, aLog, dtBias []float64, heads, dk, i int) (a, x float64) {
	a, x = 1, z[i]
	if aLog != nil {
		a = math.Exp(aLog[i/dk%heads])
	}
	if dtBias != nil {
		x += dtBias[i%(heads*dk)]
	}
	return a, x
}

// KDAGateGrad differentiates KDAGate; the last two are there whether the inputs
// are or not.
func KDAGateGrad(dg, z, aLog, dtBias []float64, heads, dk int, bound float64) (dz, daLog, ddtBias []float64) {
	dz, daLog, ddtBias = make([]float64, len(z)), make([]float64, heads), make([]float64, heads*dk)
	for i := range z {
		a, x := gateArgs(z, aLog, dtBias, heads, dk, i)
		var byX, byA float64
		if bound != 0 {
			s := Sigmoid(a * x)
			byX, byA = bound*s*(1-s)*a, bound*s*(1-s)*x
		} else {
			byX, byA = -a*Sigmoid(x), -(max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))))
		}
		dz[i] = dg[i] * byX
		daLog[i/dk%heads] += dg[i] * byA * a
		ddtBias[i%(heads*dk)] += dz[i]
	}
	return dz, daLog, ddtBias
}

// L2Norm returns y = x / sqrt(sum x^2 + eps) for each row.
func L2Norm(x []float64, d int, eps float64) []float64 {
	y := make([]float64, len(x))
	for r := range len(x) / d {
		sum := eps
		for _, v := range x[r*d : (r+1)*d] {
			sum += v * v
		}
		for i := r * d; i < (r+1)*d; i++ {
			y[i] = x[i] / math.Sqrt(sum)
		}
	}
	return y
}

// L2NormGrad applies the Jacobian (I - x x'/(sum x^2 + eps)) / root to dy.
func L2NormGrad(dy, x []float64, d int, eps float64) []float64 {
	dx := make([]float64, len(x))
	for r := range len(x) / d {
		sum := eps
		for _, v := range x[r*d : (r+1)*d] {
			sum += v * v
		}
		for i := r * d; i < (r+1)*d; i++ {
			for j := r * d; j < (r+1)*d; j++ {
				jac := -x[i] * x[j] / (sum * math.Sqrt(sum))
				if i == j {
					jac += 1 / math.Sqrt(sum)
				}
				dx[i] += jac * dy[j]
			}
		}
	}
	return dx
}

// GatedRMSNorm returns y = sigmoid(gate) w x / sqrt(mean x^2 + eps) row by row.
func GatedRMSNorm(x, gate, w []float64, eps float64) []float64 {
	y, d := make([]float64, len(x)), len(w)
	for r := range len(x) / d {
		mean := 0.0
		for _, v := range x[r*d : (r+1)*d] {
			mean += v * v / float64(d)
		}
		for i := r * d; i < (r+1)*d; i++ {
			y[i] = Sigmoid(gate[i]) * w[i-r*d] * x[i] / math.Sqrt(mean+eps)
		}
	}
	return y
}

// GatedRMSNormGrad differentiates GatedRMSNorm with the full Jacobian of a row.
func GatedRMSNormGrad(dy, x, gate, w []float64, eps float64) (dx, dgate, dw []float64) {
	d := len(w)
	dx, dgate, dw = make([]float64, len(x)), make([]float64, len(x)), make([]float64, d)
	for r := range len(x) / d {
		mean := eps
		for _, v := range x[r*d : (r+1)*d] {
			mean += v * v / float64(d)
		}
		root := math.Sqrt(mean)
		for i := range d {
			at := r*d + i
			s := Sigmoid(gate[at])
			dgate[at] = dy[at] * w[i] * x[at] / root * s * (1 - s)
			dw[i] += dy[at] * s * x[at] / root
			dx[at] += dy[at] * s * w[i] / root
			for j := range d {
				dx[r*d+j] -= dy[at] * s * w[i] * x[at] * x[r*d+j] / (float64(d) * root * mean)
			}
		}
	}
	return dx, dgate, dw
}
