package optest

import "math"

// AdamW holds the settings of one step of Adam with decoupled weight decay
// (Loshchilov and Hutter, arXiv:1711.05101); Step counts from 1.
type AdamW struct {
	LR, Beta1, Beta2, Eps, Decay float64
	Step                         int
}

// Update returns the parameters and moments after the step:
//
//	m = b1 m + (1-b1) g              v = b2 v + (1-b2) g^2
//	p = p - lr decay p - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
func (a AdamW) Update(param, grad, m, v []float64) (param1, m1, v1 []float64) {
	t := float64(a.Step)
	for i, g := range grad {
		mi := a.Beta1*m[i] + (1-a.Beta1)*g
		vi := a.Beta2*v[i] + (1-a.Beta2)*g*g
		direction := mi / (1 - math.Pow(a.Beta1, t)) / (math.Sqrt(vi/(1-math.Pow(a.Beta2, t))) + a.Eps)
		param1 = append(param1, param[i]-a.LR*a.Decay*param[i]-a.LR*direction)
		m1, v1 = append(m1, mi), append(v1, vi)
	}
	return param1, m1, v1
}
