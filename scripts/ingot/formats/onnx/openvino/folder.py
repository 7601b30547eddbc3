"""A folder of OpenVINO IR: written from a checkpoint, by way of an ONNX folder that is deleted again."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.fields import read_json
from ingot.formats.onnx import decoder, write
from ingot.formats.onnx.folder import hold_layers
from ingot.formats.onnx.openvino import ir
from ingot.formats.onnx.weights import CAN, Form
from ingot.model.checkpoint.files import Checkpoint, name_of
from ingot.model.checkpoint.rows import Rows
from ingot.model.config import read_config

SETTINGS = "tokenizer_config.json"
Weights = Annotated[str, "of weights", ("fp32", "int8")]  # options of a step
FloatLayers = Annotated[list[str], "that int8 leaves in float32"]


def form_of(dtype: str, float_layers: Sequence[str]) -> Form:
    return Form(dtype, "dequantized", float_layers=tuple(float_layers))


def write_folder(
    checkpoint: Checkpoint,
    tokenizer: list[Path],
    openvino: Path,
    form: Form,
    architecture: str | None = None,
) -> None:
    """The IR, the tokenizer's, and the checkpoint's own small files, in the new folder `openvino`."""
    config = read_config(checkpoint["config.json"], architecture, can=CAN)
    hold_layers(checkpoint["config.json"], config, form)
    graph, layout = decoder.build(config, form, decoder.PORTABLE)
    with Rows(checkpoint, config, openvino.name) as rows, replacing(openvino) as partial:
        rows.check({stored.source: stored.shape for stored in layout.stored})
        partial.mkdir()
        with stderr_to_log(f"{openvino}: converting the tokenizer"):
            ir.convert_tokenizer(tokenizer, partial)
        onnx = partial / "onnx"
        onnx.mkdir()
        write.write(rows, layout, onnx, openvino)
        rows.finish()
        (onnx / decoder.GRAPH).write_bytes(graph)
        with stderr_to_log(f"{openvino}: converting by OpenVINO"):
            ir.convert(onnx, partial)
        shutil.rmtree(onnx)
        sealed.fill(partial, small(checkpoint, tokenizer))


def small(checkpoint: Checkpoint, tokenizer: list[Path]) -> sealed.Contents:
    """The checkpoint's own files beside the IR."""
    found: sealed.Contents = {name_of(path): path for path in tokenizer}
    found["config.json"] = checkpoint["config.json"]
    settings = read_json(found[SETTINGS])
    plain = {name: _text(name, value) for name, value in settings.items()}
    if plain != settings:  # openvino_genai 2026.4 takes special tokens as texts only
        found[SETTINGS] = json.dumps(plain, indent=2) + "\n"
    return found


def _text(name: str, value: Any) -> Any:
    return value["content"] if name.endswith("_token") and isinstance(value, dict) else value
