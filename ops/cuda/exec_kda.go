package cuda

import (
	"errors"
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops"
	cpu "github.com/seafan/seafan/ops/native"
)

// Kimi Delta Attention and what is around it. Decays, write strengths and states are f32 whatever the compute dtype is.
func init() {
	Register("short_conv", shortConvBody)
	Register("short_conv_slots", shortConvSlotsBody)
	Register("l2norm", l2NormBody)
	Register("kda_gate", kdaGateBody)
	Register("kda_beta", kdaBetaBody)
	Register("gated_rmsnorm", gatedRMSNormBody)
	Register("kda", kdaBody)
	Register("kda_slots", kdaSlotsBody)
}

// wideInputs are the inputs of an op that its kernels take in f32: fed ones are sent so, and states are kept so.
func wideInputs(op graph.Op) []int {
	switch o := op.(type) {
	case ops.KDAOp:
		if o.S0 {
			return []int{3, 4, 5}
		}
		return []int{3, 4}
	case ops.KDASlotsOp:
		return []int{3, 4, 5}
	case ops.ShortConvOp:
		if o.State {
			return []int{1, 2}
		}
		return []int{1}
	case ops.ShortConvSlotsOp, ops.KDAGateOp:
		return []int{1, 2}
	case ops.GatedRMSNormOp:
		return []int{2}
	}
	return nil
}

// wideResult says that an op's first result is f32.
func wideResult(op graph.Op) bool {
	switch op.(type) {
	case ops.KDAGateOp, ops.KDABetaOp, ops.FP8StepsOp, ops.AmaxOp:
		return true
	}
	return false
}

func l2NormBody(c *Call) error {
	t := c.In[0].Type()
	n := L2Norm{Type: c.Type(), Rows: rowsOf(t), D: lastDim(t), Eps: float32(c.Node.Op().(ops.L2NormOp).Eps), Y: c.Output(0)}
	if err := c.inputs(0, &n.X); err != nil {
		return err
	}
	return n.Launch(c)
}

func gatedRMSNormBody(c *Call) error {
	t := c.In[0].Type()
	n := GatedRMSNorm{Type: c.Type(), Rows: rowsOf(t), D: lastDim(t), Eps: float32(c.Node.Op().(ops.GatedRMSNormOp).Eps), Y: c.Output(0)}
	if err := errors.Join(c.inputs(0, &n.X, &n.Gate), c.wide(2, &n.W)); err != nil {
		return err
	}
	return n.Launch(c)
}

func kdaGateBody(c *Call) error {
	t := c.In[0].Type()
	g := KDAGate{Type: c.p.stored(c.In[0]), H: t.Shape[t.Rank()-2], DK: lastDim(t), Bound: float32(c.Node.Op().(ops.KDAGateOp).Bound), G: c.Output(0)}
	g.T = t.Size() / (g.H * g.DK)
	var err error
	if g.Z, err = c.InputAs(0, g.Type); err != nil {
		return err
	}
	if err := c.wide(1, &g.ALog, &g.DtBias); err != nil {
		return err
	}
	return g.Launch(c)
}

func kdaBetaBody(c *Call) error {
	b := KDABeta{Type: c.p.stored(c.In[0]), N: int64(c.Node.Type().Size()), Factor: 1, Y: c.Output(0)}
	if c.Node.Op().(ops.KDABetaOp).Double {
		b.Factor = 2
	}
	var err error
	if b.B, err = c.InputAs(0, b.Type); err != nil {
		return err
	}
	return b.Launch(c)
}

// wide reads inputs from first on in f32.
func (c *Call) wide(first int, to ...*Pointer) error {
	for i, q := range to {
		var err error
		if *q, err = c.InputAs(first+i, F32); err != nil {
			return err
		}
	}
	return nil
}

// packing is how packed tokens are cut into sequences, on the host: at a fed array of borders, or evenly.
type packing struct {
	borders *graph.Node // cu_seqlens or qo_indptr; nil: even
	n       int         // sequences
	tokens  int
}

