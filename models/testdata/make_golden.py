"""Makes tiny random checkpoints of testdata/golden with transformers, and of
testdata/variants those whose names begin with "variant_": one or two features
each that the others lack.

    python make_golden.py gemma3 olmo2 phi3 variant_longrope

Each folder is as save_pretrained writes it, plus golden.json with what
transformers computes in float32 (eager attention) from the stored weights.
The seed is the first one at which no greedy step is a near-tie.
"""
import json
import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
torch.set_num_threads(1)
VOCAB = 160  # without a padding token: torch gives its row no gradient


def gemma3():
    c = transformers.Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=20, max_position_embeddings=512, query_pre_attn_scalar=24, sliding_window=16,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                         "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}},
        bos_token_id=2, eos_token_id=[1, 106], pad_token_id=None)
    return transformers.Gemma3ForCausalLM, c, torch.bfloat16


def olmo2():
    c = transformers.Olmo2Config(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-6, eos_token_id=3, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    return transformers.Olmo2ForCausalLM, c, torch.float16


def smollm3():
    c = transformers.SmolLM3Config(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, no_rope_layers=[1, 0, 1, 1, 0], use_sliding_window=True,
        sliding_window=16, bos_token_id=4, eos_token_id=5, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 2000000.0})
    return transformers.SmolLM3ForCausalLM, c, torch.bfloat16


def qwen3_moe():
    c = transformers.Qwen3MoeConfig(
        vocab_size=VOCAB, hidden_size=40, intermediate_size=72, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=512, moe_intermediate_size=24, num_experts=6,
        num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[2], eos_token_id=5, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})
    return transformers.Qwen3MoeForCausalLM, c, torch.bfloat16


def deepseek_v3():
    c = transformers.DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=40, intermediate_size=72, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=640, moe_intermediate_size=16, n_routed_experts=8,
        n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2, routed_scaling_factor=2.5,
        first_k_dense_replace=1, kv_lora_rank=24, q_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12,
        v_head_dim=14, num_mtp_layers=0, rms_norm_eps=1e-5, eos_token_id=5, pad_token_id=None,
        rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1,
                         "mscale": 1.0, "mscale_all_dim": 0.8, "original_max_position_embeddings": 16})
    return transformers.DeepseekV3ForCausalLM, c, torch.bfloat16


def small(**more):
    return dict(vocab_size=96, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=256, bos_token_id=2, eos_token_id=5, pad_token_id=None) | more


def gemma():
    return transformers.GemmaForCausalLM, transformers.GemmaConfig(**small(head_dim=10)), torch.bfloat16


def gemma2():
    c = transformers.Gemma2Config(**small(head_dim=10, query_pre_attn_scalar=12, sliding_window=16,
                                          attn_logit_softcapping=6.0, final_logit_softcapping=9.0))
    return transformers.Gemma2ForCausalLM, c, torch.float32


def glm4():
    c = transformers.Glm4Config(**small(head_dim=16, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}))
    return transformers.Glm4ForCausalLM, c, torch.bfloat16


