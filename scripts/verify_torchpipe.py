"""Compare torchpipe's file set with its checkpoint, and run it by ONNX Runtime.  Runs in envs/onnx.

The plugin's node is given the attention graph as its body.  Each request alone must give transformers'
tokens, and two packed into one batch the same logits as each alone; without a body nothing may run it.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ingot.base import sealed
from ingot.base.console import stderr_to_log
from ingot.base.options import Architecture, RecordFile, ReferenceFile, TokenizerFiles, step
from ingot.base.refused import Refused
from ingot.formats.onnx import external, weights
from ingot.formats.onnx.torchpipe.attended import Attended
from ingot.formats.onnx.torchpipe.split import CAN, EMBEDDING, HEADS, NAMES, Split, contents, graphs
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import read_header
from ingot.model.config import ModelConfig, read_config
from ingot.model.tensors import pt
from ingot.parity import verification
from ingot.parity.adapted import sources as sources_of
from ingot.parity.greedy import GreedyCheck
from ingot.parity.onnx_weights import compare
from ingot.parity.reference import TOLERANCE, read
from ingot.parity.values import Comparison

DTYPES = {"fp16": "float16", "fp32": "float32"}
PACKED = {"fp16": TOLERANCE["float16"], "fp32": 1e-5}  # of the largest logit


def verify_torchpipe(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    torchpipe: Annotated[Path, "artifacts/M.torchpipe"],
    split: Split,
    reference: ReferenceFile,
    record: RecordFile,
    architecture: Architecture = None,
) -> None:
    sha256 = verification.digest(torchpipe)
    source = read_config(checkpoint["config.json"], architecture, can=CAN)
    config = split.cut(checkpoint["config.json"], source)
    checks, embedding = hold(checkpoint, tokenizer, torchpipe, config, split)
    with stderr_to_log(f"{torchpipe}: running the prompts"):
        checks["refused_without_plugin"] = refused(torchpipe, split)
        model = Attended(torchpipe, config, split)
        check = GreedyCheck(read(reference), DTYPES[split.dtype])
        asked = [[*answer.prompt, *answer.tokens[:-1]] for answer in check.answers]
        alone = [model.logits(embedding, [ids])[0] for ids in asked]
        if config.layers == source.layers:
            for answer, rows in zip(check.answers, alone, strict=True):
                check.rows(answer, rows[len(answer.prompt) - 1 :])
            checks |= check.checks(torchpipe) | check.logits(torchpipe, TOLERANCE[check.dtype])
        else:
            checks |= {"layers": config.layers, "of_layers": source.layers}
        checks |= packed(torchpipe, model, embedding, asked, alone, split.dtype)
        checks |= decoded(torchpipe, config, split)
    verification.write(
        record,
        torchpipe,
        sha256,
        "the checkpoint, value by value; transformers in float32, greedy, by ONNX Runtime with the "
        "attention graph as the plugin's body",
        checks,
        versions=verification.versions("onnxruntime", "onnx"),
    )


def hold(
    checkpoint: Checkpoint, tokenizer: list[Path], folder: Path, config: ModelConfig, split: Split
) -> tuple[dict[str, Any], np.ndarray]:
    """What a record says of the folder's files; and the embedding [vocabulary, hidden]."""
    expected, layout = graphs(config, split)
    for name in expected:
        external.read_graph(folder, name)
    tables = (f"{EMBEDDING}.pt", f"{EMBEDDING}.safetensors")
    ours = {name: sealed.Ours(folder / name) for name in (*expected, *layout.sizes, *tables)}
    sealed.hold(folder, {**contents(checkpoint, tokenizer), **ours})
    for name, content in expected.items():
        if (folder / name).read_bytes() != content:
            raise Refused(f"{folder / name}: not what config.json asks for")
    sources = sources_of(checkpoint)
    checks = compare(folder, layout, sources, checkpoint)
    header = read_header(folder / tables[1])
    source, tensor = sources[weights.EMBEDDING], header.get("weight")
    if (
        set(header) != {"weight"}
        or tensor.shape != source.shape
        or tensor.dtype != split.form.float
    ):
        raise Refused(f"{folder / tables[1]}: not the checkpoint's embedding")
    dtype = "<f2" if tensor.dtype == "F16" else "<f4"
    table = np.memmap(folder / tables[1], dtype, "r", tensor.offset, tensor.shape)
    Comparison(folder / tables[1]).tensor(
        EMBEDDING,
        tensor.dtype,
        source,
        lambda a, b: table[a:b].astype(np.float32),
    )
    rows = (table[first : first + 1024].tobytes() for first in range(0, len(table), 1024))
    if not pt.holds(folder / tables[0], tensor.dtype, tensor.shape, rows):
        raise Refused(f"{folder / tables[0]}: not the checkpoint's embedding")
    return {"graphs": "equal", "embedding": "equal", **checks}, table