func (c *Call) packing(op string, packed bool, tokens int, shape []int) (packing, error) {
	if !packed {
		return packing{n: shape[0], tokens: tokens}, nil
	}
	at := len(c.In) - 1
	if !c.fed(at) {
		return packing{}, unsupported(op, "cu_seqlens %s is not fed: the host looks at the sequences before a run", c.In[at].Name())
	}
	cu := c.In[at]
	c.Check([3]any{"cu_seqlens", cu, tokens}, func(f graph.Feeds) error {
		if err := cpu.CheckCuSeqlens(ints(f, cu), tokens); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return nil
	})
	return packing{borders: cu, n: cu.Dim(0) - 1, tokens: tokens}, nil
}

// bounds are the tokens of sequence s.
func (k packing) bounds(f graph.Feeds, s int) (lo, hi int) {
	if k.borders == nil {
		l := k.tokens / k.n
		return s * l, (s + 1) * l
	}
	b := ints(f, k.borders)
	return int(b[s]), int(b[s+1])
}

// chunks is the most chunks that the tokens can make.
func (k packing) chunks() int {
	if k.borders == nil {
		return k.n * ceilDiv(k.tokens/k.n, KDAChunk)
	}
	return k.tokens/KDAChunk + min(k.n, k.tokens)
}

// slotted are the requests of a step on pools of states, all fed.
type slotted struct {
	packing
	slots, starts *graph.Node
}

// slot is the number of a request's state for a kernel, and several says that its tokens are not one: a single one takes a
// step of the recurrence, so that it has the same bits whatever else is in the step.
func (s slotted) slot(f graph.Feeds, r int) int32 {
	if s.slots == nil {
		return int32(r)
	}
	n := ints(f, s.slots)[r]
	if n >= 0 && ints(f, s.starts)[r] != 0 {
		n |= kdaFresh
	}
	return n
}

func (s slotted) several(f graph.Feeds, r int) bool {
	lo, hi := s.bounds(f, r)
	return s.slots == nil || hi-lo > 1 || hi == lo && s.slot(f, r)&kdaFresh != 0 && s.slot(f, r) >= 0
}

func (s slotted) any(f graph.Feeds) bool {
	for r := range s.n {
		if s.several(f, r) {
			return true
		}
	}
	return false
}

// table is the table of the sequences that are not single tokens.
func (c *Call) sequences(s slotted) KDASequences {
	t := c.Prepared([2]any{"sequences", s}, "sequences", 4*s.n, func(dst []int32, f graph.Feeds) {
		chunk := int32(0)
		for r := range s.n {
			lo, hi := s.bounds(f, r)
			row := dst[4*r:][:4]
			row[0], row[1], row[2], row[3] = int32(lo), int32(hi-lo), s.slot(f, r), chunk
			if !s.several(f, r) {
				row[1] = -1
				continue
			}
			chunk += int32(ceilDiv(hi-lo, KDAChunk))
		}
	})
	return KDASequences{N: s.n, Table: t}
}

// owners names the sequence of each token, -1 for those of nobody.
func (c *Call) owners(s slotted) Pointer {
	return c.Prepared([2]any{"owners", s}, "owners", s.tokens, func(dst []int32, f graph.Feeds) {
		for i := range dst {
			dst[i] = -1
		}
		for r := range s.n {
			for lo, hi := s.bounds(f, r); lo < hi; lo++ {
				dst[lo] = int32(r)
			}
		}
	})
}

// chunkTable lists the chunks of the sequences that are not single tokens.
func (c *Call) chunkTable(s slotted) Pointer {
	return c.Prepared([2]any{"chunks", s}, "chunks", 2*s.chunks(), func(dst []int32, f graph.Feeds) {
		clear(dst)
		for r := range s.n {
			lo, hi := s.bounds(f, r)
			if !s.several(f, r) {
				continue
			}
			for ; lo < hi; lo += KDAChunk {
				dst[0], dst[1] = int32(lo), int32(min(KDAChunk, hi-lo))
				dst = dst[2:]
			}
		}
	})
}

