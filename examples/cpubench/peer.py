"""Seconds of the fastest run of the products and the attention of measure.go in PyTorch, as a JSON object. Argument: threads."""
import json
import sys
import time

import torch
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)


def fastest(n, f):
    f()
    best = float("inf")
    for _ in range(n):
        t = time.perf_counter()
        f()
        best = min(best, time.perf_counter() - t)
    return best


a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
c = torch.empty_like(a)
a16, b16 = a.bfloat16(), b.bfloat16()
c16 = c.bfloat16()
q, k, v = (torch.randn(1, 8, 2048, 64, requires_grad=True) for _ in range(3))
d = torch.randn(1, 8, 2048, 64)


def forward():
    with torch.no_grad():
        F.scaled_dot_product_attention(q, k, v, is_causal=True)


def both():
    F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(d)


bf16 = fastest(20, lambda: torch.mm(a16, b16, out=c16))
print(json.dumps({
    "sgemm 1024^3": fastest(20, lambda: torch.mm(a, b, out=c)),
    "bf16 gemm 1024^3": bf16,
    "bf16 gemm 1024^3, B stored": bf16,
    "bf16 gemm 1024^3, both stored": bf16,
    "attention forward": fastest(10, forward),
    "attention forward and backward": fastest(10, both),
}))
