package native

// This file moves columns: rows split into parts, and the keys and values of
// latent attention put together from their parts. For decode it has the products
// that let queries meet the latents themselves.

type columnsArgs[T Float] struct {
	to, from   []T
	rows, n    int // n columns of each row
	toLd, toAt int
	frLd, frAt int
}

const columnRows = 64 // rows of a unit

var (
	columns32 = newKernel(columnsUnit[float32])
	columns64 = newKernel(columnsUnit[float64])
)

// CopyColumns copies n columns of every row from from[:, fromAt:] of row length
// fromLd to to[:, toAt:] of row length toLd. A nil from writes zeros.
func CopyColumns[T Float](to []T, toLd, toAt int, from []T, fromLd, fromAt, rows, n int) {
	pick[columnsArgs[T]](columns32, columns64).launch(ceilDiv(rows, columnRows), columnsArgs[T]{
		to: to, from: from, rows: rows, n: n, toLd: toLd, toAt: toAt, frLd: fromLd, frAt: fromAt})
}

func columnsUnit[T Float](a *columnsArgs[T], unit int) {
	for r := unit * columnRows; r < min((unit+1)*columnRows, a.rows); r++ {
		to := a.to[r*a.toLd+a.toAt:][:a.n]
		if a.from == nil {
			clear(to)
			continue
		}
		copy(to, a.from[r*a.frLd+a.frAt:][:a.n])
	}
}

// Latent is the geometry of latent attention: Tokens rows, H heads whose keys
// are N numbers of their own and P that all heads share, and values of V.
type Latent struct{ Tokens, H, N, P, V int }

type latentArgs[T Float] struct {
	Latent
	kv, p, k, v []T
}

var (
	latent32     = newKernel(latentUnit[float32])
	latent64     = newKernel(latentUnit[float64])
	latentGrad32 = newKernel(latentGradUnit[float32])
	latentGrad64 = newKernel(latentGradUnit[float64])
)

// LatentKV writes the keys k [T,H,N+P] and values v [T,H,V] of kv [T,H,N+V],
// per head its own part of the key and the value, and p [T,P], the part of the
// key that all heads share.
func LatentKV[T Float](k, v, kv, p []T, s Latent) {
	pick[latentArgs[T]](latent32, latent64).launch(ceilDiv(s.Tokens, columnRows), latentArgs[T]{Latent: s, kv: kv, p: p, k: k, v: v})
}

func latentUnit[T Float](a *latentArgs[T], unit int) {
	for t := unit * columnRows; t < min((unit+1)*columnRows, a.Tokens); t++ {
		p := a.p[t*a.P:][:a.P]
		for h := t * a.H; h < (t+1)*a.H; h++ {
			kv := a.kv[h*(a.N+a.V):][:a.N+a.V]
			k := a.k[h*(a.N+a.P):][:a.N+a.P]
			copy(k, kv[:a.N])
			copy(k[a.N:], p)
			copy(a.v[h*a.V:][:a.V], kv[a.N:])
		}
	}
}

// LatentKVGrad writes dkv and dp from dk and dv; dp sums over the heads in
// order. A nil dk or dv stands for zeros.
func LatentKVGrad[T Float](dkv, dp, dk, dv []T, s Latent) {
	pick[latentArgs[T]](latentGrad32, latentGrad64).launch(ceilDiv(s.Tokens, columnRows), latentArgs[T]{Latent: s, kv: dkv, p: dp, k: dk, v: dv})
}

func latentGradUnit[T Float](a *latentArgs[T], unit int) {
	for t := unit * columnRows; t < min((unit+1)*columnRows, a.Tokens); t++ {
		p := a.p[t*a.P:][:a.P]
		clear(p)
		for h := t * a.H; h < (t+1)*a.H; h++ {
			kv := a.kv[h*(a.N+a.V):][:a.N+a.V]
			clear(kv)
			if a.k != nil {
				k := a.k[h*(a.N+a.P):][:a.N+a.P]
				copy(kv, k[:a.N])
				for i, d := range k[a.N:] {
					p[i] += d
				}
			}
			if a.v != nil {
				copy(kv[a.N:], a.v[h*a.V:][:a.V])
			}
		}
	}
}

