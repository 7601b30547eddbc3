"""Rows of what models come from: a checkpoint of the hub, and the reference for verifications."""

from functools import partial

from ingot.driver.catalogue.formats.table import (
    GB,
    Cost,
    Format,
    Work,
    of_corpus,
    read_through,
    run_through,
    whole_model,
    written,
)
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model, shard_names
from ingot.model.checkpoint import adapter
from ingot.model.checkpoint.safetensors import INDEX
from ingot.model.rope import LongRope

FETCH = Cost(1.5, 10.0, 90)  # unit: a GB fetched, at 100 MB/s
LISTING = 5_000  # bytes
LORA = 100_000_000  # bytes of an adapter, where nobody knows
DTYPES = ("f16", "bf16", "f32")
OTHER_FILES = {"tokenizer.json": 9e6, "model.safetensors.index.json": 5e4}  # bytes, about


def listed(job: Job, model: Model) -> Work:
    return Work(Cost(0.2), 0, dict.fromkeys(job.writes, 0), download=LISTING)


def fetched(job: Job, model: Model) -> Work | None:
    """One file of the hub, by its list, or as large as config.json makes it."""
    name = job.wildcards["file"]
    listed = model.listed(model.name).get(name)
    size = listed["size"] if listed else OTHER_FILES.get(name, 2000)
    if name == adapter.WEIGHTS and not listed:
        return Work(FETCH, LORA / GB, {job.writes[0]: LORA}, guessed=True, download=LORA)
    if not listed and name.endswith(".safetensors"):
        if not model.numbers:
            return None
        shards = [one for one in shard_names(model.entry["shards"]) if one != INDEX]
        size = model.checkpoint_bytes() / len(shards)
    return Work(FETCH, size / GB, {job.writes[0]: size}, download=int(size))


def referenced(job: Job, model: Model) -> Work | None:
    """Prompts in batches; each alone of a quantised checkpoint, and where the longest decides rope."""
    far = isinstance(getattr(model.config, "rope", None), LongRope)
    alone = far or "scheme" in job.wildcards or "original" in model.entry
    return run_through(Cost(3, 40 if alone else 20, 1200, 1250), 6e5)(job, model)


def scored(job: Job, model: Model) -> Work | None:
    """Unit: a thousand tokens times a billion weights."""
    if not model.numbers:
        return None
    tokens = of_corpus(model)
    size = tokens * model.numbers.vocab * 4
    memory = 1200 + 4800 * model.parameters() / 1e9  # MB: the model in float32
    return Work(Cost(4, 60, memory), tokens * model.parameters() / 1e12, {job.writes[0]: size})


beside = partial(Format, sizes=whole_model, intermediate=True)
ROWS = (
    beside(
        name="hf",
        what="a checkpoint's files, as the hub has them",
        steps={"fetch_listing": listed, "fetch_file": fetched},
        chart="checkpoint",
    ),
    beside(
        name="reading.json",
        what="every number of config.json, by transformers",
        steps={"read_config": written(Cost(5, memory=450), 1e3)},
    ),
    beside(
        name="reference.npz",
        what="greedy tokens and logits by transformers in float32",
        steps={"generate_reference": referenced},
    ),
    beside(
        name="texts.json",
        what="token ids of texts and rendered dialogues, by transformers",
        steps={"encode_texts": written(Cost(4, memory=300), 5e5)},
    ),
    beside(
        name="scores.npy",
        what="distributions over a corpus, by transformers in float32",
        steps={"score_corpus": scored},
    ),
    beside(
        name="digests.json",
        what="what each tensor is in a dtype, by SHA-256",
        steps={"digest_weights": read_through(Cost(0.3, 1.8, 40), size=1e5)},
        variants=lambda catalogue, tp: DTYPES,
    ),
)