// steps are the entries of the requests that bring one token: by rows where there are no more rows than requests, and then
// rows of others get zeros; else by requests.
func (c *Call) steps(s slotted) (StepRows, bool) {
	byRow := s.tokens <= s.n
	n := min(s.tokens, s.n)
	slots := c.Prepared([2]any{"step slots", s}, "step_slots", n, func(dst []int32, f graph.Feeds) {
		for i := range dst {
			dst[i] = -1
		}
		for r := range s.n {
			lo, hi := s.bounds(f, r)
			switch {
			case hi-lo != 1:
			case byRow:
				dst[lo] = s.slot(f, r)
			default:
				dst[r] = s.slot(f, r)
			}
		}
	})
	rows := StepRows{N: n, Slots: slots}
	if !byRow {
		rows.Rows = c.Prepared([2]any{"step rows", s}, "step_rows", n, func(dst []int32, f graph.Feeds) {
			for r := range s.n {
				lo, hi := s.bounds(f, r)
				if dst[r] = -1; hi-lo == 1 {
					dst[r] = int32(lo)
				}
			}
		})
	}
	return rows, byRow
}

// slotted reads the last three inputs: qo_indptr, slots and starts.
func (c *Call) slotted(op string, tokens, pool int) (slotted, error) {
	at := len(c.In) - 3
	for i := at; i < len(c.In); i++ {
		if !c.fed(i) {
			return slotted{}, unsupported(op, "%s is not fed: the host looks at the requests before a run", c.In[i].Name())
		}
	}
	s := slotted{packing{borders: c.In[at], n: c.In[at].Dim(0) - 1, tokens: tokens}, c.In[at+1], c.In[at+2]}
	c.Check([3]any{"slots", s, pool}, func(f graph.Feeds) error {
		if err := cpu.CheckIndptr("qo_indptr", ints(f, s.borders), s.n, tokens); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return cpu.CheckKDASlots(ints(f, s.slots), pool)
	})
	return s, nil
}

// mixedOnly makes what is queued until the function that it returns part of the runs alone in which a request brings several
// tokens.
func (c *Call) mixedOnly(s slotted) func() {
	c.p.several(s, s.any)
	c.mixed = true
	return func() { c.mixed = false }
}

func shortConvBody(c *Call) error {
	const op = "short_conv"
	o, x, w := c.Node.Op().(ops.ShortConvOp), c.In[0].Type(), c.In[1].Type()
	k, err := c.packing(op, o.Packed, rowsOf(x), x.Shape)
	if err != nil {
		return err
	}
	s := ShortConv{Type: c.Type(), T: k.tokens, C: w.Shape[0], Width: w.Shape[1], Y: c.Output(0)}
	if err := errors.Join(c.inputs(0, &s.X), c.wide(1, &s.W)); err != nil {
		return err
	}
	if o.State {
		if err := c.wide(2, &s.State); err != nil {
			return err
		}
	}
	if c.Needs(1) {
		s.Next = c.Output(1)
	}
	s.KDASequences, s.Owner = c.sequences(slotted{packing: k}), c.owners(slotted{packing: k})
	return s.Launch(c)
}

func shortConvSlotsBody(c *Call) error {
	const op = "short_conv_slots"
	tokens, w := c.In[0].Dim(0), c.In[1].Type()
	s, err := c.slotted(op, tokens, c.In[2].Dim(0))
	if err != nil {
		return err
	}
	var x, taps, pool Pointer
	if err := errors.Join(c.inputs(0, &x), c.wide(1, &taps, &pool)); err != nil {
		return err
	}
	rows, byRow := c.steps(s)
	if !byRow {
		if err := c.Fill(c.Output(0), 0, int64(tokens*w.Shape[0]*c.Type().Size())); err != nil {
			return err
		}
	}
	if err := (ShortConvStep{Type: c.Type(), C: w.Shape[0], Width: w.Shape[1], StepRows: rows, Y: c.Output(0), X: x, W: taps, Pool: pool}).Launch(c); err != nil {
		return err
	}
	defer c.mixedOnly(s)()
	return ShortConv{Type: c.Type(), T: tokens, C: w.Shape[0], Width: w.Shape[1], KDASequences: c.sequences(s), Y: c.Output(0), X: x, W: taps, State: pool, Next: pool, Owner: c.owners(s)}.Launch(c)
}

