// Package generate writes text with a model: sessions of requests over pages
// of keys and values, sampling, and streaming.
//
// A session packs the tokens of all its requests into one step, prompt chunks
// and single tokens alike, and keeps a plan for each size of step (powers of
// two), so that a few plans serve every length. What a request gets does not
// depend on what shares its steps.
package generate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// Model is what a session needs of a model; models.Transformer is one.
type Model interface {
	Params() *graph.Params
	Packed(b *graph.Builder, s models.Packed) *graph.Node
	Limits() (vocab, context int, eos []int32)
}

// Options of a session; zero values take the defaults.
type Options struct {
	Context  int // most tokens of a request, prompt and text; default and limit: the model's
	Requests int // most requests at a time; default 1
	PageSize int // tokens of a page, a power of two up to 256; default 16
	Chunk    int // most tokens of a step; default 256

	// Logprobs makes every step compute the log-probability of what it draws.
	Logprobs bool

	// Compute is the type of the products of the linears, and of a prompt's
	// attention: Float32, the default, or BFloat16, with activations rounded to it
	// and sums in float32, of weights in float32 or bfloat16 (see autocast.BF16; the
	// attention of a single token stays float32). That is faster where the CPU
	// multiplies bf16, for prompts above all; the logits of a token differ by as
	// much as rounding its activations once a layer makes.
	Compute dtype.DType

	// Cache is the type of the keys and values in pages: Float32, the default, or
	// Float16 or BFloat16, which round them and take half the memory. Log-probabilities
	// of SmolLM2 move by 0.0005 (rms) with Float16, 0.004 with BFloat16.
	Cache dtype.DType

	// InPlace reads weights of 16 bits only where they lie. Without it a native
	// session copies those of its linears into the order in which a token reads
	// them, which is faster and changes no bit, and gives the pages of a mapped
	// file that it copied back to the system. It makes no copy where that, with
	// the weights that are in no file and so stay beside it, takes more than half
	// of the machine's memory. Sessions of a model share the copy.
	InPlace bool

	// Compile makes what runs a step's plan; default: graph.Plan.Native. The
	// session closes what has a Close method.
	Compile func(*graph.Plan) (graph.Executor, error)
}

// ErrContextFull is the error of a request that has no room for another token.
var ErrContextFull = errors.New("generate: the context is full")

// ErrBusy is in the error of Add when the session has all the requests it can hold.
var ErrBusy = errors.New("generate: the session holds its most requests")

// Session generates for up to Requests requests at a time. It may be called
// from several goroutines; steps run one after the other.
type Session struct {
	mu     sync.Mutex
	model  Model
	opts   Options
	vocab  int
	eos    []int32
	states *graph.Params // the pools
	free   []int32       // pages
	slots  []int32       // free slots of recurrent states
	active []*Request
	steps  map[stepSize]*step
	take   []int // tokens that each active request brings to a step
	failed error

	recurrent bool // the model has states beside the pages
	rereads   bool // see models.Transformer.Rereads
}

// New makes a session. The model must have its weights.
func New(m Model, o Options) (*Session, error) {
	if graph.Missing(m) {
		return nil, errors.New("generate: New: the model is missing (nil)")
	}
	vocab, most, eos := m.Limits()
	if vocab < 1 || most < 1 {
		return nil, fmt.Errorf("generate: Limits of the model must give a vocabulary and a context of 1 or more, got %d and %d", vocab, most)
	}
	for _, x := range []struct {
		name          string
		v             *int
		standard, top int
	}{{"Context", &o.Context, most, most}, {"Requests", &o.Requests, 1, 1 << 16}, {"PageSize", &o.PageSize, 16, 256}, {"Chunk", &o.Chunk, 256, 1 << 20}} {
		if *x.v == 0 {
			*x.v = x.standard
		}
		if *x.v < 1 || *x.v > x.top {
			return nil, &ParamError{x.name, *x.v, fmt.Sprintf("1 to %d", x.top)}
		}
	}
	if o.PageSize&(o.PageSize-1) != 0 {
		return nil, &ParamError{"PageSize", o.PageSize, "a power of two"}
	}
	switch o.Compute {
	case dtype.Invalid, dtype.Float32, dtype.BFloat16:
	default:
		return nil, &ParamError{"Compute", o.Compute, "float32 or bfloat16"}
	}
	switch o.Cache {
	case dtype.Invalid, dtype.Float16, dtype.BFloat16:
	case dtype.Float32:
		o.Cache = dtype.Invalid // that of the graph
	default:
		return nil, &ParamError{"Cache", o.Cache, "float32, float16 or bfloat16"}
	}
	o.Chunk = max(o.Chunk, o.Requests) // every request can go on in every step
	if o.Compile == nil {
		o.Compile = func(p *graph.Plan) (graph.Executor, error) {
			if !o.InPlace {
				ops.FillPanels(p, 0.5)
			}
			return p.Native()
		}
	}
	s := &Session{model: m, opts: o, vocab: vocab, eos: eos, states: graph.NewParams(), steps: map[stepSize]*step{}}
	if m, ok := m.(interface{ Rereads() bool }); ok {
		s.rereads = m.Rereads()
	}
	// A step tells now what is wrong with the model, and whether the pages fit memory.
	if _, err := s.step(1, 1, false); err != nil {
		return nil, err
	}
	for p := range s.pages() {
		s.free = append(s.free, int32(s.pages()-1-p))
	}
	for r := range o.Requests {
		s.slots = append(s.slots, int32(o.Requests-1-r))
	}
	return s, nil
}

