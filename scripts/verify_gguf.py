"""Compare a GGUF file with the checkpoint it was made from, and run it.  Runs in envs/llamacpp.

The metadata must be exactly those that follow from the checkpoint's config, tokenizer and generation
files, and the catalogue.  Tensors, read by the gguf package, are put back in the checkpoint's order and
compared value by value: equal where the dtype can hold the value, the nearest one otherwise; those of
k-quants must be what ggml makes of the checkpoint's rows again.  libllama loads the file: its tokens of
hard texts and its dialogues must be transformers', its greedy tokens too where the dtype is a float, and
its distributions over a corpus within the limits of the format.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ingot.base import claim
from ingot.base.fields import read_json
from ingot.base.options import (
    Limits,
    ReadingFile,
    RecordFile,
    ReferenceFile,
    ScoresFile,
    TextsFile,
    step,
)
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.formats.gguf import header, libllama, metadata, quantisations, quants
from ingot.formats.gguf.metadata import FILE_TYPE
from ingot.formats.gguf.plan import planned
from ingot.formats.gguf.quants import Imatrix
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.config import ModelConfig, read_config
from ingot.model.rope import YarnRope
from ingot.model.specs import specs_of
from ingot.model.tensors.dtypes import TYPES
from ingot.parity import joined_experts, limits, scaled_weights, verification
from ingot.parity import reading as reading_of
from ingot.parity import reference as reference_of
from ingot.parity import texts as texts_of
from ingot.parity.adapted import sources as sources_of
from ingot.parity.in_libllama import COMPUTED, Expected, as_tokenized, opened, ran
from ingot.parity.reading import Reading
from ingot.parity.values import Comparison, forget, parts, row_order, values

READ = {  # of its header, behind the architecture's name -> of transformers' reading of config.json
    "block_count": "layers",
    "context_length": "context",
    "embedding_length": "hidden",
    "feed_forward_length": "ffn",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab",
}
LATENT = {  # what READ says otherwise of heads that share a latent: to libllama they are one
    "attention.head_count_kv": "one",
    "attention.key_length": "latent",
    "attention.value_length": "kv_rank",
    "attention.key_length_mla": "head_dim",
    "attention.value_length_mla": "value_dim",
    "attention.kv_lora_rank": "kv_rank",
}
MORE = {  # that few families have: by what libllama takes where they are not said
    "attention.scale": "attention_scale",
    "embedding_scale": "embedding_scale",
    "residual_scale": "residual_scale",
    "logit_scale": "logit_scale",
    "attn_logit_softcapping": "attention_cap",
    "final_logit_softcapping": "logit_cap",
    "attention.sliding_window": "window",
    "rope.freq_base_swa": "sliding_theta",
    "expert_count": "experts",
    "expert_used_count": "experts_used",
    "expert_feed_forward_length": "expert_ffn",
    "rope.dimension_count": "turned",
    "attention.q_lora_rank": "q_rank",
    "leading_dense_block_count": "dense_layers",
    "expert_group_count": "groups",
    "expert_group_used_count": "groups_used",
    "expert_weights_norm": "experts_normed",
    "rope.scaling.attn_factor": "factor",
    "rope.scaling.original_context_length": "original",
}
VALUES = (
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "MXFP4",
)  # whose values are the checkpoint's, or the nearest
WINDOWLESS = ("phi3",)  # whose header says a window that libllama does not go by
ONES = ("embedding_scale", "residual_scale", "logit_scale")  # to libllama, where they are not said
BASE = "rope.freq_base"
SAID = {  # tensors -> of config.json's scaling
    "rope_factors_long.weight": "long_factor",
    "rope_factors_short.weight": "short_factor",
}
DEFAULTS = (
    BASE,
    "vocab_size",
    "attention.key_length",
    "attention.value_length",
)


def verify_gguf(
    checkpoint: Checkpoint,
    reading: ReadingFile,
    gguf: Annotated[Path, "the file to check"],
    dtype: Annotated[str, "of the matrices", sorted({*FILE_TYPE, *quantisations.ROWS})],
    name: Annotated[str, "general.name"],
    pre_tokenizer: Annotated[str, "such as llama-bpe"],
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    license: Annotated[str | None, "general.license"] = None,
    imatrix: Annotated[Path | None, "that it was quantised by"] = None,
    limit: Limits = (),
) -> None:
    sha256 = verification.digest(gguf)
    config = read_config(checkpoint["config.json"], can=metadata.CAN)
    matrix = quants.read_imatrix(imatrix) if imatrix else None
    float_type = dtype if dtype in FILE_TYPE else "f32"
    kvs = header.pairs(checkpoint, config, float_type, name, pre_tokenizer, license)
    specs = specs_of(config, float_type)
    types = {spec.name: spec.type for spec in specs}
    if dtype in quantisations.ROWS:
        types = planned(record, kvs, specs, dtype, matrix)
        kvs = quants.header(kvs, dtype, matrix)
    checks = {"metadata_pairs": len(kvs), **compared(checkpoint, config, gguf, kvs, types, matrix)}
    said = {name: field.contents() for name, field in opened(gguf).fields.items()}
    model = reading_of.read(reading)
    as_read(gguf, said, model)
    as_tokenized(gguf, said, texts_of.read(texts).vocabulary)
    kind = kind_of(dtype, config)
    computed = computed_in(dtype, model) if kind == dtype else None
    expected = Expected(
        reference,
        texts_of.read(texts),
        scores,
        limits.numbers(kind, limits.pairs(limit or [])),
        computed,
        reference_of.TOLERANCE[computed] if computed else None,
    )
    checks |= ran(gguf, pre_tokenizer, config.context, expected)
    verification.write(
        record,
        gguf,
        sha256,
        "the checkpoint, value by value, its config and tokenizer files; transformers, by libllama",
        checks,
        **({"imatrix": verification.digest(imatrix)} if imatrix else {}),
        versions={**verification.versions("gguf", "numpy"), "llama.cpp": libllama.version()},
    )


def kind_of(dtype: str, config: ModelConfig) -> str:
    """By which limits a file is judged."""
    if config.packed and dtype in FILE_TYPE:
        return "q8_0"  # to which libllama rounds what it multiplies MXFP4 by
    if isinstance(config.rope, YarnRope) and not config.rope.truncate and dtype in FILE_TYPE:
        return "q8_0"  # libllama rounds YaRN's bounds, and a router may choose another expert
    return dtype


def computed_in(dtype: str, model: Reading) -> str | None:
    """What libllama computes in, of a file whose greedy tokens are transformers'."""
    computed = COMPUTED.get(dtype)
    if model["experts"] and dtype != "f32":  # a value that is rounded may choose another expert
        return None
    if model["activation"] != "silu" and computed == "float32":
        return "float16"  # ggml's table of gelu has 16 bits
    return computed


