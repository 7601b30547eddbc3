"""Export a model's program as MLIR, from its config.json alone.  Runs in envs/iree.

No weight is read: the exporter gets an archive of the right names, shapes and dtypes whose data is
a hole in the file system.  The program is the same as from the real archive (tests/test_iree.py).
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from ingot import irpa, llama
from ingot.atomic import replacing
from ingot.checkpoint import Llama3Rope, ModelConfig, read_config
from ingot.quiet import chatter_to_stdout


def export_mlir(
    config: Path,
    dtype: str,
    architecture: str | None,
    mlir: Path,
    server_config: Path,
    parameters: Path | None,
    flags: list[str],
) -> None:
    model = read_config(config, architecture)
    if model.tied:
        sys.exit(
            f"{config}: tie_word_embeddings is true, expected false: sharktank exports no tied "
            "output layer; give the checkpoint an lm_head.weight of its own"
        )
    with (
        tempfile.TemporaryDirectory() as folder,
        replacing(mlir) as partial_mlir,
        replacing(server_config) as partial_config,
    ):
        if parameters is None:
            parameters = Path(folder) / "skeleton.irpa"
            write_skeleton(model, dtype, parameters)
        argv = [
            f"--irpa-file={parameters}",
            f"--output-mlir={partial_mlir}",
            f"--output-config={partial_config}",
            *flags,
        ]
        with chatter_to_stdout(f"{mlir}: exporting"):
            run_exporter(argv, model.rope)


def write_skeleton(model: ModelConfig, dtype: str, path: Path) -> None:
    """An archive of `model` whose tensors are a hole: some kilobytes on disk, whatever its size."""
    plans = llama.plans(model, dtype)
    front, _, blobs, size = irpa.layout(
        skeleton_properties(model, dtype), [(p.name, p.type.name, p.shape) for p in plans]
    )
    with path.open("wb") as file:
        file.write(front)
        for offset, text in blobs.items():
            file.seek(offset)
            file.write(text)
        os.truncate(file.fileno(), size)


def skeleton_properties(model: ModelConfig, dtype: str) -> dict[str, Any]:
    """The properties that decide the program: all that a GGUF file says, but for the tokenizer."""
    pairs = {
        kv.key: llama.f32(kv.value) if kv.kind == "f32" else kv.value
        for kv in llama.hyperparameters(model, dtype)
    }
    return {"schema": "GGUF", "general.architecture": "llama", **pairs}


def run_exporter(argv: list[str], rope: Llama3Rope | None) -> None:
    """sharktank's exporter, told of the rope scaling that neither of its importers passes on."""
    from sharktank.layers.configs.llm_configs import LlamaHParams

    stock = LlamaHParams.from_gguf_props

    def from_gguf_props(properties: dict[str, Any]) -> LlamaHParams:
        hparams = stock(properties)
        if rope:  # named after yarn, but the layer computes the llama3 formula from them
            hparams.yarn_factor = rope.factor
            hparams.yarn_beta_slow = rope.low_freq_factor
            hparams.yarn_beta_fast = rope.high_freq_factor
            hparams.yarn_original_context_len = rope.original_context
        return hparams

    LlamaHParams.from_gguf_props = staticmethod(from_gguf_props)  # before the exporter is imported
    from sharktank.examples import export_paged_llm_v1

    sys.argv = ["export_paged_llm_v1", *argv]
    export_paged_llm_v1.main()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="the checkpoint's config.json")
    parser.add_argument("--dtype", default="f16", help="dtype of the weights (default: f16)")
    parser.add_argument("--architecture", help="what config.json must say")
    parser.add_argument("--mlir", type=Path, required=True, help="the program to write")
    parser.add_argument(
        "--server-config", type=Path, required=True, help="the server's config to write"
    )
    parser.add_argument("--parameters", type=Path, help="a real archive, not the skeleton")
    parser.add_argument("flags", nargs="*", help="after --: flags for sharktank's exporter")
    export_mlir(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
