package cuda

import (
	"fmt"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/ops/native"
)

func init() { Register("sampling", samplingBody) }

// Sampling launches the draw of the next token of B requests from logits [B,V], by the rules of native.Sampling: draws int32
// [B,8] as native.Draw writes them; seen has bits of tokens [B,SeenWords], for the penalty. Where there is no token its place
// has native.NoDraw, NaNLogit or NoneDrawn.
type Sampling struct {
	Type      DType // of the logits
	B, V      int
	Token     Pointer // int32 [B]
	Logits    Pointer
	Stride    int64 // of rows of logits; zero means V
	Draws     Pointer
	Seen      Pointer // optional
	SeenWords int
}

// mostVocabulary: the kernel orders tokens by 22 bits of their ids.
const mostVocabulary = 1 << 22

// Launch queues the kernel.
func (s Sampling) Launch(q Queue) error {
	if s.B < 0 || s.V < 1 || s.Stride != 0 && s.Stride < int64(s.V) {
		return fmt.Errorf("sampling: B >= 0, V >= 1 and a stride of at least V are required, got B %d, V %d, stride %d", s.B, s.V, s.Stride)
	}
	if s.V > mostVocabulary {
		return unsupported("sampling", "%d tokens: a kernel exists up to %d", s.V, mostVocabulary)
	}
	if !s.Seen.IsNil() && s.SeenWords*32 < s.V {
		return fmt.Errorf("sampling: %d words of seen tokens hold fewer than V %d bits", s.SeenWords, s.V)
	}
	if s.B == 0 {
		return nil
	}
	if s.Stride == 0 {
		s.Stride = int64(s.V)
	}
	blocks := s.blocks(q.Target())
	return q.Launch(Launch{Kernel: "sampling_draw_" + s.Type.String(), Grid: [3]int{s.B * blocks, 1, 1}, Block: 1024, Cluster: blocks, Overlap: q.Target().Hopper(), Args: []Arg{
		{"token", s.Token}, {"logits", s.Logits}, {"draws", s.Draws}, {"seen", s.Seen}, {"stride", s.Stride}, {"vocabulary", int32(s.V)}, {"seen_stride", int32(s.SeenWords)}}})
}

// blocks of a row: as many as there are multiprocessors and segments for; above two where their clusters need not fill
// the parts that the multiprocessors lie in. The tokens are the same for any number.
func (s Sampling) blocks(gpu Target) int {
	n := 1
	for gpu.Hopper() && n < 8 && 2*n*s.B <= gpu.SMs && (n < 2 || 3*n*s.B <= gpu.SMs) && n*32*512 < s.V {
		n *= 2
	}
	return n
}

func samplingBody(c *Call) error {
	const op = "sampling"
	t, draws := c.In[0].Type(), c.In[1]
	s := Sampling{Type: c.p.stored(c.In[0]), B: t.Shape[0], V: t.Shape[1], Token: c.Output(0)}
	if !c.fed(1) {
		return unsupported(op, "draws %s are not fed: the host looks at them before a run", draws.Name())
	}
	c.Check([2]any{op, draws}, func(f graph.Feeds) error {
		if err := native.CheckDraws(ints(f, draws)); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		return nil
	})
	var err error
	if s.Logits, err = c.InputAs(0, s.Type); err != nil {
		return err
	}
	if len(c.In) > 2 {
		s.SeenWords = lastDim(c.In[2].Type())
	}
	if err := c.inputs(1, &s.Draws, &s.Seen); err != nil {
		return err
	}
	return s.Launch(c)
}
