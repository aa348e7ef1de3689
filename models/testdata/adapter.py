"""LoRA adapters with PEFT.

    python adapter.py make                       makes the folders of lora, on golden/qwen3
    python adapter.py logits BASE ADAPTER IDS    prints the logits as JSON
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

torch.set_num_threads(1)
HERE = Path(__file__).parent
IDS = [7, 3, 250, 31, 54, 116, 15, 66, 84, 30, 215, 114, 105]


def base(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(torch.tensor([ids]), use_cache=False).logits[0]


def make(name, **config):
    model = base(HERE / "golden" / "qwen3")
    plain = logits(model, IDS)
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config))
    g = torch.Generator().manual_seed(1)
    for key, p in model.named_parameters():
        if "lora_magnitude" in key:
            p.data.mul_(1 + 0.3 * torch.randn(p.shape, generator=g))
        elif "lora_" in key:
            p.data.copy_(torch.randn(p.shape, generator=g) * (0.2 if "lora_B" in key else 0.3))
    model.peft_config["default"].base_model_name_or_path = "golden/qwen3"
    out = HERE / "lora" / name
    model.save_pretrained(out)
    (out / "README.md").unlink(missing_ok=True)
    z = logits(model, IDS)
    merged = logits(model.merge_and_unload(), IDS)
    number = lambda x: float(f"{float(x):.7g}")
    golden = {"input_ids": IDS, "logits": [[number(x) for x in z[i]] for i in (0, len(IDS) - 1)]}
    (out / "golden.json").write_text(json.dumps(golden))
    print(name, "moved by", float((z - plain).abs().max()), "merged differs by", float((merged - z).abs().max()))


if sys.argv[1] == "make":
    make("qwen3", r=4, lora_alpha=10, target_modules=["q_proj", "v_proj", "down_proj"], rank_pattern={"layers.1.self_attn.q_proj": 3})
    # The first pattern that matches counts.
    make("patterns", r=2, lora_alpha=3, target_modules=r".*\.[01]\.(mlp|self_attn)\.(up|k|o)_proj", use_rslora=True,
         rank_pattern={r"0\..*\.up_proj": 1}, alpha_pattern={r"layers\.1\.mlp\.up_proj": 5, "up_proj": 1.5, "o_proj": 0.7})
    make("dora", r=2, lora_alpha=3, target_modules="all-linear", use_dora=True, alpha_pattern={"up_proj": 4})
else:
    model = PeftModel.from_pretrained(base(sys.argv[2]), sys.argv[3])
    print(json.dumps(logits(model, json.loads(sys.argv[4])).tolist()))