def as_read(gguf: Path, said: dict, model: Reading) -> None:
    """Refuse a file whose numbers, read by gguf-py, are not transformers' of the checkpoint."""
    architecture = said.get("general.architecture")
    names = READ | (LATENT if model["latent"] else {})
    model = model | {"one": 1}
    for word, name in names.items():
        key = f"{architecture}.{word}"
        if key not in said and word in DEFAULTS:  # then libllama runs it by its own
            if word == BASE and model[name] != 1e4:
                raise Refused(f"{gguf}: {key} is missing, expected {model[name]} by transformers")
            continue
        value = np.float32(model[name]) if isinstance(said.get(key), float) else model[name]
        if said.get(key) != value:
            raise Refused(f"{gguf}: {key} is {said.get(key)}, expected {value} by transformers")
    if model["latent"]:
        as_latent(gguf, said, model)
    longer = model["rope_type"] == "longrope"
    model = model | {
        "turned": 2 * len(model["frequencies"]),
        "factor": model["rope_scale"] if longer else 1,
        # of others, libllama goes by it in no way, or a run shows it
        "original": model["original_context"]
        if longer
        else said.get(f"{architecture}.rope.scaling.original_context_length"),
        "window": model["window"] or (model["every_window"] if architecture in WINDOWLESS else 0),
    }
    unsaid = dict.fromkeys(ONES, 1) | {"attention_scale": _scale(model), "factor": 1}
    unsaid["turned"] = model["head_dim"]
    if model["latent"]:
        unsaid["attention_scale"] = model["attention_scale"]  # as_latent has looked
    if model["experts"]:
        unsaid["expert_ffn"] = model["ffn"]
    for word, name in MORE.items():
        found, wanted = said.get(f"{architecture}.{word}", unsaid.get(name, 0)), model[name] or 0
        if np.float32(found) != np.float32(wanted):
            raise Refused(f"{gguf}: {word} is {found}, expected {wanted} by transformers")
    kind = {"default": None, "llama3": None, "longrope": None}.get(
        model["rope_type"], model["rope_type"]
    )
    if (found := said.get(f"{architecture}.rope.scaling.type")) != kind:
        raise Refused(f"{gguf}: rope scaling is {found}, expected {kind} by transformers")
    if kind == "yarn":
        as_turned(gguf, said, model)


