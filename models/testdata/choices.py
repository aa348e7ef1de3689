"""How transformers in bfloat16 and float16 differs from itself in float32 on the
mixtures of testdata/golden: the bounds of TestDeviceExecutorChoices in ops/cuda.

    python choices.py kimi_linear deepseek_v3 qwen3_moe

160 prompts of 70 tokens each; prints the choices of experts that differ, as sets,
and the cosine of all logits.
"""
import sys
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
torch.set_num_threads(1)


def prompt(x, vocab):
    ids = []
    for _ in range(70):
        x = (x * 1664525 + 1013904223) % 2**32
        ids.append((x >> 16) % vocab)
    return ids


def run(name, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        HERE / "golden" / name, dtype=dtype, attn_implementation="eager", experts_implementation="eager").eval()
    chosen, logits = [], []
    for n, module in model.named_modules():
        if n.endswith("mlp.gate"):
            module.register_forward_hook(lambda m, x, out: chosen.append(out[-1].sort(-1)[0]))
    with torch.no_grad():
        for i in range(160):
            logits.append(model(torch.tensor([prompt(i, model.config.vocab_size)]), use_cache=False).logits.double())
    return torch.cat(logits), chosen


for name in sys.argv[1:]:
    want, chosen = run(name, torch.float32)
    for dtype in torch.bfloat16, torch.float16:
        got, others = run(name, dtype)
        differ = sum(int((a != b).any(-1).sum()) for a, b in zip(chosen, others))
        cosine = float((want * got).sum() / want.norm() / got.norm())
        print(f"{name} {dtype}: {differ} of {sum(len(c) for c in chosen)} choices differ, cosine {cosine:.6f}")
