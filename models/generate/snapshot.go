// What a request holds: its memory, and copies of it to go on from.

package generate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
)

// Memory is what a request holds of the session's pools, in bytes.
type Memory struct {
	States int // recurrent states: the same at any length
	Pages  int // pages of keys and values: they grow with the text
}

// Memory is what the request holds now.
func (r *Request) Memory() Memory {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	var m Memory
	for _, p := range r.s.states.All() {
		switch one := p.Type.Bytes() / p.Type.Shape[0]; {
		case strings.HasPrefix(p.Name, models.StatePools):
			m.States += one
		case r.s.paged(p):
			m.Pages += one * len(r.pages)
		}
	}
	return m
}

// paged reports that a pool is one of pages.
func (s *Session) paged(p *graph.Param) bool {
	return strings.HasPrefix(p.Name, models.PagePools) && p.Type.Shape[0] == s.pages()
}

// pagesOf is how many pages tokens fill.
func pagesOf(tokens, size int) int { return (tokens + size - 1) / size }

// rows are the places of the request's own in a pool, in order.
func (r *Request) rows(p *graph.Param) []int32 {
	switch {
	case strings.HasPrefix(p.Name, models.StatePools):
		return []int32{r.slot}
	case r.s.paged(p):
		return r.pages
	}
	return nil
}

// keeper is an executor that keeps states itself, as a device does.
type keeper interface {
	Keeps(p *graph.Param) bool
	ReadState(p *graph.Param, at int, dst []byte) error
	WriteState(p *graph.Param, at int, src []byte) error
}

// copyState copies a part of a pool, from byte at on, out of it or into it.
func (s *Session) copyState(p *graph.Param, at int, mem []byte, in bool) error {
	for _, st := range s.steps {
		k, ok := st.run.(keeper)
		switch {
		case !ok || !k.Keeps(p):
			continue
		case in:
			return k.WriteState(p, at, mem)
		}
		return k.ReadState(p, at, mem)
	}
	if pool := p.Tensor().Bytes()[at:][:len(mem)]; in {
		copy(pool, mem)
	} else {
		copy(mem, pool)
	}
	return nil
}

// Snapshot is a copy of a request in the middle of its text. It belongs to the
// model and the page size of its session, not to the session.
type Snapshot struct {
	sampling      Sampling
	tokens        []int32
	logs          []float32
	prompt        int
	given, cached int
	pageSize      int
	cache         dtype.DType
	pools         map[string][]byte
}

// Snapshot copies the request, its states and the content of its pages.
func (r *Request) Snapshot() (*Snapshot, error) {
	if err := r.usable(); err != nil {
		return nil, err
	}
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !slices.Contains(s.active, r):
		return nil, errors.New("generate: the request was removed")
	case s.failed != nil: // a step may have written half of the pages, and a device has let go of them
		return nil, s.failed
	case r.err != nil:
		return nil, r.err
	}
	n := &Snapshot{sampling: r.draws, tokens: slices.Clone(r.tokens), logs: slices.Clone(r.logs), prompt: r.prompt, given: r.given, cached: r.cached,
		pageSize: s.opts.PageSize, cache: s.opts.Cache, pools: map[string][]byte{}}
	for _, p := range s.states.All() {
		one := p.Type.Bytes() / p.Type.Shape[0]
		rows := r.rows(p)
		if s.paged(p) { // a step that was cancelled may have taken pages already
			rows = rows[:pagesOf(r.cached, s.opts.PageSize)]
		}
		all := make([]byte, len(rows)*one)
		for i, row := range rows {
			if err := s.copyState(p, int(row)*one, all[i*one:(i+1)*one], false); err != nil {
				return nil, err
			}
		}
		if len(all) > 0 {
			n.pools[p.Name] = all
		}
	}
	return n, nil
}

// Restore starts a request that goes on where the snapshot was taken, with the
// same text. A snapshot can be restored any number of times.
func (s *Session) Restore(n *Snapshot) (*Request, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	if n == nil || n.pageSize == 0 {
		return nil, errors.New("generate: Restore: the snapshot is missing: Request.Snapshot makes one")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pages := pagesOf(n.cached, n.pageSize)
	switch {
	case s.failed != nil:
		return nil, s.failed
	case len(s.active) == s.opts.Requests:
		return nil, s.busy()
	case n.pageSize != s.opts.PageSize:
		return nil, fmt.Errorf("generate: the snapshot has pages of %d tokens, the session of %d", n.pageSize, s.opts.PageSize)
	case n.cache != s.opts.Cache:
		return nil, errors.New("generate: the snapshot keeps keys and values in another type than the session")
	case len(n.tokens) > s.opts.Context:
		return nil, fmt.Errorf("%w: a snapshot of %d tokens, a context of %d", ErrContextFull, len(n.tokens), s.opts.Context)
	case len(s.free) < pages:
		return nil, fmt.Errorf("%w: no free page", ErrContextFull)
	}
	r := &Request{s: s, tokens: make([]int32, 0, s.opts.Context), prompt: n.prompt, first: s.first(n.prompt), given: n.given, cached: n.cached,
		pages: make([]int32, 0, s.perRequest()), draws: n.sampling, seen: n.sampling.newSeen(s.vocab)}
	left := len(s.free) - pages
	r.pages = append(r.pages, s.free[left:]...)
	r.slot = s.slots[len(s.slots)-1]
	known := 0
	for _, p := range s.states.All() { // all are checked before the first is written
		want := len(r.rows(p)) * (p.Type.Bytes() / p.Type.Shape[0])
		if got := len(n.pools[p.Name]); got != want {
			return nil, fmt.Errorf("generate: the snapshot is of another model: %d bytes of %s, the session has %d", got, p.Name, want)
		}
		if want > 0 {
			known++
		}
	}
	if known != len(n.pools) {
		return nil, fmt.Errorf("generate: the snapshot is of another model: it has %d pools, the session %d", len(n.pools), known)
	}
	for _, id := range n.tokens {
		if int(id) >= s.vocab {
			return nil, fmt.Errorf("generate: the snapshot is of another model: token %d, a vocabulary of %d", id, s.vocab)
		}
	}
	for _, p := range s.states.All() {
		one := p.Type.Bytes() / p.Type.Shape[0]
		for i, row := range r.rows(p) {
			if err := s.copyState(p, int(row)*one, n.pools[p.Name][i*one:(i+1)*one], true); err != nil {
				return nil, err
			}
		}
	}
	s.free, s.slots = s.free[:left], s.slots[:len(s.slots)-1]
	for _, id := range n.tokens {
		r.push(id)
	}
	if s.opts.Logprobs {
		r.logs = append(make([]float32, 0, s.opts.Context), n.logs...)
		r.logs = r.logs[:len(n.tokens)-n.prompt] // zeros where the snapshot's session computed none
	}
	s.active = append(s.active, r)
	return r, nil
}