func (s *Session) perRequest() int {
	return pagesOf(s.opts.Context, s.opts.PageSize)
}
func (s *Session) pages() int { return s.perRequest() * s.opts.Requests }

func (s *Session) usable() error {
	if s == nil || s.model == nil {
		return errors.New("generate: the session is missing: New makes one")
	}
	return nil
}

// Close ends the session and frees what its executors hold outside the Go
// heap. A session that runs natively needs none.
func (s *Session) Close() error {
	if err := s.usable(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = errors.New("generate: the session is closed")
	}
	var errs []error
	for _, st := range s.steps {
		if c, ok := st.run.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	clear(s.steps)
	return errors.Join(errs...)
}

// Request is one text in the making.
type Request struct {
	s      *Session
	tokens []int32 // prompt and text
	prompt int     // of them, those that Add was given
	first  int     // what the graph takes as the position of the first
	given  int     // of them, the prompt and what Next has returned
	cached int     // of them, those whose keys and values are in pages
	pages  []int32
	slot   int32 // of its recurrent states, which its first step begins at zeros
	draws  Sampling
	seen   seen      // nil without a penalty
	logs   []float32 // of the tokens behind the prompt, their log-probabilities; nil where nobody asked
	err    error
}

func (r *Request) usable() error {
	if r == nil || r.s == nil {
		return errors.New("generate: the request is missing: Session.Add makes one")
	}
	return nil
}

// Logprob is the natural logarithm of the probability that the model gave the
// token that Next returned last, whatever the sampling made of it: 0 before the
// first one, and without Options.Logprobs.
func (r *Request) Logprob() float64 {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if at := r.given - r.prompt; at > 0 && at <= len(r.logs) {
		return float64(r.logs[at-1])
	}
	return 0
}

// Tokens is the number of tokens of the prompt and of those that Next has
// returned.
func (r *Request) Tokens() int {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.given
}

// Add starts a request. The prompt must leave room for a token.
func (s *Session) Add(prompt []int32, o Sampling) (*Request, error) {
	if err := s.check(prompt, o); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.add(prompt, o)
}

// Follow is Add for a prompt that begins as the text of r does, a turn of a chat
// for one: the new request takes over the keys and values of the tokens that
// both begin with and reads the others alone. r ends, like with Remove, unless
// there is an error; where it is nil or has ended, Follow is Add. A model with
// recurrent states cannot go back in a text: it takes over all that r has read, or
// nothing.
func (s *Session) Follow(r *Request, prompt []int32, o Sampling) (*Request, error) {
	if err := s.check(prompt, o); err != nil {
		return nil, err
	}
	if r != nil && r.s != s {
		return nil, errors.New("generate: Follow: the request must be of the same session, it is of another")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.active, r)
	if at < 0 {
		return s.add(prompt, o)
	}
	if s.failed != nil {
		return nil, s.failed
	}
	same := 0
	for same < min(r.cached, len(prompt)-1) && r.tokens[same] == prompt[same] {
		same++
	}
	if s.recurrent && same < r.cached || s.first(len(prompt)) != r.first {
		same = 0 // states and rotations begin anew
	}
	next := s.request(prompt, o)
	next.cached, next.slot = same, r.slot
	used := pagesOf(same, s.opts.PageSize)
	next.pages = append(next.pages, r.pages[:used]...)
	s.free = append(s.free, r.pages[used:]...)
	r.pages = r.pages[:0]
	s.active[at] = next
	return next, nil
}

// check refuses what no request can be.
func (s *Session) check(prompt []int32, o Sampling) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := o.Check(); err != nil {
		return err
	}
	if len(prompt) == 0 {
		return errors.New("generate: the prompt has no tokens")
	}
	for i, id := range prompt {
		if id < 0 || int(id) >= s.vocab {
			return fmt.Errorf("generate: token %d of the prompt is %d, the vocabulary has %d", i, id, s.vocab)
		}
	}
	if len(prompt) >= s.opts.Context {
		return fmt.Errorf("%w: a prompt of %d tokens, a context of %d", ErrContextFull, len(prompt), s.opts.Context)
	}
	return nil
}

// busy is ErrBusy with the number, and where it comes from.
func (s *Session) busy() error {
	return fmt.Errorf("%w, %d by Options.Requests", ErrBusy, s.opts.Requests)
}

