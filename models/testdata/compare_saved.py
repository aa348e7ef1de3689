"""Loads pairs of folders with transformers and compares their logits exactly.

    python compare_saved.py GOLDEN SAVED [GOLDEN SAVED ...]
"""
import json
import sys
from pathlib import Path

import torch
import transformers

torch.set_num_threads(1)
paths = sys.argv[1:]
for golden, saved in zip(paths[::2], paths[1::2]):
    ids = json.loads((Path(golden) / "golden.json").read_text())["prompts"][-1]["input_ids"]
    logits = []
    for path in (golden, saved):
        kind = json.loads((Path(path) / "config.json").read_text())["architectures"][0]
        model, info = getattr(transformers, kind).from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        wrong = {k: v for k, v in info.items() if v}
        assert not wrong, f"{path}: {wrong}"
        with torch.no_grad():
            logits.append(model.eval()(torch.tensor([ids]), use_cache=False).logits)
    difference = float((logits[0] - logits[1]).abs().max())
    print(f"{Path(golden).name}: {'equal' if difference == 0 else difference}")
