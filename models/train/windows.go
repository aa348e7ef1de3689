// Windows: which tokens a micro-batch is made of, as a pure function of its
// number.

package train

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Data is what a Trainer learns from and is measured by. Micro-batch i is a
// function of i alone, so that a resumed run goes on in the middle of an epoch
// and nothing but the number of steps has to be stored.
type Data interface {
	// Batch fills a micro-batch: tokens and labels are [rows, context], label
	// t of a row is what follows its token t, or ops.IgnoreIndex.
	Batch(i int64, rows int, tokens, labels []int32) error
	// Held is the number of rows that are held out for evaluation.
	Held() int
	// HeldRow fills row i of them.
	HeldRow(i int, tokens, labels []int32) error
	// Digest identifies the data and its order: a checkpoint is resumed on
	// the same data only.
	Digest() string
}

// Packed is Data whose rows hold several sequences, which do not see each
// other: the model gets the place of each token in its sequence. Positions are
// a function of the number of the micro-batch, like the rows.
type Packed interface {
	Data
	// Sequences is the largest number of sequences in a row, held-out ones
	// included.
	Sequences() int
	// Positions fills those of a micro-batch, [rows, context]: a row and a 0
	// begin a sequence, and each number after is one more.
	Positions(i int64, rows int, positions []int32) error
	// HeldPositions fills those of held-out row i.
	HeldPositions(i int, positions []int32) error
}

// Order is how the windows of the training part follow each other.
type Order string

const (
	// Random draws the start of every window from all positions, each with
	// the same probability.
	Random Order = "random"
	// Epochs cuts the text into windows that do not overlap and visits each
	// once an epoch, in another order every time.
	Epochs Order = "epochs"
)

// WindowOptions say how windows are cut from a sequence.
type WindowOptions struct {
	Context    int     `json:"context"`
	Seed       uint64  `json:"seed"`
	Order      Order   `json:"order"`
	Validation float64 `json:"validation"` // the last part of the sequence, held out
}

// Windows cuts rows out of Tokens: a row of T = Context tokens is T+1 tokens
// of the sequence, the last T of which are the labels. The training part is
// the first floor((1-Validation) N) tokens; the rest is held out and cut into
// consecutive rows, a remainder of less than T+1 tokens left over.
//
// A permutation of W windows needs no memory: it is a Feistel cipher on the
// next even number of bits, walked until it lands inside W.
type Windows struct {
	tokens *Tokens
	o      WindowOptions
	vocab  int
	train  int64 // tokens of the training part
	held   int
	row    []int32 // T+1 tokens
}

// NewWindows cuts tokens for a model of the given vocabulary. It is for one
// Trainer at a time.
func NewWindows(tokens *Tokens, vocab int, o WindowOptions) (*Windows, error) {
	fail := func(field, need string, got any) (*Windows, error) {
		return nil, &OptionError{field, need, fmt.Sprint(got)}
	}
	switch {
	case tokens == nil || tokens.parts == nil:
		return nil, errNoTokens
	case o.Context < 1:
		return fail("context", "at least 1", o.Context)
	case o.Context > math.MaxInt32:
		return fail("context", "below 2^31", o.Context)
	case o.Order != Random && o.Order != Epochs:
		return fail("order", "random or epochs", o.Order)
	case !(o.Validation >= 0 && o.Validation < 1):
		return fail("validation", "a fraction in [0,1)", o.Validation)
	case vocab < 1:
		return fail("vocab", "at least 1", vocab)
	}
	n := tokens.Len()
	w := &Windows{tokens: tokens, o: o, vocab: vocab, train: int64(float64(n) * (1 - o.Validation))}
	if w.train <= int64(o.Context) {
		return nil, fmt.Errorf("%s: is too short: a context of %d needs at least %d training tokens, there are %d (of %d, %g held out)", tokens.name(), o.Context, o.Context+1, w.train, n, o.Validation)
	}
	if rest := n - w.train; o.Validation > 0 {
		w.held = int(max(0, rest-1) / int64(o.Context))
		if w.held == 0 {
			return nil, fmt.Errorf("%s: the held-out part is too short: a context of %d needs at least %d tokens, there are %d (%g of %d)", tokens.name(), o.Context, o.Context+1, rest, o.Validation, n)
		}
	}
	w.row = make([]int32, o.Context+1)
	return w, w.scan()
}

// scan checks the beginning of the data against the vocabulary, so that a model
// for other tokens shows before the run; what follows is checked as it is read.
func (w *Windows) scan() error {
	buf := make([]int32, 1<<16)
	for at := int64(0); at < min(w.tokens.Len(), 1<<20); at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), w.tokens.Len()-at)]
		if err := w.tokens.Read(buf, at); err != nil {
			return err
		}
		if err := w.check(buf, at); err != nil {
			return err
		}
	}
	return nil
}

