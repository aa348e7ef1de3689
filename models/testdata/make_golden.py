"""Makes tiny random checkpoints of testdata/golden with transformers.

    python make_golden.py gemma3 olmo2 smollm3

Each folder is as save_pretrained writes it, plus golden.json with what
transformers computes in float32 (eager attention) from the stored weights.
The seed is the first one at which no greedy step is a near-tie.
"""
import json
import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent / "golden"
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


def weights(model, seed, unit_norm):
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        with torch.no_grad():
            if name.endswith("norm.weight"):
                p.copy_(0.3 * r + (0 if unit_norm else 1))
            elif name.endswith(".bias"):
                p.copy_(0.3 * r)
            elif "embed_tokens" in name or "lm_head" in name:
                p.copy_(r * (0.25 if model.config.tie_word_embeddings else 0.5))
            else:
                p.copy_(r * 1.3 / p.shape[-1] ** 0.5)


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
    config._attn_implementation = "eager"
    out = HERE / name
    for seed in range(1, 100):
        model = cls(config)
        weights(model, seed, name == "gemma3")
        model.to(stored).save_pretrained(out)
        model = cls.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
        g = torch.Generator().manual_seed(seed)
        prompts = [prompt(model, torch.randint(VOCAB, (n,), generator=g).tolist()) for n in (1, 17, 70)]
        smallest = min(min(p["greedy"]["margins"]) for p in prompts)
        if smallest > 2e-3:
            break
    ids = prompts[-1]["input_ids"]
    z = model(torch.tensor([ids]), use_cache=False).logits[0]
    torch.nn.functional.cross_entropy(z[:-1], torch.tensor(ids[1:])).backward()
    norms = {k: number(p.grad.double().norm()) for k, p in model.named_parameters()}
    with torch.no_grad():
        wide = cls.from_pretrained(out, dtype=torch.float64, attn_implementation="eager").eval()
        error = number((wide(torch.tensor([ids]), use_cache=False).logits[0] - z).abs().max())
    golden = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "seed": seed,
              "smallest_margin": smallest, "float32_error": error, "prompts": prompts, "gradient_norms": norms}
    (out / "golden.json").write_text(json.dumps(golden))
    print(name, "seed", seed, "margin", smallest, "error", error, "loss", prompts[-1]["loss"],
          "largest logit", float(z.abs().max()))


for name in sys.argv[1:]:
    make(name)
