// The steps of a session: a plan for each size, and what it is fed.

package generate

import (
	"errors"
	"fmt"

	"github.com/seafan/seafan/autocast"
	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/native"
)

// The inputs of a step besides the model's.
const (
	inputDraws = "draws"
	inputSeen  = "seen"
)

// stepSize says which plan serves a step.
type stepSize struct {
	tokens, requests int
	penalised        bool
}

// step is a plan for one size of step, with its inputs. The draw of the next
// tokens is its last node: logits stay where the plan runs.
type step struct {
	run   graph.Executor
	drawn *graph.Node
	costs *graph.Node // what they cost in nats; nil where nobody asked
	feeds graph.Feeds

	tokens, positions, slots, qo, indptr, indices, lastLen, lastRow, stateSlots, starts, draws, seen []int32
}

// step finds or builds the plan that holds so many tokens and requests.
func (s *Session) step(tokens, requests int, penalised bool) (*step, error) {
	key := stepSize{powerOfTwo(tokens), powerOfTwo(requests), penalised}
	if st := s.steps[key]; st != nil {
		return st, nil
	}
	t, r, words := key.tokens, key.requests, (s.vocab+31)/32
	indices := s.pages()
	b := graph.New(graph.Share(s.model.Params()), graph.States(s.states))
	st := &step{}
	logits := s.model.Packed(b, s.shape(t, r))
	if err := b.Err(); err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	if want := graph.T(b.Float(), r, s.vocab); logits == nil || !logits.Type().Equal(want) {
		return nil, fmt.Errorf("generate: Packed of the model must give logits %s, for %d requests and the vocabulary of Limits, got %s", want, r, logits)
	}
	if s.opts.Compute == dtype.BFloat16 {
		rounded, _, err := autocast.BF16(b, autocast.Filter{})
		if err != nil {
			return nil, fmt.Errorf("generate: %w", err)
		}
		b, logits = rounded, rounded.Node(logits.Name())
	}
	var seen []*graph.Node
	if penalised {
		seen = append(seen, b.Input(inputSeen, dtype.Int32, r, words))
	}
	st.drawn = ops.Sampling(logits, b.Input(inputDraws, dtype.Int32, r, native.DrawWords), seen...)
	outs := []*graph.Node{st.drawn}
	if s.opts.Logprobs {
		st.costs = ops.NLL(logits, st.drawn)
		outs = append(outs, st.costs)
	}
	plan, err := b.Plan(outs...)
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	if st.run, err = s.opts.Compile(plan); err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	if graph.Missing(st.run) {
		return nil, errors.New("generate: Options.Compile gave no executor (nil)")
	}
	asked := map[string]bool{} // not every model has pages, or states
	for _, in := range plan.Inputs() {
		asked[in.Name()] = true
	}
	s.recurrent = asked[models.PackedStateSlots]
	st.feeds = graph.Feeds{}
	for name, x := range map[string]struct {
		to *[]int32
		n  int
	}{
		models.PackedTokens: {&st.tokens, t}, models.PackedPositions: {&st.positions, t}, models.PackedSlots: {&st.slots, t},
		models.PackedQOIndptr: {&st.qo, r + 1}, models.PackedPageIndptr: {&st.indptr, r + 1}, models.PackedPageIndices: {&st.indices, indices},
		models.PackedLastPageLen: {&st.lastLen, r}, models.PackedLastRows: {&st.lastRow, r},
		models.PackedStateSlots: {&st.stateSlots, r}, models.PackedStateStarts: {&st.starts, r},
		inputDraws: {&st.draws, r * native.DrawWords}, inputSeen: {&st.seen, r * words},
	} {
		*x.to = make([]int32, x.n)
		if asked[name] {
			st.feeds[name] = *x.to
		}
	}
	s.steps[key] = st
	return st, nil
}

// shape is that of the graphs of the session.
func (s *Session) shape(tokens, requests int) models.Packed {
	return models.Packed{Tokens: tokens, Requests: requests, Pages: s.pages(), PageSize: s.opts.PageSize, Indices: s.pages(), Slots: s.opts.Requests, Cache: s.opts.Cache}
}

// first is what the graphs take as the position of the first token of a request
// with such a prompt; see models.Transformer.FirstPosition.
func (s *Session) first(prompt int) int {
	if m, ok := s.model.(interface {
		FirstPosition(s models.Packed, prompt int) int
	}); ok {
		return m.FirstPosition(s.shape(1, 1), prompt)
	}
	return 0
}

func powerOfTwo(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// fill lays out a step in which request i brings s.take[i] tokens, and gives
// the requests the pages they need.
func (st *step) fill(s *Session) error {
	size := s.opts.PageSize
	row, page := 0, 0
	for i, r := range s.active {
		end := r.cached + s.take[i]
		for len(r.pages)*size < end {
			if len(s.free) == 0 {
				return fmt.Errorf("%w: no free page", ErrContextFull)
			}
			r.pages = append(r.pages, s.free[len(s.free)-1])
			s.free = s.free[:len(s.free)-1]
		}
		for at := r.cached; at < end; at++ {
			st.tokens[row] = r.tokens[at]
			st.positions[row] = int32(r.first + at)
			st.slots[row] = r.pages[at/size]*int32(size) + int32(at%size)
			row++
		}
		// A step that was cancelled may have taken more than this one reaches.
		page += copy(st.indices[page:], r.pages[:pagesOf(end, size)])
		st.qo[i+1], st.indptr[i+1] = int32(row), int32(page)
		st.lastLen[i] = int32((end+size-1)%size + 1)
		st.lastRow[i] = int32(max(row-1, 0))
		st.stateSlots[i], st.starts[i] = -1, 0
		number := -1
		if s.take[i] > 0 {
			st.stateSlots[i] = r.slot
			if end == len(r.tokens) {
				number = end
			}
		}
		r.draws.draw(number).Put(st.draws[i*native.DrawWords:])
		if r.seen != nil {
			copy(st.seen[i*len(r.seen):], r.seen)
		}
		if r.cached == 0 {
			st.starts[i] = 1
		}
	}
	for i := len(s.active); i < len(st.lastLen); i++ {
		Sampling{}.draw(-1).Put(st.draws[i*native.DrawWords:])
		st.qo[i+1], st.indptr[i+1], st.lastLen[i], st.lastRow[i] = int32(row), int32(page), 0, 0
		st.stateSlots[i], st.starts[i] = -1, 0
	}
	for ; row < len(st.tokens); row++ {
		st.tokens[row], st.positions[row], st.slots[row] = 0, 0, -1
	}
	return nil
}
