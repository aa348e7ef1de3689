package optest

import "math"

// CrossEntropyResult is the loss of a batch and what it is made of.
type CrossEntropyResult struct {
	Loss  float64   // Sum / Count, 0 where nothing is counted
	Sum   float64   // over the counted rows, z-loss included
	Count int       // rows whose label is not the ignored one
	LSE   []float64 // [N], log(sum(exp(logits))) of every row
}

// CrossEntropy returns the mean over the rows whose label is not ignore of
//
//	lse(logits) - logits[label] + zloss lse(logits)^2
//
// for logits [N, V] and labels [N]. With every label ignored the loss is 0.
func CrossEntropy(logits []float64, labels []int32, v int, ignore int32, zloss float64) CrossEntropyResult {
	r := CrossEntropyResult{LSE: make([]float64, len(labels))}
	for i, label := range labels {
		row := logits[i*v : (i+1)*v]
		_, r.LSE[i] = Softmax(row)
		if label == ignore {
			continue
		}
		r.Sum += r.LSE[i] - row[label] + zloss*r.LSE[i]*r.LSE[i]
		r.Count++
	}
	if r.Count > 0 {
		r.Loss = r.Sum / float64(r.Count)
	}
	return r
}

// CrossEntropyGrad returns dlogits for the gradient dloss of the mean: with p
// the softmax of the row, dloss/Count ((1 + 2 zloss lse) p - onehot(label)).
// Rows with an ignored label get exact zeros.
func CrossEntropyGrad(dloss float64, logits []float64, labels []int32, v int, ignore int32, zloss float64) []float64 {
	d := make([]float64, len(logits))
	count := 0
	for _, label := range labels {
		if label != ignore {
			count++
		}
	}
	for i, label := range labels {
		if label == ignore {
			continue
		}
		p, lse := Softmax(logits[i*v : (i+1)*v])
		for j := range v {
			d[i*v+j] = dloss / float64(count) * (1 + 2*zloss*lse) * p[j]
		}
		d[i*v+int(label)] -= dloss / float64(count)
	}
	return d
}

// NLL returns -log softmax(logits)[id] of every row of logits [N, V]; 0 where
// an id is below 0.
func NLL(logits []float64, ids []int32, v int) []float64 {
	y := make([]float64, len(ids))
	for i, id := range ids {
		if id >= 0 {
			p, _ := Softmax(logits[i*v : (i+1)*v])
			y[i] = -math.Log(p[id])
		}
	}
	return y
}