def as_latent(gguf: Path, said: dict, model: Reading) -> None:
    """Refuse a file whose router, or whose scores, libllama would compute otherwise than transformers."""
    place = f"{said['general.architecture']}."
    gates, gate = {1: "softmax", 2: "sigmoid"}, said.get(f"{place}expert_gating_func", 1)
    shared = said.get(f"{place}expert_shared_count", 0) * model["expert_ffn"]
    by_libllama = {
        "experts_gate": gates.get(gate),
        "shared_ffn": shared,
        "experts_scale": np.float32(said.get(f"{place}expert_weights_scale", 1)),
    }
    for name, found in by_libllama.items():
        wanted = np.float32(model[name]) if name == "experts_scale" else model[name]
        if found != wanted:
            raise Refused(f"{gguf}: {name} is {found}, expected {wanted} by transformers")
    # src/models/deepseek2.cpp: of YaRN, scores grow with the square of this
    factor = said.get(f"{place}rope.scaling.factor", 1)
    more = said.get(f"{place}rope.scaling.yarn_log_multiplier", 0)
    scale = (1 + more * np.log(factor)) ** 2 * model["head_dim"] ** -0.5
    if not np.isclose(scale, model["attention_scale"], 1e-6, 0) or model["rope_scale"] != 1:
        raise Refused(
            f"{gguf}: its scores are multiplied by {scale:.6g}, expected {model['attention_scale']:.6g} by "
            "transformers"
        )


