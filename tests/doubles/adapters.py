"""Adapters as PEFT itself saves them, with random weights, and the model that PEFT merges.

    adapters.py BASE FOLDER SETTINGS    SETTINGS: JSON of LoraConfig's fields

FOLDER/adapter is the adapter, FOLDER/merged what merge_and_unload makes of it.  Runs in envs/transformers.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np

import checkpoints

MODULE = "model.layers.0.self_attn.q_proj"


def saved(folder: Path, tensors: dict[str, np.ndarray], **settings) -> Path:
    """An adapter of F32 tensors, as PEFT saves one."""
    folder.mkdir(parents=True, exist_ok=True)
    modules = {name.rpartition(".lora_")[0].removeprefix("base_model.model.") for name in tensors}
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none",
            "target_modules": sorted(modules - {""}), **settings}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(said))
    found = {
        name: ("F32", values.shape, values.astype("<f4").tobytes())
        for name, values in tensors.items()
    }
    checkpoints.write_shard(folder / "adapter_model.safetensors", found)
    return folder


def pair(base: Path, module: str = MODULE, r: int = 2) -> dict[str, np.ndarray]:
    """Random matrices for a module of a base."""
    rows, columns = checkpoints.shapes(json.loads((base / "config.json").read_bytes()))[
        f"{module}.weight"
    ]
    rng, name = np.random.default_rng(0), f"base_model.model.{module}"
    a, b = rng.standard_normal((r, columns)), rng.standard_normal((rows, r))
    return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}


def main(base: str, folder: str, settings: str) -> None:
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    warnings.simplefilter("ignore")
    torch.manual_seed(7)
    asked = json.loads(settings)
    saved = asked.pop("saved_dtype", None)
    place, kept = Path(folder), asked.get("modules_to_save") or []
    plain = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    model = get_peft_model(plain, LoraConfig(task_type="CAUSAL_LM", **asked))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name or any(f"{one}.modules_to_save" in name for one in kept):
                size = 0.02 if "lora_" in name else value.float().std()
                value.copy_(torch.randn_like(value, dtype=torch.float32) * size)
    if saved:
        model.to(getattr(torch, saved))
    model.save_pretrained(place / "adapter")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    merged = PeftModel.from_pretrained(plain, str(place / "adapter")).merge_and_unload()
    merged.save_pretrained(place / "merged")


if __name__ == "__main__":
    main(*sys.argv[1:])
