"""Build a TensorRT for RTX engine from a checkpoint, by way of ONNX.  Runs in envs/rtx; needs no GPU.

A decoder without KV cache: proof that ONNX becomes an engine here, not something to serve with.
TensorRT for RTX is proprietary: its licence says what may be done with an engine.
"""

import argparse
import json
import tempfile
from pathlib import Path

from ingot.checkpoint.config import read_config, view
from ingot.files import sealed as folder
from ingot.files.atomic import replacing
from ingot.files.console import chatter_to_stdout
from ingot.onnx import decoder as onnxdecoder
from ingot.tensorrt import rtx

MOST = 2048  # tokens, where the model's context is longer: the mask is a constant
LICENCE = """\
model.engine was built by NVIDIA TensorRT for RTX, which is proprietary software.  Whether and how this
file may be used or passed on is for its licence to say, which comes with the package tensorrt_rtx.
"""


def build_rtx(checkpoint: Path, targets: list[str], out: Path, architecture: str | None) -> None:
    config = read_config(checkpoint / "config.json", architecture)
    longest = min(config.context, MOST)
    with chatter_to_stdout(f"{out}: building by TensorRT for RTX"), replacing(out) as partial:
        partial.mkdir()
        with tempfile.TemporaryDirectory(dir=partial) as place:
            path = onnxdecoder.write(checkpoint, config, longest, Path(place))
            (partial / "model.engine").write_bytes(rtx.engine(path, targets, longest))
        told = {"targets": targets, "max_seq_len": longest, "versions": version()}
        (partial / "config.json").write_text(json.dumps(told, indent=2) + "\n")
        (partial / "LICENCE").write_text(LICENCE)
        folder.seal(partial)


def version() -> dict[str, str]:
    from importlib.metadata import version as of

    return {name: of(name) for name in ("tensorrt_rtx", "onnx")}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checkpoint", type=Path, nargs="+", required=True, help="a folder, or files of one"
    )
    parser.add_argument(
        "--targets", nargs="+", choices=rtx.TARGETS, default=["SM86", "SM89", "SM120"]
    )
    parser.add_argument("--architecture", help="what config.json must say")
    parser.add_argument("--rtx", type=Path, required=True, dest="out", help="the folder to write")
    options = vars(parser.parse_args(argv))
    with view(options.pop("checkpoint")) as checkpoint:
        build_rtx(checkpoint, **options)


if __name__ == "__main__":
    main()