def as_turned(gguf: Path, said: dict, model: Reading) -> None:
    """Refuse a file of which YaRN's numbers give other frequencies, by its paper, than transformers has.

    A run of quantised weights does not show them.  Bounds between which it blends are whole numbers, or
    not, where libllama rounds them all the same.
    """
    if not said.get(f"{said['general.architecture']}.rope.scaling.original_context_length"):
        raise Refused(f"{gguf}: YaRN's original_context_length is missing, expected a number")
    place, dim = f"{said['general.architecture']}.rope", 2 * len(model["frequencies"])
    base, factor, original, fast, slow = (
        said.get(f"{place}.{key}", usual)
        for key, usual in (
            ("freq_base", 1e4), ("scaling.factor", 1), ("scaling.original_context_length", 0),
            ("scaling.yarn_beta_fast", 32), ("scaling.yarn_beta_slow", 1),
        )
    )  # fmt: skip
    at = np.arange(dim // 2)
    plain = float(base) ** (-2 * at / dim)
    low, high = (
        dim * np.log(original / (2 * np.pi * turns)) / (2 * np.log(base)) for turns in (fast, slow)
    )
    for first, last in ((low, high), (np.floor(low), np.ceil(high))):
        first, last = max(0, first), min(dim - 1, last)
        blend = np.clip((at - first) / max(0.001, last - first), 0, 1)
        if np.allclose(plain * (1 - blend + blend / factor), model["frequencies"], 1e-5, 0):
            return
    raise Refused(f"{gguf}: YaRN's numbers give other frequencies of rope than transformers has")


def _scale(model: Reading) -> float:
    """What libllama divides scores by, of its own: which of two it is a run shows."""
    wide = (model["hidden"] // model["heads"]) ** -0.5
    return wide if model["attention_scale"] == wide else model["head_dim"] ** -0.5


def compared(
    checkpoint: Checkpoint,
    config: ModelConfig,
    gguf: Path,
    kvs: list,
    types: dict,
    matrix: Imatrix | None,
) -> dict:
    """What a record says of the header and of every value."""
    sources = sources_of(checkpoint)
    joined: dict[str, Any] = {}
    if config.family.stacks:
        joined = {**joined_experts.sources(checkpoint)}
    if config.latent:
        joined |= scaled_weights.of_heads(checkpoint, sources, values)
    reader = opened(gguf)
    header.check(gguf, reader.fields, kvs)
    found = {tensor.name: tensor for tensor in reader.tensors}
    specs = specs_of(config, "f32")  # for the names; the file says its own types
    if sorted(found) != sorted(spec.name for spec in specs):
        raise Refused(f"{gguf}: {len(found)} tensors, expected {len(specs)}")
    comparison, together = Comparison(gguf), hashlib.sha256()
    errors: dict[str, float] = {}  # largest per type
    progress = Progress(gguf.name, sum(int(tensor.n_bytes) for tensor in reader.tensors))
    for spec in specs:
        tensor = found[spec.name]
        kind = tensor.tensor_type.name
        if kind != types[spec.name].name:
            raise Refused(f"{gguf}: tensor {spec.name} is {kind}, expected {types[spec.name].name}")
        shape = [int(size) for size in reversed(tensor.shape)]
        mine = [joined[spec.name]] if spec.name in joined else []
        mine = mine or [sources[name] for name in spec.sources]
        wanted = [config.rope_dim // 2]
        if spec.name in joined:
            wanted = [*joined[spec.name].whole]
        elif spec.source:
            wanted = [*[len(spec.sources)] * spec.stacked, *mine[0].shape]
        if shape != wanted:
            raise Refused(f"{gguf}: tensor {spec.name} has shape {shape}, expected {wanted}")
        if spec.source is None:
            check_rope(gguf, spec.name, tensor.data, checkpoint, config)
            comparison.equal()
        for number, source in enumerate(mine):
            order = row_order(spec.heads, config.head_dim, source.shape)
            order += number * source.shape[0]  # rows of the experts before it
            if kind in VALUES:

                def rows(first: int, last: int, tensor=tensor, order=order):
                    got = dequantized(tensor, order[first:last])
                    together.update(np.ascontiguousarray(got))
                    forget(reader)
                    return got

                comparison.tensor(spec.name, kind, source, rows, spec.plus)
            else:
                error = requantised(gguf, spec.name, tensor, source, order, matrix, reader)
                errors[kind] = max(errors.get(kind, 0), round(error, 6))
                comparison.counts["values"] += int(np.prod(source.shape))
                comparison.equal(False)
        progress.add(int(tensor.n_bytes))
    checks = comparison.checks()
    if errors:
        known = {kind: limits.ERROR[kind] for kind in errors}
        return {**checks, "errors": errors, "error_limits": known}
    return {**checks, "values_sha256": together.hexdigest()}


def requantised(
    gguf: Path,
    name: str,
    tensor,
    source: Tensor,
    order: np.ndarray,
    matrix: Imatrix | None,
    reader,
) -> float:
    """Relative error of a quantised tensor; its bytes must be those that ggml makes of the source."""
    kind = TYPES[tensor.tensor_type.name]
    columns = matrix.columns.get(name) if matrix else None
    away, all_of = 0.0, 0.0

    def squares(rows: tuple[int, int]) -> tuple[float, float]:
        """Of the error and of the values, summed."""
        first, last = rows
        wanted = values(source, first, last)
        raw = np.ascontiguousarray(rows_of(tensor)[order[first:last]])
        forget(reader)
        if not np.array_equal(libllama.quantised(wanted, kind, columns).reshape(raw.shape), raw):
            raise Refused(f"{gguf}: tensor {name} is not the checkpoint's in {kind.name}")
        got = dequantized(tensor, order[first:last])
        error, size = (np.square(one, dtype=np.float64).sum() for one in (got - wanted, wanted))
        return float(error), float(size)

    # ggml leaves Python's lock alone; base/stream's threads are the makers', so they are not these
    with ThreadPoolExecutor(claim.cores()) as pool:
        for one, other in pool.map(squares, parts(source)):
            away += one
            all_of += other
    error = (away / all_of) ** 0.5 if all_of else 0.0
    if not error <= limits.ERROR[kind.name]:
        raise Refused(
            f"{gguf}: tensor {name} is off by {error:.3f} of its weights in {kind.name}, expected at "
            f"most {limits.ERROR[kind.name]}; take a type of more bits"
        )
    return error


def check_rope(
    gguf: Path, name: str, factors: np.ndarray, checkpoint: Checkpoint, config: ModelConfig
) -> None:
    """Llama 3.1's divisors by the formula of transformers' modeling_rope_utils, or what LongRoPE says."""
    rope, half = config.rope, config.head_dim // 2
    if name in SAID:
        said = read_json(checkpoint["config.json"])
        wanted = (said.get("rope_parameters") or said["rope_scaling"])[SAID[name]]
    else:
        turns = rope.original_context * config.rope_theta ** -(np.arange(half) / half) / (2 * np.pi)
        blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        blend = np.clip(blend, 0, 1)  # 0: all of the factor, 1: none
        wanted = 1 / ((1 - blend) / rope.factor + blend)
    if not np.allclose(factors, wanted, rtol=1e-5, atol=0):
        raise Refused(f"{gguf}: tensor {name} is not config.json's scaling")


def dequantized(tensor, order):
    from gguf import quants

    return quants.dequantize(np.ascontiguousarray(rows_of(tensor)[order]), tensor.tensor_type)


def rows_of(tensor):
    """Its bytes or values, row by row: of experts one behind the other, of a vector value by value."""
    data = tensor.data
    return data.reshape(-1, data.shape[-1] if data.ndim > 1 else 1)


if __name__ == "__main__":
    step(verify_gguf)