def gpt_oss():
    c = transformers.GptOssConfig(**small(hidden_size=32, intermediate_size=32,
        head_dim=16, sliding_window=16, num_local_experts=4, num_experts_per_tok=2, swiglu_limit=1.5, rope_parameters={
            "rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 32}))
    return transformers.GptOssForCausalLM, c, torch.bfloat16


def granite():
    c = transformers.GraniteConfig(**small(attention_bias=True, mlp_bias=True, embedding_multiplier=3.0, logits_scaling=0.5,
                                           residual_multiplier=0.6, attention_multiplier=0.3))
    return transformers.GraniteForCausalLM, c, torch.float16


def ministral():
    c = transformers.MinistralConfig(**small(head_dim=10, sliding_window=16, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"], rope_parameters={"rope_type": "default", "rope_theta": 1e8}))
    return transformers.MinistralForCausalLM, c, torch.bfloat16


# The text model of one that sees images; queries grow within the prompt of 70.
def ministral3():
    text = transformers.Ministral3Config(**small(head_dim=10, rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": 24, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}))
    sight = dict(model_type="pixtral", hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, head_dim=8,
                 image_size=8, patch_size=4)
    c = transformers.Mistral3Config(text_config=text, vision_config=sight, image_token_index=60, tie_word_embeddings=False)
    return transformers.Mistral3ForConditionalGeneration, c, torch.bfloat16


def mixtral():
    c = transformers.MixtralConfig(**small(num_local_experts=5, num_experts_per_tok=2))
    return transformers.MixtralForCausalLM, c, torch.bfloat16


def qwen2_moe():
    c = transformers.Qwen2MoeConfig(**small(
        moe_intermediate_size=16, shared_expert_intermediate_size=20, num_experts=5, num_experts_per_tok=3, mlp_only_layers=[1],
        use_sliding_window=True, sliding_window=16, max_window_layers=2))
    return transformers.Qwen2MoeForCausalLM, c, torch.bfloat16


def olmo3():
    c = transformers.Olmo3Config(**small(sliding_window=16, layer_types=[
        "sliding_attention", "full_attention", "sliding_attention"], rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 30000.0, "factor": 4.0, "original_max_position_embeddings": 64}}))
    return transformers.Olmo3ForCausalLM, c, torch.float32


def phi3():
    c = transformers.Phi3Config(**small(rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.67}))
    return transformers.Phi3ForCausalLM, c, torch.bfloat16


# Prompts of 1 and 17 tokens and what follows them stay short, the one of 70 is
# long.
def variant_longrope():
    c = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=192, eos_token_id=5, pad_token_id=None,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 48,
                         "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.2, 1.9, 3.1, 4.7]})
    return transformers.LlamaForCausalLM, c, torch.float32


# The one of 17 grows long: the text is what phi3 reads again.
def variant_phi3_longrope():
    c = transformers.Phi3Config(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=192, original_max_position_embeddings=32, eos_token_id=5,
        pad_token_id=None, sliding_window=40, tie_word_embeddings=True,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                         "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.2, 1.9, 4.7]})
    return transformers.Phi3ForCausalLM, c, torch.float32


# Rotation by halves, queries without a small vector, no groups.
def variant_deepseek_halves():
    c = transformers.DeepseekV3Config(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, moe_intermediate_size=8, n_routed_experts=4,
        n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, routed_scaling_factor=1.5,
        norm_topk_prob=False, first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=None, qk_rope_head_dim=6,
        qk_nope_head_dim=4, v_head_dim=6, num_mtp_layers=0, eos_token_id=5, pad_token_id=None, rope_interleave=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    return transformers.DeepseekV3ForCausalLM, c, torch.float16


# Logits within a soft cap, biases, the pattern of layers as a number.
def variant_gemma3_capped():
    c = transformers.Gemma3TextConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=128, query_pre_attn_scalar=10, sliding_window=5,
        sliding_window_pattern=2, final_logit_softcapping=4.0, attention_bias=True, tie_word_embeddings=False,
        bos_token_id=2, eos_token_id=1, pad_token_id=None)
    return transformers.Gemma3ForCausalLM, c, torch.float32


# Sees images; the text model within has a head of its own.
def variant_gemma3_vision():
    text = dict(vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=1, head_dim=12, max_position_embeddings=128, query_pre_attn_scalar=10, sliding_window=9,
                layer_types=["sliding_attention", "full_attention"], bos_token_id=2, eos_token_id=1, pad_token_id=None)
    sight = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    c = transformers.Gemma3Config(text_config=text, vision_config=sight, mm_tokens_per_image=4, image_token_index=60,
                                  boi_token_index=61, eoi_token_index=62, tie_word_embeddings=False, eos_token_id=[1, 5])
    return transformers.Gemma3ForConditionalGeneration, c, torch.bfloat16


def weights(model, seed, unit_norm):
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        with torch.no_grad():
            if name.endswith("norm.weight"):
                p.copy_(0.3 * r + (0 if unit_norm else 1))
            elif name.endswith((".bias", "_bias", ".sinks")):
                p.copy_(0.3 * r)
            elif "embed_tokens" in name or "lm_head" in name:
                p.copy_(r * (0.25 if model.config.tie_word_embeddings else 0.5))
            else:
                p.copy_(r * 1.3 / p.shape[-1] ** 0.5)


    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.copy_(0.2 * torch.randn(b.shape, generator=g))


def on_disk(name, grad, mixtral, gpt_oss):
    """The gradient of a parameter under the names that its tensors have on disk, those of a text model alone."""
    name = name.replace("model.language_model.", "model.")
    if mixtral and ".mlp." in name:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    if gpt_oss and ".mlp.experts." in name:
        bias = name.endswith("_bias")
        module = name.removesuffix("_bias")
        kind = ".bias" if bias else ".weight"
        if module.endswith("gate_up_proj"):
            for i, half in enumerate(("gate_proj", "up_proj")):
                yield module.replace("gate_up_proj", half) + kind, grad[..., i::2]
        else:
            yield module + kind, grad
    elif name.endswith("experts.gate_up_proj"):
        at = name.removesuffix("gate_up_proj")
        for e, g in enumerate(grad):
            half = len(g) // 2
            yield f"{at}{e}.{gate}.weight", g[:half]
            yield f"{at}{e}.{up}.weight", g[half:]
    elif name.endswith("experts.down_proj"):
        at = name.removesuffix("down_proj")
        for e, g in enumerate(grad):
            yield f"{at}{e}.{down}.weight", g
    else:
        yield name, grad


def number(x):
    return float(f"{float(x):.7g}")


def greedy(model, ids, n):
    tokens, margins = [], []
    for _ in range(n):
        with torch.no_grad():
            z = model(torch.tensor([ids + tokens]), use_cache=False).logits[0, -1]
        best = z.topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(number(best.values[0] - best.values[1]))
    return tokens, margins


def prompt(model, ids):
    with torch.no_grad():
        z = model(torch.tensor([ids]), use_cache=False).logits[0]
    at = sorted({0, len(ids) // 2, len(ids) - 1})
    tokens, margins = greedy(model, ids, 24)
    loss = None
    if len(ids) > 1:
        loss = number(torch.nn.functional.cross_entropy(z[:-1], torch.tensor(ids[1:])))
    return {"input_ids": ids, "positions": at, "logits": {str(i): [number(x) for x in z[i]] for i in at},
            "logits_sum": number(z.double().sum()), "logits_norm": number(z.double().norm()), "loss": loss,
            "greedy": {"tokens": tokens, "margins": margins}}


def make(name):
    cls, config, stored = globals()[name]()
    eager = {"attn_implementation": "eager"}
    if hasattr(config, "num_experts_per_tok"):
        eager["experts_implementation"] = "eager"
    config._attn_implementation = "eager"
    out = HERE / ("variants" if name.startswith("variant_") else "golden") / name.removeprefix("variant_")
    for seed in range(1, 100):
        model = cls(config)
        weights(model, seed, "gemma" in name)
        model.to(stored).save_pretrained(out)
        model = cls.from_pretrained(out, dtype=torch.float32, **eager).eval()
        g = torch.Generator().manual_seed(seed)
        prompts = [prompt(model, torch.randint(config.get_text_config().vocab_size, (n,), generator=g).tolist()) for n in (1, 17, 70)]
        smallest = min(min(p["greedy"]["margins"]) for p in prompts)
        if smallest > 2e-3:
            break
    ids = prompts[-1]["input_ids"]
    z = model(torch.tensor([ids]), use_cache=False).logits[0]
    torch.nn.functional.cross_entropy(z[:-1], torch.tensor(ids[1:])).backward()
    norms = {n: number(g.double().norm()) for k, p in model.named_parameters() if p.grad is not None for n, g in on_disk(k, p.grad, name == "mixtral", "gpt_oss" in name)}
    with torch.no_grad():
        wide = cls.from_pretrained(out, dtype=torch.float64, **eager).eval()
        error = number((wide(torch.tensor([ids]), use_cache=False).logits[0] - z).abs().max())
    golden = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "seed": seed,
              "smallest_margin": smallest, "float32_error": error, "prompts": prompts, "gradient_norms": norms}
    (out / "golden.json").write_text(json.dumps(golden))
    print(name, "seed", seed, "margin", smallest, "error", error, "loss", prompts[-1]["loss"],
          "largest logit", float(z.detach().abs().max()))


for name in sys.argv[1:]:
    make(name)
