package native

import "fmt"

// This file is the embedding table and its gradient.

// Embedding computes y[T,D] = w[ids], the rows of w[V,D] that the ids of T
// tokens name. It fails, before it writes, on an id outside [0,V).
func Embedding[T Float](y, w []T, ids []int32, n, v, d int) error {
	if err := checkIDs(ids[:n], v); err != nil {
		return err
	}
	per := rowsPerUnit(d)
	k := pick[embeddingArgs[T]](embedding32, embedding64)
	k.launch(ceilDiv(n, per), embeddingArgs[T]{y: y, w: w, ids: ids, n: n, d: d, per: per})
	return nil
}

// EmbeddingGrad computes dw[V,D], for each row of the table the sum of dy[T,D]
// over the tokens that read it, in float64 and in the order of the tokens. Rows
// that no token reads are 0. It fails as Embedding does.
func EmbeddingGrad[T Float](dw, dy []T, ids []int32, n, v, d int) error {
	if err := checkIDs(ids[:n], v); err != nil {
		return err
	}
	// A counting sort: the tokens of id are order[start[id]:start[id+1]].
	order, start := scratchIndex.take(n), scratchIndex.take(v+1)
	clear(start)
	for _, id := range ids[:n] {
		start[id+1]++
	}
	for id := range v {
		start[id+1] += start[id]
	}
	for t, id := range ids[:n] {
		order[start[id]] = int32(t)
		start[id]++ // ends as the start of id+1
	}
	copy(start[1:], start[:v])
	start[0] = 0
	k := pick[embeddingArgs[T]](embeddingGrad32, embeddingGrad64)
	k.launch(ceilDiv(v, embeddingRows), embeddingArgs[T]{y: dy, w: dw, order: order, start: start, v: v, d: d})
	scratchIndex.give(order)
	scratchIndex.give(start)
	return nil
}

// embeddingRows is how many rows of the table a unit of the gradient sums.
const embeddingRows = 8

var scratchIndex scratch[int32]

type embeddingArgs[T Float] struct {
	y, w              []T
	ids, order, start []int32
	n, v, d, per      int
}

var (
	embedding32     = newKernel(embeddingUnit[float32])
	embedding64     = newKernel(embeddingUnit[float64])
	embeddingGrad32 = newKernel(embeddingGradUnit[float32])
	embeddingGrad64 = newKernel(embeddingGradUnit[float64])
)

func checkIDs(ids []int32, v int) error {
	for t, id := range ids {
		if id < 0 || int(id) >= v {
			return fmt.Errorf("token %d is %d, not in [0,%d)", t, id, v)
		}
	}
	return nil
}

func embeddingUnit[T Float](a *embeddingArgs[T], unit int) {
	for t := unit * a.per; t < min((unit+1)*a.per, a.n); t++ {
		copy(a.y[t*a.d:][:a.d], a.w[int(a.ids[t])*a.d:])
	}
}

func embeddingGradUnit[T Float](a *embeddingArgs[T], unit int) {
	d := a.d
	sums := scratch64.take(d)
	for id := unit * embeddingRows; id < min((unit+1)*embeddingRows, a.v); id++ {
		dw := a.w[id*d:][:d]
		tokens := a.order[a.start[id]:a.start[id+1]]
		if len(tokens) == 0 {
			clear(dw)
			continue
		}
		clear(sums)
		for _, t := range tokens {
			for j, v := range a.y[int(t)*d:][:d] {
				sums[j] += float64(v)
			}
		}
		for j, s := range sums {
			dw[j] = T(s)
		}
	}
	scratch64.give(sums)
}
