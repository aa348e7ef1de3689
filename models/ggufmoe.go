// GGUF files of the types with mixtures of experts and latent attention.

package models

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/models/checkpoint"
)

// deepseekType is spelled here once more since the table of types needs it.
const deepseekType = "deepseek_v3"

// readExperts reads the keys of a mixture and which layers have one: those with
// a router.
func (f *file) readExperts(k *ggufKeys, ck *checkpoint.Checkpoint) (sparse []bool) {
	f.ExpertCount, f.TopK, f.ExpertFFN = k.int("expert_count"), new(k.int("expert_used_count")), k.int("expert_feed_forward_length")
	for l := range min(f.Layers, len(ck.Tensors())) {
		_, ok := ck.Lookup(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", l))
		sparse = append(sparse, ok)
	}
	return sparse
}

// The values of expert_gating_func.
const (
	softmaxRouter = 1
	sigmoidRouter = 2
)

// readGroups reads the keys of a router with sigmoid scores.
func (f *file) readGroups(k *ggufKeys) (groups, keep int, renormalize bool) {
	if fn := orElse(k, "expert_gating_func", k.int, sigmoidRouter); fn != sigmoidRouter && k.err == nil {
		k.err = fmt.Errorf("%sexpert_gating_func %d is not supported (supported: %d, sigmoid)", k.prefix, fn, sigmoidRouter)
	}
	f.RoutedScale = decimal(tidy(orElse(k, "expert_weights_scale", k.float, 1)))
	return orElse(k, "expert_group_count", k.int, 1), orElse(k, "expert_group_used_count", k.int, 1), orElse(k, "expert_weights_norm", k.bool, true)
}

// readLatents reads the sizes of latent attention. Files that were made before
// the latents were cached have the lengths of whole heads under the plain keys.
func (f *file) readLatents(k *ggufKeys) {
	f.KVRank, f.RopeHeadDim = k.int("attention.kv_lora_rank"), k.int("rope.dimension_count")
	f.QRank = nil
	if r := orElse(k, "attention.q_lora_rank", k.int, 0); r > 0 {
		f.QRank = new(rank(r))
	}
	length := func(key string) int {
		if k.has(key + "_mla") {
			key += "_mla"
		}
		return k.int(key)
	}
	f.NopeHeadDim = length("attention.key_length") - f.RopeHeadDim
	f.VHeadDim = new(length("attention.value_length"))
}

// readQwenExperts reads mixtures of which a key may say that weights are made to
// sum to 1.
func (f *file) readQwenExperts(k *ggufKeys, ck *checkpoint.Checkpoint, unsaid bool) {
	f.SparseStep, f.NormTopK = 1, new(orElse(k, "expert_weights_norm", k.bool, unsaid))
	for l, sparse := range f.readExperts(k, ck) {
		if !sparse {
			f.DenseLayers = append(f.DenseLayers, l)
		}
	}
}

var qwen3MoeGGUF = ggufForm{name: "qwen3moe", norms: llamaNorms, more: func(k *ggufKeys, ck *checkpoint.Checkpoint, f *file) {
	f.readQwenExperts(k, ck, true)
}}

var qwen2MoeGGUF = ggufForm{name: "qwen2moe", norms: llamaNorms, more: func(k *ggufKeys, ck *checkpoint.Checkpoint, f *file) {
	f.readQwenExperts(k, ck, false)
	f.QKVBias, f.SharedFFN = &f.AttentionBias, orElse(k, "expert_shared_feed_forward_length", k.int, f.IntermediateSize)
}}

var deepseek3GGUF = ggufForm{name: "deepseek2", norms: llamaNorms, latent: true, more: func(k *ggufKeys, ck *checkpoint.Checkpoint, f *file) {
	f.readLatents(k)
	first := slices.Index(f.readExperts(k, ck), true)
	if first < 0 {
		first = f.Layers
	}
	f.DenseFirst, f.RoutedExperts = &first, f.ExpertCount
	f.SharedExperts = new(orElse(k, "expert_shared_count", k.int, 0))
	groups, keep, renormalize := f.readGroups(k)
	f.Groups, f.TopGroups, f.NormTopK = &groups, &keep, &renormalize
}}

var kimiGGUF = ggufForm{name: "kimi-linear", norms: llamaNorms, latent: true, more: func(k *ggufKeys, ck *checkpoint.Checkpoint, f *file) {
	f.readLatents(k)
	for _, sparse := range f.readExperts(k, ck) {
		kind := "dense"
		if sparse {
			kind = "sparse"
		}
		f.MLPTypes = append(f.MLPTypes, kind)
	}
	var renormalize bool
	f.KimiTopK, f.KimiShared = orZero(f.TopK), orElse(k, "expert_shared_count", k.int, 0)
	f.KimiGroups, f.TopGroups = 1, new(1)
	f.KimiGroups, *f.TopGroups, renormalize = f.readGroups(k)
	f.Renormalize = &renormalize
	f.LinearHeadDim, f.LinearWidth = k.int("kda.head_dim"), k.int("ssm.conv_kernel")
	f.ModelMaxLength = f.MaxPositions
	for l := range min(f.Layers, len(ck.Tensors())) { // layers of Kimi Delta Attention have a decay
		kind := "full_attention"
		if _, ok := ck.Lookup(fmt.Sprintf("blk.%d.ssm_a", l)); ok {
			kind = "linear_attention"
			if t, ok := ck.Lookup(fmt.Sprintf("blk.%d.ssm_beta.weight", l)); ok {
				f.LinearHeads = t.Rows()
			}
		}
		f.LayerTypes = append(f.LayerTypes, kind)
	}
}}

// ggufParts are the tensors of a parameter: stacks are one, but in the first files
// of mixtures, which have a tensor for each expert.
func (s *source) ggufParts(p *graph.Param) []string {
	layer, kind, ok := strings.Cut(p.Name, ".mlp.experts.")
	part := func(e int) string {
		return fmt.Sprintf("blk.%s.ffn_%s.%d.weight", strings.TrimPrefix(layer, "model.layers."), strings.TrimSuffix(kind, "_proj.weight"), e)
	}
	if _, parted := s.ck.Lookup(part(0)); !ok || !parted || p.Type.Shape[0] > len(s.ck.Tensors()) {
		return []string{p.Name}
	}
	var names []string
	for e := range p.Type.Shape[0] {
		names = append(names, part(e))
	}
	return names
}

// fusedExperts finds the stack [E,2F,D] in which newer files have gate_proj (half
// 0) and up_proj (half 1) of each expert one after the other.
func (s *source) fusedExperts(param string) (t *checkpoint.Tensor, half int) {
	layer, kind, ok := strings.Cut(param, ".mlp.experts.")
	half = slices.Index([]string{"gate_proj.weight", "up_proj.weight"}, kind)
	if s.gguf == nil || !ok || half < 0 {
		return nil, 0
	}
	t, _ = s.ck.Lookup("blk." + strings.TrimPrefix(layer, "model.layers.") + ".ffn_gate_up_exps.weight")
	return t, half
}

// readHalf fills a stack [E,F,D] from a half of each expert.
func readHalf(p *graph.Param, t *checkpoint.Tensor, half int) error {
	w, experts := p.Tensor(), p.Type.Shape[0]
	n := w.Size() / experts
	both := make([]float32, 2*n)
	for e := range experts {
		if err := t.Float32Rows(both, e, 1); err != nil { // exact, whatever it is stored as
			return err
		}
		narrowPart(w, e*n, both[half*n:][:n])
	}
	return nil
}

// splitKV finds the two halves that GGUF makes of kv_b_proj: keys [H,KVRank,Nope]
// and values [H,V,KVRank].
func (s *source) splitKV(param string) []*checkpoint.Tensor {
	layer, ok := strings.CutSuffix(param, ".self_attn.kv_b_proj.weight")
	if s.gguf == nil || !ok {
		return nil
	}
	layer = strings.TrimPrefix(layer, "model.layers.")
	k, hasK := s.ck.Lookup("blk." + layer + ".attn_k_b.weight")
	v, hasV := s.ck.Lookup("blk." + layer + ".attn_v_b.weight")
	if !hasK || !hasV {
		return nil
	}
	return []*checkpoint.Tensor{k, v}
}

// joinKV puts them together as rows [H x (Nope+V), KVRank].
func joinKV(w []float32, parts []*checkpoint.Tensor, heads int, a *Latent) error {
	k, v := make([]float32, parts[0].Len()), make([]float32, parts[1].Len())
	if err := parts[0].Float32(k); err != nil {
		return err
	}
	if err := parts[1].Float32(v); err != nil {
		return err
	}
	r := a.KVRank
	for h := range heads {
		rows := w[h*(a.Nope+a.V)*r:][:(a.Nope+a.V)*r]
		for i := range a.Nope {
			for j := range r {
				rows[i*r+j] = k[(h*r+j)*a.Nope+i]
			}
		}
		copy(rows[a.Nope*r:], v[h*a.V*r:(h+1)*a.V*r])
	}
	return nil
}

// readKV fills kv_b_proj from its halves, in the type that it is kept in.
func (m *Transformer) readKV(p *graph.Param, parts []*checkpoint.Tensor) error {
	wide := make([]float32, p.Type.Size())
	err := joinKV(wide, parts, m.Config.Heads, m.Config.Latent)
	narrow(p.Tensor(), wide)
	return err
}

// withoutOnes compares shapes of a GGUF file, where dimensions of 1 come and go.
func withoutOnes(shape []int) []int {
	return slices.DeleteFunc(slices.Clone(shape), func(n int) bool { return n == 1 })
}

// undoGGUF gives a vector or stack back the values that it has in a folder: the
// norms of gemma are stored plus 1, the decays as -exp(A_log).
func (m *Transformer) undoGGUF(p *graph.Param, w []float32) error {
	switch {
	case architectures[m.Config.Type].unitNorm && strings.HasSuffix(p.Name, "norm.weight"):
		for i := range w {
			w[i]--
		}
	case strings.HasSuffix(p.Name, ".A_log"):
		for i, x := range w {
			if !(x < 0) {
				return fmt.Errorf("%s is the logarithm of %g: the file must have decays below 0", p.Name, -x)
			}
			w[i] = float32(math.Log(float64(-x)))
		}
	}
	return nil
}