func (w *Windows) check(ids []int32, at int64) error {
	for i, id := range ids {
		if int(id) >= w.vocab {
			return fmt.Errorf("%s is %d, the model's vocabulary has %d ids, 0 to %d", w.tokens.locate(at+int64(i)), id, w.vocab, w.vocab-1)
		}
	}
	return nil
}

func (w *Windows) usable() error {
	if w == nil || w.tokens == nil {
		return errors.New("train: the rows are missing: NewWindows and NewDocuments make some")
	}
	return nil
}

// Len is the number of windows of an epoch.
func (w *Windows) Len() int64 { return (w.train - 1) / int64(w.o.Context) }

// Batch fills micro-batch i with rows i*B to i*B+B-1 of the order.
func (w *Windows) Batch(i int64, rows int, tokens, labels []int32) error {
	if err := w.usable(); err != nil {
		return err
	}
	t := w.o.Context
	if len(tokens) != rows*t || len(labels) != rows*t {
		return fmt.Errorf("train: a batch of %d rows of %d needs %d tokens and labels, got room for %d and %d (Context of a trainer and of its data must be the same)", rows, t, rows*t, len(tokens), len(labels))
	}
	for r := range rows {
		if err := w.fill(w.start(i*int64(rows)+int64(r)), tokens[r*t:(r+1)*t], labels[r*t:(r+1)*t]); err != nil {
			return err
		}
	}
	return nil
}

// start is where row c begins.
func (w *Windows) start(c int64) int64 {
	if w.o.Order == Random {
		return below(random(w.o.Seed, streamRandom, uint64(c)), w.train-int64(w.o.Context))
	}
	n := w.Len()
	epoch, at := c/n, c%n
	return permute(random(w.o.Seed, streamEpochs, uint64(epoch)), at, n) * int64(w.o.Context)
}

func (w *Windows) fill(at int64, tokens, labels []int32) error {
	if err := w.tokens.Read(w.row, at); err != nil {
		return err
	}
	if err := w.check(w.row, at); err != nil {
		return err
	}
	copy(tokens, w.row[:len(w.row)-1])
	copy(labels, w.row[1:])
	return nil
}

// Held is the number of held-out rows.
func (w *Windows) Held() int { return w.held }

// heldStart is where held-out row i begins.
func (w *Windows) heldStart(i int) int64 { return w.train + int64(i)*int64(w.o.Context) }

// HeldRow fills held-out row i.
func (w *Windows) HeldRow(i int, tokens, labels []int32) error {
	if err := w.usable(); err != nil {
		return err
	}
	if i < 0 || i >= w.held || len(tokens) != w.o.Context || len(labels) != w.o.Context {
		return fmt.Errorf("train: held-out rows are 0 to %d of %d tokens, got row %d and room for %d and %d", w.held-1, w.o.Context, i, len(tokens), len(labels))
	}
	return w.fill(w.heldStart(i), tokens, labels)
}

// Digest names the tokens, the cut and the order.
func (w *Windows) Digest() string {
	h := sha256.Sum256(fmt.Appendf(nil, "%s %d %d %s %g", w.tokens.Digest(), w.o.Context, w.o.Seed, w.o.Order, w.o.Validation))
	return hex.EncodeToString(h[:16])
}

// Streams keep the draws for different purposes apart.
const (
	streamRandom = 1 + iota
	streamEpochs
)

// random is number c of a stream of 64-bit random numbers: a counter through
// the finaliser of SplitMix64, keyed by another pass of it.
func random(seed, stream, c uint64) uint64 {
	key := mix(seed + stream*0x9e3779b97f4a7c15)
	return mix(key + (c+1)*0x9e3779b97f4a7c15)
}

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below maps a 64-bit random number to 0..n-1.
func below(r uint64, n int64) int64 {
	hi, _ := bits.Mul64(r, uint64(n))
	return int64(hi)
}

// permute is where index i of 0..n-1 goes under the permutation of a key: a
// Feistel network of six rounds on 2h bits, repeated while it is outside.
// There are at most 4 n values inside the network, so it takes 4 walks or less
// on average.
func permute(key uint64, i, n int64) int64 {
	h := max(1, (bits.Len64(uint64(n-1))+1)/2)
	mask := uint64(1)<<h - 1
	x := uint64(i)
	for {
		l, r := x>>h, x&mask
		for round := range uint64(6) {
			l, r = r, l^mix(key+r+round<<58)&mask
		}
		if x = l<<h | r; x < uint64(n) {
			return int64(x)
		}
	}
}
