"""Export a checkpoint as ONNX: a decoder without KV cache, float16.  Runs in envs/rtx.

The folder holds model.onnx, its weights beside it, config.json and SHA256SUMS.
"""

import argparse
from pathlib import Path

from ingot.architecture.config import read_config
from ingot.checkpoint.files import Checkpoint, add_checkpoint
from ingot.entry import run
from ingot.files import sealed
from ingot.files.atomic import replacing
from ingot.onnx import decoder


def export_onnx(checkpoint: Checkpoint, onnx: Path, architecture: str | None = None) -> None:
    config = read_config(checkpoint["config.json"], architecture)
    with replacing(onnx) as partial:
        partial.mkdir()
        decoder.write(checkpoint, config, partial)
        sealed.seal(partial)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_checkpoint(parser)
    parser.add_argument("--architecture", help="what config.json must say")
    parser.add_argument("--onnx", type=Path, required=True, help="the folder to write")
    export_onnx(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
