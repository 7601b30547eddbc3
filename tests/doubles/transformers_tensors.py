"""Random weights for each config.json, as transformers itself saves them.  Runs in envs/transformers.

python transformers_tensors.py FOLDER...

Each folder's model.safetensors; a JSON list on stdout: of each the names and shapes of its tensors.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM


def tensors(folder):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), dtype=torch.float32
    )
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn_like(one))
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        (saved,) = Path(place).glob("*.safetensors")
        shutil.copy(saved, Path(folder, "model.safetensors"))
    with safe_open(Path(folder, "model.safetensors"), "pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


print(json.dumps([tensors(folder) for folder in sys.argv[1:]]))
