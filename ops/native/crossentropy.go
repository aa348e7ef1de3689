package native

import (
	"fmt"
	"math"
)

// This file is the cross-entropy of logits and labels, fused with log-softmax.

// CrossEntropy computes loss[1], the mean over the counted rows of
//
//	lse - logits[label] + zloss lse^2,   lse = log(sum(exp(logits)))
//
// for logits[N,V] and labels[N], and keeps lse of every row in lse[N]. A row
// whose label is ignore is not counted; count is the number of the others, and
// with none the loss is 0. It fails on a label that is neither ignore nor in
// [0,V), before it writes. The z-loss is that of arXiv:2204.02311, section 5.
func CrossEntropy[T Float](loss, lse, logits []T, labels []int32, n, v int, ignore int32, zloss float64) (count int, err error) {
	if count, err = countLabels(labels[:n], v, ignore); err != nil {
		return 0, err
	}
	per := rowsPerUnit(v)
	rows := scratch64.take(n)
	k := pick[crossEntropyArgs[T]](crossEntropy32, crossEntropy64)
	k.launch(ceilDiv(n, per), crossEntropyArgs[T]{
		lse: lse, logits: logits, labels: labels, n: n, v: v, per: per, ignore: ignore, zloss: zloss, rows: rows,
	})
	sum := 0.0
	for i, l := range labels[:n] {
		if l != ignore {
			sum += rows[i]
		}
	}
	scratch64.give(rows)
	loss[0] = T(sum / float64(max(count, 1)))
	return count, nil
}

// CrossEntropyGrad computes, from the lse that CrossEntropy kept,
//
//	dlogits[N,V] = dloss/count ((1 + 2 zloss lse) softmax(logits) - onehot(label))
//
// for dloss[1]. Rows that are not counted get 0. dlogits may be logits.
func CrossEntropyGrad[T Float](dlogits, dloss, logits, lse []T, labels []int32, n, v int, ignore int32, zloss float64) error {
	count, err := countLabels(labels[:n], v, ignore)
	if err != nil {
		return err
	}
	per := rowsPerUnit(v)
	k := pick[crossEntropyArgs[T]](crossEntropyGrad32, crossEntropyGrad64)
	k.launch(ceilDiv(n, per), crossEntropyArgs[T]{
		lse: lse, logits: logits, dlogits: dlogits, labels: labels, n: n, v: v, per: per, ignore: ignore, zloss: zloss,
		scale: float64(dloss[0]) / float64(max(count, 1)),
	})
	return nil
}

type crossEntropyArgs[T Float] struct {
	lse, logits, dlogits []T
	labels               []int32
	n, v, per            int
	ignore               int32
	zloss, scale         float64
	rows                 []float64 // the loss of each row
}

var (
	crossEntropy32     = newKernel(crossEntropyUnit[float32])
	crossEntropy64     = newKernel(crossEntropyUnit[float64])
	crossEntropyGrad32 = newKernel(crossEntropyGradUnit[float32])
	crossEntropyGrad64 = newKernel(crossEntropyGradUnit[float64])
)

func countLabels(labels []int32, v int, ignore int32) (count int, err error) {
	for i, l := range labels {
		if l == ignore {
			continue
		}
		if l < 0 || int(l) >= v {
			return 0, fmt.Errorf("label of row %d is %d, neither in [0,%d) nor the ignored %d", i, l, v, ignore)
		}
		count++
	}
	return count, nil
}

const lsePiece = 1 << 10

// rowLSE gives log(sum(exp(x))) as the largest element and what comes to it; e
// holds a piece of the row.
func rowLSE[T Float](x, e []T) (m T, logSum float64) {
	m = maxOf(x)
	if m-m != 0 { // the row holds NaN or Inf, or only -Inf: lse is m
		return m, 0
	}
	sum := 0.0
	for p := 0; p < len(x); p += lsePiece {
		q := min(p+lsePiece, len(x))
		sum += expSubSum(e[:q-p], x[p:q], m)
	}
	return m, math.Log(sum)
}

func crossEntropyUnit[T Float](a *crossEntropyArgs[T], unit int) {
	e := takeScratch[T](min(a.v, lsePiece))
	for i := unit * a.per; i < min((unit+1)*a.per, a.n); i++ {
		x := a.logits[i*a.v:][:a.v]
		m, logSum := rowLSE(x, e)
		lse := float64(m) + logSum
		a.lse[i] = T(lse)
		if l := a.labels[i]; l != a.ignore {
			a.rows[i] = float64(m) - float64(x[l]) + logSum
			if a.zloss != 0 { // 0 times an infinite lse is no loss
				a.rows[i] += a.zloss * lse * lse
			}
		}
	}
	giveScratch(e)
}

func crossEntropyGradUnit[T Float](a *crossEntropyArgs[T], unit int) {
	for i := unit * a.per; i < min((unit+1)*a.per, a.n); i++ {
		x, dx := a.logits[i*a.v:][:a.v], a.dlogits[i*a.v:][:a.v]
		l := a.labels[i]
		if l == a.ignore {
			clear(dx)
			continue
		}
		expSubSum(dx, x, a.lse[i])
		s := T(a.scale)
		if a.zloss != 0 {
			s = T(a.scale * (1 + 2*a.zloss*float64(a.lse[i])))
		}
		scale(dx, s)
		dx[l] -= T(a.scale)
	}
}

// NLL computes y[n] = log(sum(exp(logits))) - logits[id] for logits[n,v] and
// ids[n], 0 where an id is below 0. It fails on an id at or above v, before it
// writes.
func NLL[T Float](y, logits []T, ids []int32, n, v int) error {
	for i, id := range ids[:n] {
		if int(id) >= v {
			return fmt.Errorf("id of row %d is %d, not below %d", i, id, v)
		}
	}
	k := pick[nllArgs[T]](nll32, nll64)
	k.launch(n, nllArgs[T]{y, logits, ids, v})
	return nil
}

type nllArgs[T Float] struct {
	y, logits []T
	ids       []int32
	v         int
}

var (
	nll32 = newKernel(nllRow[float32])
	nll64 = newKernel(nllRow[float64])
)

func nllRow[T Float](a *nllArgs[T], i int) {
	id := a.ids[i]
	if id < 0 {
		a.y[i] = 0
		return
	}
	e, x := takeScratch[T](min(a.v, lsePiece)), a.logits[i*a.v:][:a.v]
	m, logSum := rowLSE(x, e)
	a.y[i] = T(float64(m) - float64(x[id]) + logSum)
	giveScratch(e)
}