// checkDecay tests a log-decay that is fed, or what it is a view of, in the rows that are some sequence's.
func (c *Call) checkDecay(i int, s slotted) {
	n := c.In[i]
	root, at := rootOf(n), int(c.p.offset(n))/4
	if root.Op() != nil || root.Param() != nil || root.Const() != nil {
		return
	}
	hv, dk := n.Dim(-2), n.Dim(-1)
	c.Check([3]any{"decay", n, s}, func(f graph.Feeds) error {
		g, _ := f[root.Name()].([]float32)
		rows := 0
		if s.n > 0 {
			_, rows = s.bounds(f, s.n-1)
		}
		return cpu.CheckKDADecay(g[at:][:rows*hv*dk], hv, dk)
	})
}

func headsOf(q, v *graph.Node) KDAHeads {
	return KDAHeads{H: q.Dim(-2), HV: v.Dim(-2), DK: q.Dim(-1), DV: v.Dim(-1)}
}

func kdaBody(c *Call) error {
	const op = "kda"
	o, x := c.Node.Op().(ops.KDAOp), c.In[0].Type()
	if c.Needs(2) {
		return unsupported(op, "the states at the chunk borders are read, for a gradient")
	}
	k, err := c.packing(op, o.Packed, c.In[4].Type().Size()/c.In[4].Dim(-1), x.Shape)
	if err != nil {
		return err
	}
	s := slotted{packing: k}
	t := KDATokens{Type: c.Type(), KDAHeads: headsOf(c.In[0], c.In[2]), KDASequences: c.sequences(s), Scale: float32(o.Scale), Out: c.Output(0), Final: c.Output(1)}
	if err := errors.Join(c.inputs(0, &t.Q, &t.K, &t.V), c.wide(3, &t.G, &t.Beta)); err != nil {
		return err
	}
	if o.S0 {
		if err := c.wide(5, &t.S0); err != nil {
			return err
		}
	}
	c.checkDecay(3, s)
	return c.kdaTokens(t, s, o.Recurrent)
}

// kdaTokens goes by chunks where there are kernels for it, else token by token.
func (c *Call) kdaTokens(t KDATokens, s slotted, recurrent bool) error {
	if _, err := t.shape(c.Target()); err != nil || recurrent {
		return KDARecurrent{t}.Launch(c)
	}
	p := KDAPrefill{KDATokens: t, Chunks: s.chunks(), ChunkTable: c.chunkTable(s)}
	p.Scratch = c.Scratch(p.ScratchBytes(c.Target()))
	return p.Launch(c)
}

// settled says that one step of the plan alone touches a state: what it reads was written by an earlier run, and what else it
// needs to find it is fed.
func (p *program) settled(state *graph.Node) bool {
	readers := 0
	for _, s := range p.plan.Steps {
		for _, in := range s.Node.In() {
			if in.Param() == state.Param() {
				readers++
			}
		}
	}
	return state.Param() != nil && readers == 1
}

func kdaSlotsBody(c *Call) error {
	const op = "kda_slots"
	tokens := c.In[0].Dim(0)
	s, err := c.slotted(op, tokens, c.In[5].Dim(0))
	if err != nil {
		return err
	}
	rows, byRow := c.steps(s)
	rows.Settled = c.p.settled(c.In[5])
	d := KDADecode{Type: c.Type(), KDAHeads: headsOf(c.In[0], c.In[2]), StepRows: rows, Scale: float32(c.Node.Op().(ops.KDASlotsOp).Scale), Out: c.Output(0)}
	if err := errors.Join(c.inputs(0, &d.Q, &d.K, &d.V), c.wide(3, &d.G, &d.Beta, &d.State)); err != nil {
		return err
	}
	c.checkDecay(3, s)
	if !byRow {
		if err := c.Fill(d.Out, 0, int64(tokens*d.HV*d.DV*c.Type().Size())); err != nil {
			return err
		}
	}
	if err := d.Launch(c); err != nil {
		return err
	}
	defer c.mixedOnly(s)()
	t := KDATokens{Type: d.Type, KDAHeads: d.KDAHeads, KDASequences: c.sequences(s), Scale: d.Scale, Out: d.Out, Final: d.State, Q: d.Q, K: d.K, V: d.V, G: d.G, Beta: d.Beta, S0: d.State}
	return c.kdaTokens(t, s, false)
}