type latentHeadArgs[T Float] struct {
	Latent
	y, x, w []T
	stored  []byte // instead of w, in 16 bits
	coding  Coding
	r       int
}

// rows are n rows of w from row `from` on, widened in scratch where it is stored in 16 bits.
func (a *latentHeadArgs[T]) rows(from, n int) []T {
	if a.stored == nil {
		return a.w[from*a.r:]
	}
	w := takeScratch[T](n * a.r)
	a.coding.widen(any(w).([]float32), a.stored[2*from*a.r:])
	return w
}

func (a *latentHeadArgs[T]) done(w []T) {
	if a.stored != nil {
		giveScratch(w)
	}
}

var (
	latentQuery32 = newKernel(latentQueryUnit[float32])
	latentQuery64 = newKernel(latentQueryUnit[float64])
	latentValue32 = newKernel(latentValueUnit[float32])
	latentValue64 = newKernel(latentValueUnit[float64])
)

// LatentQuery writes y [T,H,R+P] = [Wk_h' q_h[:N] | q_h[N:]] of q [T,H,N+P] with
// Wk_h the first N rows of head h of w [H,N+V,R].
func LatentQuery[T Float](y, q, w []T, r int, s Latent) {
	pick[latentHeadArgs[T]](latentQuery32, latentQuery64).launch(ceilDiv(s.Tokens, columnRows)*s.H, latentHeadArgs[T]{Latent: s, y: y, x: q, w: w, r: r})
}

// LatentQueryStored is LatentQuery with w stored in 16 bits, of which a head is widened at a time.
func LatentQueryStored(y, q []float32, w []byte, c Coding, r int, s Latent) {
	latentQuery32.launch(ceilDiv(s.Tokens, columnRows)*s.H, latentHeadArgs[float32]{Latent: s, y: y, x: q, stored: w, coding: c, r: r})
}

func latentQueryUnit[T Float](a *latentHeadArgs[T], unit int) {
	h, t0 := unit%a.H, unit/a.H*columnRows
	n := min(columnRows, a.Tokens-t0)
	in, out := a.N+a.P, a.r+a.P
	x, y := a.x[(t0*a.H+h)*in:], a.y[(t0*a.H+h)*out:]
	w := a.rows(h*(a.N+a.V), a.N)
	gemmSerial(false, false, n, a.r, a.N, 1, x, a.H*in, w, a.r, 0, y, a.H*out)
	a.done(w)
	for t := range n {
		copy(y[t*a.H*out+a.r:][:a.P], x[t*a.H*in+a.N:])
	}
}

// LatentValue writes y [T,H,V] = Wv_h o_h of o [T,H,R] with Wv_h the last V rows
// of head h of w [H,N+V,R].
func LatentValue[T Float](y, o, w []T, r int, s Latent) {
	pick[latentHeadArgs[T]](latentValue32, latentValue64).launch(ceilDiv(s.Tokens, columnRows)*s.H, latentHeadArgs[T]{Latent: s, y: y, x: o, w: w, r: r})
}

// LatentValueStored is LatentValue with w stored in 16 bits, of which a head is widened at a time.
func LatentValueStored(y, o []float32, w []byte, c Coding, r int, s Latent) {
	latentValue32.launch(ceilDiv(s.Tokens, columnRows)*s.H, latentHeadArgs[float32]{Latent: s, y: y, x: o, stored: w, coding: c, r: r})
}

func latentValueUnit[T Float](a *latentHeadArgs[T], unit int) {
	h, t0 := unit%a.H, unit/a.H*columnRows
	w := a.rows(h*(a.N+a.V)+a.N, a.V)
	gemmSerial(false, true, min(columnRows, a.Tokens-t0), a.V, a.r, 1, a.x[(t0*a.H+h)*a.r:], a.H*a.r, w, a.r, 0, a.y[(t0*a.H+h)*a.V:], a.H*a.V)
	a.done(w)
}
