"""Names and shapes of the tensors that transformers has for each config.json.  Runs in envs/transformers.

python transformers_tensors.py FOLDER...
"""

import json
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def tensors(folder):
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    found = {name: list(one.shape) for name, one in model.named_parameters()}  # tied ones once
    return dict(sorted(found.items()))


print(json.dumps([tensors(folder) for folder in sys.argv[1:]]))