// add starts a request on new pages.
func (s *Session) add(prompt []int32, o Sampling) (*Request, error) {
	if s.failed != nil {
		return nil, s.failed
	}
	if len(s.active) == s.opts.Requests {
		return nil, s.busy()
	}
	r := s.request(prompt, o)
	r.slot, s.slots = s.slots[len(s.slots)-1], s.slots[:len(s.slots)-1]
	s.active = append(s.active, r)
	return r, nil
}

// request is one with a prompt and nothing read of it.
func (s *Session) request(prompt []int32, o Sampling) *Request {
	// Room for the whole context, so that a step never allocates.
	r := &Request{s: s, tokens: make([]int32, 0, s.opts.Context), prompt: len(prompt), first: s.first(len(prompt)), given: len(prompt),
		pages: make([]int32, 0, s.perRequest()), draws: o, seen: o.newSeen(s.vocab)}
	for _, id := range prompt {
		r.push(id)
	}
	if s.opts.Logprobs {
		r.logs = make([]float32, 0, s.opts.Context)
	}
	return r
}

// push puts a token at the end of the text.
func (r *Request) push(id int32) {
	r.tokens = append(r.tokens, id)
	r.seen.add(id)
}

// Remove ends a request and gives its pages and its slot back.
func (s *Session) Remove(r *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.active, r); i >= 0 {
		s.active = slices.Delete(s.active, i, i+1)
		slices.Reverse(r.pages) // the next request gets them in their order, which reads best
		s.free = append(s.free, r.pages...)
		r.pages = r.pages[:0]
		s.slots = append(s.slots, r.slot)
	}
}

// Next runs steps until the request has another token, and returns it. Other
// requests of the session go on in the same steps.
func (r *Request) Next(ctx context.Context) (int32, error) {
	for {
		// Between its steps, of a long prompt, others take what these gave them.
		if id, drawn, err := r.step(ctx); drawn || err != nil {
			return id, err
		}
	}
}

// step returns the next token where there is one, and else runs a step.
func (r *Request) step(ctx context.Context) (id int32, drawn bool, err error) {
	if err := r.usable(); err != nil {
		return 0, false, err
	}
	s := r.s
	if ctx == nil {
		return 0, false, errors.New("generate: the context is missing (nil)")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !slices.Contains(s.active, r):
		return 0, false, errors.New("generate: the request was removed")
	case r.given < len(r.tokens): // a step of this or of another request has drawn it
		r.given++
		return r.tokens[r.given-1], true, nil
	case r.err != nil:
		return 0, false, r.err
	case len(r.tokens) == s.opts.Context:
		return 0, false, fmt.Errorf("%w: %d tokens", ErrContextFull, s.opts.Context)
	}
	return 0, false, s.advance(ctx)
}

// advance runs one step over the active requests.
func (s *Session) advance(ctx context.Context) error {
	if s.failed != nil {
		return s.failed
	}
	s.take = s.take[:0]
	total, penalised := 0, false
	for i, r := range s.active {
		penalised = penalised || r.seen != nil
		if s.rereads && r.cached > 0 {
			if first := s.first(len(r.tokens)); first != r.first {
				r.first, r.cached = first, 0
			}
		}
		// Every later request keeps room for one token.
		n := min(len(r.tokens)-r.cached, s.opts.Chunk-total-(len(s.active)-i-1))
		if r.given < len(r.tokens) || len(r.tokens) == s.opts.Context || r.err != nil {
			n = 0 // nobody waits for its next token
		}
		s.take = append(s.take, n)
		total += n
	}
	st, err := s.step(total, len(s.active), penalised)
	if err != nil {
		return err
	}
	if err := st.fill(s); err != nil {
		return err
	}
	if s.recurrent {
		// Recurrent states move on in place: a step on them ends once it has
		// begun.
		if err := ctx.Err(); err != nil {
			return err
		}
		ctx = context.Background()
	}
	if err := st.run.Do(ctx, st.feeds); err != nil {
		if ctx.Err() == nil {
			// Pages may be half written; what follows would be wrong text.
			s.failed = fmt.Errorf("generate: a step failed, the session is over: %w", err)
			return s.failed
		}
		return err // the step can be taken again: it writes the same rows
	}
	drawn, err := st.run.Value(st.drawn)
	if err != nil {
		return err
	}
	var costs []float32
	if st.costs != nil {
		v, err := st.run.Value(st.costs)
		if err != nil {
			return err
		}
		costs = graph.Data[float32](v)
	}
	for i, id := range graph.Data[int32](drawn)[:len(s.active)] {
		r := s.active[i]
		r.cached += s.take[i]
		switch {
		case id >= 0:
			r.push(id)
			if costs != nil {
				r.logs = append(r.logs, -costs[i])
			}
		case id != native.NoDraw:
			r.err = noToken(id)
		}
	}
	return nil
}
