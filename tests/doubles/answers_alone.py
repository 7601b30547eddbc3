"""Whether prompts in a batch were answered as each is alone: read as a whole, without cache or padding.

    python answers_alone.py FOLDER REFERENCE.npz     in envs/transformers

The largest difference between the logits of REFERENCE.npz and transformers' of the same prompts and tokens.
"""

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

folder, path = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
made, at, largest = np.load(path), 0, 0.0
ends = np.cumsum(made["prompt_lengths"])[:-1]
for prompt, count in zip(np.split(made["prompts"], ends), made["token_counts"], strict=True):
    ids = [*prompt.tolist(), *made["tokens"][at : at + count].tolist()]
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, len(prompt) - 1 : -1].numpy()
    assert (logits.argmax(-1) == made["tokens"][at : at + count]).all(), ids
    largest = max(largest, np.abs(logits - made["logits"][at : at + count]).max())
    at += count
print(largest)
