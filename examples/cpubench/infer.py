"""Seconds of the prefill and of a decoded token of the model of infer.go in transformers, as a JSON object. Arguments: threads, folder."""
import json
import sys
import time

try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError:
    print("{}")
    sys.exit()

torch.set_num_threads(int(sys.argv[1]))
ids = torch.tensor([[1 + i * 7919 % 49000 for i in range(512)]])
times = {}
for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
    model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=dtype).eval()
    prefill = []
    with torch.inference_mode():
        for _ in range(4):
            start = time.perf_counter()
            out = model(ids, use_cache=True, logits_to_keep=1)
            prefill.append(time.perf_counter() - start)
        times[f"prefill 512 {name}"] = min(prefill)
        if name == "bf16":
            token = []
            for _ in range(20):
                start = time.perf_counter()
                out = model(out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)
                token.append(time.perf_counter() - start)
            times["decode"] = min(token)
print(json.dumps(times))