def refused(folder: Path, split: Split) -> bool:
    """Does plain ONNX Runtime refuse the first graph?  It would skip attention if it did not."""
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, NotImplemented

    path = folder / f"{NAMES[split.layout][0]}.onnx"
    try:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except (Fail, InvalidGraph, NotImplemented):
        return True
    raise Refused(f"{path}: runs without a plugin, expected attention to be left to one; report it")


def packed(
    folder: Path, model: Attended, embedding: np.ndarray, asked: list, alone: list, dtype: str
) -> dict[str, Any]:
    """Two requests at a time in one batch, beside each alone."""
    away, top = 0.0, max(float(np.abs(rows).max()) for rows in alone)
    half = len(asked) // 2
    if not half:
        raise Refused(f"{folder}: {len(asked)} prompts, expected two or more to put into one batch")
    for one in range(half):
        both = model.logits(embedding, [asked[one], asked[one + half]])
        for found, wanted in zip(both, (alone[one], alone[one + half]), strict=True):
            away = max(away, float(np.abs(found - wanted).max()) / top)
    if not away <= PACKED[dtype]:
        raise Refused(
            f"{folder}: of two requests in one batch a logit is off by {100 * away:.3g} % of the largest, "
            f"expected at most {100 * PACKED[dtype]:g} %"
        )
    return {
        "packed_batches": half,
        "packed_logit_difference": float(f"{away:.4g}"),
        "packed_limit": PACKED[dtype],
    }


def decoded(folder: Path, c: ModelConfig, split: Split) -> dict[str, Any]:
    """The second attention graph, a token after a past, beside the first graph on all of them."""
    import onnxruntime

    dtype, generator = np.dtype(DTYPES[split.dtype]), np.random.default_rng(0)
    prefill, decode = (
        onnxruntime.InferenceSession(
            str(folder / f"{name}.onnx"), providers=["CPUExecutionProvider"]
        )
        for name in NAMES[split.layout][1:]
    )
    widths = {"query_states": c.heads, "key_states": c.kv_heads, "value_states": c.kv_heads}
    count = 9
    feed = {
        name: generator.standard_normal((1, count, heads * c.head_dim)).astype(dtype)
        for name, heads in widths.items()
    }
    angles = generator.uniform(0, 6, (1, count, c.head_dim // 2))
    for name, function in (("cos", np.cos), ("sin", np.sin)):
        feed[name] = np.tile(function(angles), 2).astype(dtype)
    mask = np.triu(np.full((count, count), -3e4), 1)[None, None].astype(dtype)
    wanted, *caches = prefill.run(None, {**feed, "attention_mask": mask})
    if split.layout == HEADS:  # by token
        caches = [cache.transpose(0, 2, 1, 3) for cache in caches]
    past, differences = [cache[:, :, : count - 2] for cache in caches], []
    for at in (count - 2, count - 1):  # twice: what the first keeps, the second goes on from
        last = {name: value[:, at : at + 1] for name, value in feed.items()}
        zeros = np.zeros((1, 1, 1, at + 1), dtype)
        kept = dict(zip(("past_key", "past_value"), past, strict=True))
        found, *past = decode.run(None, {**last, "attention_mask": zeros, **kept})
        pairs = [(found, wanted[:, at : at + 1])]
        pairs += [(own, cache[:, :, : at + 1]) for own, cache in zip(past, caches, strict=True)]
        differences += [
            float(np.abs(one - other).max()) if one.shape == other.shape else np.inf
            for one, other in pairs
        ]
    away, limit = max(differences), 5e-3 if split.dtype == "fp16" else 1e-5
    if not away <= limit:
        raise Refused(
            f"{folder / NAMES[split.layout][2]}.onnx: off by {away:.3g} from {NAMES[split.layout][1]}, "
            f"expected at most {limit:g}"
        )
    return {"decode_difference": float(f"{away:.4g}"), "decode_limit": limit}


if __name__ == "__main__":
    step(verify_torchpipe)
