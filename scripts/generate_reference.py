"""Greedy tokens and logits of a checkpoint by transformers in float32.  Runs in envs/transformers.

The reference that programs are verified against.  Prompts come from a file, one per line, or are
seeded random ids; their lengths reach several hundred tokens, since short ones hide a missing
rope scaling.
"""

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
NEAR = 1.5  # times the shortest prompt of a batch may have its longest: shorter ones are padded
MOST = 8  # prompts of a batch, since the memory that they take is not in the forecast
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
    if quantised_model.is_quantised(checkpoint["config.json"]):
        (model, _), together = quantised_model.load(checkpoint.folder), False
    else:
        model = transformers_model.load(checkpoint)
        together = transformers_model.reads_padded(model)
    ends = end_tokens(checkpoint)
    tokens, logits = {}, {}
    for batch in alike(prompts) if together else [[n] for n in range(len(prompts))]:
        with transformers_model.understood(checkpoint["config.json"]):
            found = generated(model, [prompts[n] for n in batch], steps, ends)
        for n, (said, rows) in zip(batch, found, strict=True):
            tokens[n], logits[n] = said, rows
            progress.add(len(prompts[n]) + steps)
    each = range(len(prompts))
    return [tokens[n] for n in each], [logits[n] for n in each]


def alike(prompts: list[list[int]]) -> list[list[int]]:
    """The numbers of the prompts, in batches: of however many prompts, a step reads all weights once."""
    batches: list[list[int]] = []
    for n in sorted(range(len(prompts)), key=lambda n: len(prompts[n])):
        last = batches[-1] if batches else []
        if not last or len(last) == MOST or len(prompts[n]) > NEAR * len(prompts[last[0]]):
            batches.append([])
        batches[-1].append(n)
    return batches


def generated(model, prompts: list[list[int]], steps: int, ends: set[int]):
    """The tokens of each prompt and their logits, float32 [tokens, vocabulary]."""
    import torch
    from transformers import GenerationConfig

    longest = max(map(len, prompts))
    pads = [longest - len(ids) for ids in prompts]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    # all that a checkpoint's generation_config.json says, such as penalties, would change the tokens
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=steps, eos_token_id=sorted(ends) or None, pad_token_id=0,
        use_cache=True, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    out = model.generate(
        torch.tensor([[0] * pad + ids for pad, ids in zip(pads, prompts, strict=True)]),
        attention_mask=torch.tensor(mask),
    )
    said, logits = out.sequences[:, longest:].tolist(), torch.stack(out.logits, 1).numpy()
    counts = [next((n for n, one in enumerate(ids, 1) if one in ends), len(ids)) for ids in said]
    return [
        (ids[:count], rows[:count]) for ids, rows, count in zip(said, logits, counts, strict=True)
    ]


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
