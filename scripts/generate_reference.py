"""Greedy tokens and logits of a checkpoint by transformers in float32.  Runs in envs/transformers.

The reference that programs are verified against.  Prompts come from a file, one per line, or are
seeded random ids; their lengths reach several hundred tokens, since short ones hide a missing
rope scaling.
"""

import inspect
import random
from pathlib import Path
from typing import Annotated

from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.fields import read_json
from ingot.base.options import ReadingFile, step
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import quantised_model, transformers_model
from ingot.parity import reading as reading_of

LENGTHS = (5, 6, 8, 9, 12, 15, 17, 23, 31, 32, 33, 47, 63, 64, 80, 99, 128, 160, 200, 240, 290, 340,
           370, 400)  # fmt: skip
STEPS = 12  # greedy tokens a prompt
LEAST = 20  # prompts
LONGEST = 300  # tokens that the longest prompt must have, where the context allows it
PAGE = 64  # tokens kept free at the end of the context: programs stop some pages short of it


def generate_reference(
    checkpoint: Checkpoint,
    reading: ReadingFile,
    reference: Annotated[Path, "the .npz to write"],
    prompts: Annotated[list[Path], "one prompt per line"] = (),
    steps: Annotated[int, "greedy tokens a prompt"] = STEPS,
) -> None:
    if not 1 <= steps <= STEPS:
        raise Refused(f"--steps: {steps}, expected 1 to {STEPS}")
    with stderr_to_log(f"{reference}: generating by transformers"):
        import numpy as np

        asked = read_prompts(checkpoint, reading_of.outline(reading), prompts)
        progress = Progress(reference.name, sum(len(ids) + steps for ids in asked), "tokens")
        tokens, logits = greedy(checkpoint, asked, steps, progress)
    with replacing(reference) as partial, partial.open("wb") as file:
        np.savez(
            file,
            prompts=np.concatenate(asked),
            prompt_lengths=[len(ids) for ids in asked],
            tokens=np.concatenate(tokens),
            token_counts=[len(ids) for ids in tokens],
            logits=np.concatenate(logits),  # [sum of token_counts, vocab]
        )


def read_prompts(
    checkpoint: Checkpoint, reading: reading_of.Reading, files: list[Path]
) -> list[list[int]]:
    """Token ids of each prompt; stops when they are too few or too short to show anything."""
    room = reading["context"] - STEPS - PAGE
    if room < LENGTHS[0]:
        raise Refused(
            f"{checkpoint['config.json']}: a context of {reading['context']} tokens, expected at least "
            f"{LENGTHS[0] + STEPS + PAGE} to verify in"
        )
    if not files:
        rng = random.Random(0)
        lengths = [n if n <= room else rng.randint(LENGTHS[0], room) for n in LENGTHS]
        return [[rng.randrange(reading["vocab"]) for _ in range(n)] for n in lengths]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint["tokenizer.json"]))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    ids = [tokenizer.encode(line, add_special_tokens=False).ids[:room] for line in lines if line]
    longest = max(map(len, ids), default=0)
    if len(ids) < LEAST or longest < min(LONGEST, room):
        raise Refused(
            f"{files[0]}: {len(ids)} prompts of at most {longest} tokens, expected {LEAST} or more "
            f"with one of {min(LONGEST, room)}: short ones hide a missing rope scaling"
        )
    return ids


def greedy(checkpoint: Checkpoint, prompts: list[list[int]], steps: int, progress: Progress):
    """For each prompt so many greedy tokens, up to the end token, and the logits each came from."""
    import torch

    if quantised_model.is_quantised(checkpoint["config.json"]):
        model, _ = quantised_model.load(checkpoint.folder)
    else:
        model = transformers_model.load(checkpoint)
    ends = end_tokens(checkpoint)
    # Mamba takes its state by another name, and begins again without a word: then all is read each time
    cached = "past_key_values" in inspect.signature(model.forward).parameters
    tokens, logits = [], []
    for prompt in prompts:
        said, rows = [], []
        ids, cache = torch.tensor([prompt]), None
        with torch.no_grad():
            while len(said) < steps and not (said and said[-1] in ends):
                with transformers_model.understood(checkpoint["config.json"]):
                    out = model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache, row = out.past_key_values if cached else None, out.logits[0, -1]
                rows.append(row.numpy())
                said.append(int(row.argmax()))
                ids = torch.tensor([[said[-1]] if cached else [*prompt, *said]])
        tokens.append(said)
        logits.append(rows)
        progress.add(len(prompt) + steps)
    return tokens, logits


def end_tokens(checkpoint: Checkpoint) -> set[int]:
    """The one token that the server stops at: the eos_token of tokenizer_config.json."""
    settings = read_json(checkpoint["tokenizer_config.json"])
    added = read_json(checkpoint["tokenizer.json"]).get("added_tokens", [])
    eos = settings.get("eos_token")
    name = eos["content"] if isinstance(eos, dict) else eos
    found = {token["id"] for token in added if token["content"] == name}
    if name and not found:
        raise Refused(f"{checkpoint['tokenizer.json']}: eos_token {name} is no added token; add it")
    return found


if __name__ == "__main__":
    step(generate_reference)
