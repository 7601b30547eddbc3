"""A checkpoint's shards, quantised, streamed from its own: each becomes one of the same name.

Memory does not grow with the model, but for the scales of one tensor at a time.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ingot.base import stream
from ingot.base.refused import Refused
from ingot.model.checkpoint.quantised import blocks, codes, schemes
from ingot.model.checkpoint.quantised.schemes import Scheme
from ingot.model.checkpoint.rows import Rows
from ingot.model.checkpoint.safetensors import BESIDE, Tensor, file_layout, read_checkpoint
from ingot.model.config import ModelConfig
from ingot.model.specs import DROPPED, EMBEDDING, HEAD, specs_of
from ingot.model.tensors.dtypes import STORED

WEIGHT = ".weight"
# layers that servers compute as one, whose scales of a set must be one: behind the last dot, and why
JOINED = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv",
    "gate_proj": "gate_up", "up_proj": "gate_up", "w1": "gate_up", "w3": "gate_up",
}  # fmt: skip


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Of all tensors that the checkpoint must hold, by name."""
    return {name: one.source_shape for one in specs_of(config, "f16") for name in one.sources}


@functools.lru_cache(64)  # of each target of each model it is asked
def linear(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The weights that are quantised, by name, and their shapes: no embedding, no head, no router."""
    found = {}
    for spec in specs_of(config, "f16"):
        for name in spec.sources:
            matrix = len(spec.source_shape) == 2 and spec.type.name == "F16"
            if matrix and name not in (EMBEDDING, HEAD):
                found[name] = spec.source_shape
    return found


def undivided(shapes: dict[str, tuple[int, ...]], scheme: Scheme) -> str | None:
    """Why the scheme's groups do not divide the rows of linear layers, or None."""
    for name, shape in shapes.items():
        if shape[1] % scheme.divides:
            return (
                f"{name} has rows of {shape[1]}, expected a multiple of {scheme.divides} for "
                f"{scheme.preset}; take fp8 or w8a8"
            )
    return None


def set_of(name: str) -> str:
    """What the layers that a server joins with this one have in common."""
    before, _, last = name.removesuffix(WEIGHT).rpartition(".")
    return f"{before}.{JOINED.get(last, last)}"


class Plan:
    """What each shard will hold.  Refused: rows that the scheme's groups do not divide."""

    def __init__(self, rows: Rows, scheme: Scheme):
        self.rows, self.scheme = rows, scheme
        self.linear = linear(rows.config)
        # as the base has them: an adapter's own stand in files of its
        base = read_checkpoint(rows.checkpoint, merges=True)
        self.shards: dict[str, list[tuple[str, Tensor]]] = {}
        for name, tensor in base.items():
            left_out = name.endswith(DROPPED) or (rows.config.tied and name == HEAD)
            if not left_out:
                self.shards.setdefault(tensor.path.name, []).append((name, tensor))
        if reason := undivided(self.linear, scheme):
            raise Refused(f"{rows.checkpoint}: {reason}")

    def parts(self, name: str, tensor: Tensor) -> list[schemes.Part]:
        """What stands in its place, by whole names."""
        if name not in self.linear:
            return [(tensor.name, tensor.dtype, tensor.shape)]
        stem = tensor.name.removesuffix(WEIGHT)
        found = self.scheme.parts(tensor.shape, tensor.dtype)
        return [(f"{stem}.{end}", dtype, shape) for end, dtype, shape in found]

    def layout(self, shard: str):
        """Of the file; refused where a tensor would begin in the middle of its own values."""
        parts = [part for item in self.shards[shard] for part in self.parts(*item)]
        found = file_layout(
            {name: (dtype, shape) for name, dtype, shape in parts}, {"format": "pt"}
        )
        for name, dtype, _ in parts:
            if found.entries[name] % STORED[dtype].itemsize:
                raise Refused(
                    f"{self.rows.checkpoint}: {name} would not be aligned, expected rows in fours"
                )
        return found

    def left(self) -> list[str]:
        """For `ignore`: the layers whose matrices stay as they are.

        Of the parts beside that for text a pattern, since libraries name them otherwise.
        """
        found = {"lm_head": None}  # in their order
        for name, tensor in (item for items in self.shards.values() for item in items):
            if not name.endswith(WEIGHT) or len(tensor.shape) < 2 or name in self.linear:
                continue
            part = next((one for one in BESIDE if name.startswith(one)), "")
            plain = part.removeprefix("model.").rstrip(".")
            found[f"re:.*{plain}.*" if part else tensor.name.removesuffix(WEIGHT)] = None
        return [*found]


def write(
    plan: Plan, folder: Path, final: Path, quotient: str, of_sets: dict[str, float]
) -> dict[str, str]:
    """The shards in `folder`, which will be named `final`; the SHA-256 of each by its name."""
    layouts = {shard: plan.layout(shard) for shard in plan.shards}
    with blocks.outputs(layouts, folder, final) as (outs, places):
        turns = [plan.rows.turns, *(out.turns for out in outs.values())]
        for _ in plan.rows.passes(*outs.values()):
            stream.in_threads(_jobs(plan, outs, places, quotient, of_sets), turns)
        return {name: out.finish() for name, out in outs.items()}


def largest_of_sets(plan: Plan) -> dict[str, float]:
    """The largest weight of each set of layers, without its sign, by a read of its own."""
    found: dict[str, float] = {}

    def look(read: Callable, name: str) -> None:
        values = np.frombuffer(read(), np.float32)
        largest = float(max(values.max(), -values.min()))
        with plan.rows.lock:
            found[set_of(name)] = max(found.get(set_of(name), 0.0), largest)

    def jobs() -> Iterator[Callable[[], None]]:
        for items in plan.shards.values():
            for name, tensor in items:
                for _, _, read in plan.rows.blocks(blocks.spec_of(name, tensor.shape)):
                    yield functools.partial(look, read, name) if name in plan.linear else read

    stream.in_threads(jobs(), [plan.rows.turns])
    return found


def _jobs(
    plan: Plan,
    outs: dict[str, stream.Output],
    places: dict[str, dict[str, int]],
    quotient: str,
    of_sets: dict[str, float],
) -> blocks.Jobs:
    """One job per block of rows, and one for what stands behind the codes of a tensor."""
    scheme = plan.scheme
    for shard, items in plan.shards.items():
        out, at = outs[shard], places[shard]
        for name, tensor in items:
            first, *_ = parts = plan.parts(name, tensor)
            if name not in plan.linear:
                spec = blocks.spec_of(name, tensor.shape, tensor.dtype)
                yield from blocks.copied(plan.rows, spec, out, at[tensor.name])
                continue
            to = "F32" if quotient == schemes.FLOAT32 else tensor.dtype
            scale = 1.0
            if scheme.of_sets:
                scale = codes.scale_of_set(of_sets[set_of(name)], tensor.dtype)
            last = b"".join(_constant(part, tensor.shape, scale) for part in parts[2:])
            code = functools.partial(scheme.codes, of_set=scale, stored=tensor.dtype, to=to)
            spec = blocks.spec_of(name, tensor.shape, tensor.dtype if scheme.rows > 1 else "F32")
            yield from blocks.coded(
                plan.rows, spec, out, parts[:2], at[first[0]], code, scheme.rows, last
            )


def _constant(part: blocks.Part, shape: tuple[int, ...], scale: float) -> bytes:
    """A tensor that is the same for all rows: the shape of the weight, or the scale of its set."""
    said = np.array(shape, "<i8") if part[1] == schemes.COUNT else np.float32(scale)
    return said.tobytes()
