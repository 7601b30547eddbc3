"""Rewrite an adapter of PEFT as GGUF, which llama.cpp applies to its base's file.  Runs in envs/convert.

The base's weights are not read: its config.json says what each matrix is called, and how it is stored.  The
file is byte-identical to the one that llama.cpp's converter writes of the adapter without a model card; but
the scales of rslora and of alpha_pattern, which that leaves out, are in it.
"""

from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base import stream
from ingot.base.atomic import replacing_hashed
from ingot.base.options import Architecture, step
from ingot.base.refused import Refused
from ingot.formats.gguf import lora as lora_of
from ingot.formats.gguf.file import layout as gguf_layout
from ingot.model.checkpoint import adapter
from ingot.model.checkpoint.adapter import Adapter, Lora
from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.checkpoint.merge import values
from ingot.model.config import ModelConfig, read_config
from ingot.model.specs import TensorSpec, shapes_of, specs_of
from ingot.model.tensors.cast import unpermute
from ingot.model.tensors.dtypes import TYPES


def lora_to_gguf(
    checkpoint: Checkpoint,
    lora: Annotated[Path, "the file to write"],
    name: Annotated[str, "general.name"],
    license: Annotated[str | None, "general.license"] = None,
    architecture: Architecture = None,
) -> None:
    config = read_config(checkpoint["config.json"], architecture, lora_of.CAN)
    found = adapter.read(checkpoint)
    if not found:
        raise Refused(
            f"{checkpoint}: no {ADAPTER} among its files, expected an adapter's; name one"
        )
    if config.experts and any(".experts." in name for name in found.loras):
        raise Refused(
            f"{found.path}: adapts single experts, which llama.cpp's format of adapters stacks; ask for "
            "the merged .gguf"
        )
    specs = {spec.source: spec for spec in specs_of(config, "f32") if spec.source}
    found.fits(shapes_of(config), adapter.TIED if config.tied else ())
    kvs = lora_of.pairs(config, name, license, found.alpha)
    pairs = [(specs[source], pair) for source, pair in ordered(found)]
    sizes = [
        (f"{spec.name}.lora_{letter}", TYPES["F32"], one.shape)
        for spec, pair in pairs
        for letter, one in (("a", pair.a), ("b", pair.b))
    ]
    layout = gguf_layout(kvs, sizes)
    places = iter(layout.entries)
    with replacing_hashed(lora) as partial:
        out = stream.Output(partial.path, layout.size, lora)
        try:
            out.put(layout.head, 0)
            for spec, pair in pairs:
                for one in written(spec, pair, found.alpha, config):
                    out.put(one.tobytes(), next(places).offset)
        finally:
            out.close()
        partial.sha256 = out.finish()


def ordered(found: Adapter) -> list[tuple[str, Lora]]:
    """As they lie in the adapter's file.  Refused: what llama.cpp's format cannot say."""
    embeddings = (name for name, pair in found.loras.items() if pair.embedding)
    if odd := next(iter((*found.replaced, *embeddings)), None):
        raise Refused(
            f"{found.path}: changes all of {odd}, or an embedding, which llama.cpp's format cannot say; "
            "build the merged .gguf"
        )
    return sorted(found.loras.items(), key=lambda item: min(item[1].a.offset, item[1].b.offset))


def written(
    spec: TensorSpec, pair: Lora, alpha: float, config: ModelConfig
) -> tuple[np.ndarray, np.ndarray]:
    """A pair's two matrices, float32: libllama multiplies their product by alpha / r."""
    a, b = values(pair.a), values(pair.b)
    share = pair.scale / (alpha / pair.rank)
    if share != 1:
        b = (b * np.float64(share)).astype(np.float32)
    if spec.heads:
        b = unpermute(b.view(np.uint32), config.head_dim).view(np.float32)
    return a, b


if __name__ == "__main__":
    step(lora_to_gguf)
