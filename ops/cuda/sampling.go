package cuda

import "fmt"

// What Sampling writes instead of a token.
const (
	NoToken     = -1 // a logit is NaN or +Inf, or none is above -Inf
	HostSamples = -2 // the cuts leave more than 1024 candidates: sample on the host
)

// Sampling launches the draw of the next token of B requests from logits [B,V], f32, by the rules of package generate. The
// parameters are device arrays of B: Temperature (0: the likeliest token), Penalty (optional), TopP, MinP f32; TopK int32;
// Seed, Number 64 bits. Seen holds bits of tokens [B,SeenWords], for the penalty.
type Sampling struct {
	B, V                 int
	Token                Pointer // int32 [B]
	Logits               Pointer
	Stride               int64 // of rows of logits; zero means V
	Temperature, Penalty Pointer
	TopK, TopP, MinP     Pointer
	Seed, Number         Pointer
	Seen                 Pointer // optional, uint32
	SeenWords            int
}

// Launch queues the kernel.
func (s Sampling) Launch(q Queue) error {
	if s.B < 0 || s.V < 1 || s.Stride != 0 && s.Stride < int64(s.V) {
		return fmt.Errorf("sampling: B >= 0, V >= 1 and a stride of at least V are required, got B %d, V %d, stride %d", s.B, s.V, s.Stride)
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
	return q.Launch(Launch{Kernel: "sampling_draw", Grid: [3]int{s.B, 1, 1}, Block: 1024, Overlap: q.Target().Hopper(), Args: []Arg{
		{"token", s.Token}, {"logits", s.Logits}, {"seen", s.Seen}, {"temperature", s.Temperature}, {"penalty", s.Penalty}, {"top_k", s.TopK}, {"top_p", s.TopP},
		{"min_p", s.MinP}, {"seed", s.Seed}, {"number", s.Number}, {"stride", s.Stride}, {"vocabulary", int32(s.V)}, {"seen_stride", int32(s.SeenWords)}}})
}

// CrossEntropy launches loss[t] = log(sum(exp(x[t,:]))) - x[t, labels[t]] for T rows of V logits, f32 out, 0 where the label
// is negative.
type CrossEntropy struct {
	Type            DType
	T, V            int
	Loss, X, Labels Pointer
	Stride          int64 // of rows, in elements; zero means V
}

// Launch queues the kernel.
func (c CrossEntropy) Launch(q Queue) error {
	if c.T < 0 || c.V < 1 || c.Stride != 0 && c.Stride < int64(c.V) {
		return fmt.Errorf("cross-entropy: T >= 0, V >= 1 and a stride of at least V are required, got T %d, V %d, stride %d", c.T, c.V, c.Stride)
	}
	if c.T == 0 {
		return nil
	}
	if c.Stride == 0 {
		c.Stride = int64(c.V)
	}
	return q.Launch(Launch{Kernel: "cross_entropy_" + c.Type.String(), Grid: [3]int{c.T, 1, 1}, Block: 512, Overlap: q.Target().Hopper(), Args: []Arg{
		{"loss", c.Loss}, {"x", c.X}, {"labels", c.Labels}, {"v", int32(c.V)}, {"stride", c.Stride}}})
}
