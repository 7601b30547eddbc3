"""Compare an OpenVINO folder with its checkpoint, and run it by its two runtimes.  Runs in envs/openvino.

A second build must give the same bytes; the IR's constants must be the checkpoint's values, or the nearest
int8 of their scale.  Tokens and logits are checked against transformers' with everything computed in
float32, and once more, for the record, with the defaults of this machine's CPU.
"""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ingot.base import sealed
from ingot.base.console import stderr_to_log
from ingot.base.options import (
    Architecture,
    Limits,
    RecordFile,
    ReferenceFile,
    ScoresFile,
    TextsFile,
    TokenizerFiles,
    step,
)
from ingot.base.refused import Refused
from ingot.formats.onnx import decoder
from ingot.formats.onnx.openvino import ir
from ingot.formats.onnx.openvino.folder import FloatLayers, Weights, form_of, write_folder
from ingot.formats.onnx.openvino.session import EXACT, Session, generated, token_ids
from ingot.formats.onnx.weights import CAN, ROWS, SCALE, Form
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.config import read_config
from ingot.parity import divergence, limits, verification
from ingot.parity import texts as texts_of
from ingot.parity.adapted import sources as sources_of
from ingot.parity.greedy import GreedyCheck, padded
from ingot.parity.int8_weights import Int8Comparison
from ingot.parity.reference import TOLERANCE, read
from ingot.parity.values import Comparison

BYTE = "<0x0A>"
ADVICE = "name layers in onnx.float_layers, or set `limits` of the catalogue"


def verify_openvino(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    openvino: Annotated[Path, "artifacts/M.openvino"],
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    limit: Limits = (),
    architecture: Architecture = None,
    dtype: Weights = "fp32",
    float_layers: FloatLayers = (),
) -> None:
    form = form_of(dtype, float_layers)
    sha256 = verification.digest(openvino)
    built_again(openvino, checkpoint, tokenizer, form, record, architecture)
    checks = constants(openvino, checkpoint, form, architecture)
    answers, corpus, lossy = read(reference), texts_of.read(texts), form.dtype == "int8"
    with stderr_to_log(f"{openvino}: running the prompts"):
        exact, check = Session(openvino, EXACT), GreedyCheck(answers, "float32", rough=lossy)
        forced(exact, check)
        checks |= check.checks(openvino)
        checks |= check.logits(openvino, None if lossy else TOLERANCE["float32"])
        checks |= padded(openvino, check, exact.padded)
        if BYTE in corpus.vocabulary["tokens"]:  # SentencePiece's
            checks |= corpus.nearly(openvino, token_ids(openvino))
        else:
            checks |= corpus.checks(openvino, token_ids(openvino), None)
        numbers = divergence.measure(openvino, corpus, scores, exact.logits)
        usual = GreedyCheck(answers, "bfloat16", rough=True)
        forced(Session(openvino, {}), usual)
        checks["defaults_of_this_cpu"] = usual.checks(openvino) | usual.logits(openvino, None)
        asked = [(answer.prompt, len(answer.tokens)) for answer in answers]
        check = GreedyCheck(answers, "float32", rough=lossy)
        for answer, said in zip(answers, generated(openvino, asked, EXACT), strict=True):
            check.tokens(answer, said)
        checks["openvino_genai"] = check.checks(openvino)
    own = limits.numbers("int8" if lossy else "f32", limits.pairs(limit))
    verification.write(
        record,
        openvino,
        sha256,
        "a second build, byte by byte; the checkpoint, value by value; transformers in float32, greedy, by "
        "OpenVINO and openvino_genai",
        {**checks, "numbers": divergence.held(openvino, numbers, own, ADVICE)},
        versions=verification.versions("openvino", "openvino-genai", "openvino-tokenizers"),
    )


def forced(session: Session, check: GreedyCheck) -> None:
    for answer in check.answers:
        check.rows(answer, session.forced(answer.prompt, answer.tokens))


def built_again(
    openvino: Path,
    checkpoint: Checkpoint,
    tokenizer: list[Path],
    form: Form,
    record: Path,
    architecture: str | None,
) -> None:
    """Refused unless the folder's bytes are those of a second build."""
    with tempfile.TemporaryDirectory(prefix=".", dir=record.absolute().parent) as place:
        again = Path(place) / openvino.name
        write_folder(checkpoint, tokenizer, again, form, architecture)
        names = {path.relative_to(again).as_posix(): path for path in sealed.files(again)}
        sealed.hold(openvino, names)


def constants(
    openvino: Path, checkpoint: Checkpoint, form: Form, architecture: str | None
) -> dict[str, Any]:
    """What a record says of the IR's constants, each the tensor of its name."""
    from openvino import Core

    config = read_config(checkpoint["config.json"], architecture, can=CAN)
    layout = decoder.build(config, form, decoder.PORTABLE)[1]
    model, named = Core().read_model(str(openvino / f"{ir.STEM}.xml")), {}
    for op in model.get_ops():
        if op.get_type_name() == "Constant":
            named[op.get_friendly_name()] = op.data
    floats, int8, sources = (
        Comparison(openvino),
        Int8Comparison(openvino),
        sources_of(checkpoint),
    )
    for tensor in layout.stored:
        name, source = tensor.source, sources[tensor.source]
        values, scales = named.get(name), named.get(name + SCALE)
        quantised = tensor.kind == ROWS
        if values is None or (quantised and (scales is None or values.dtype != np.int8)):
            raise Refused(f"{openvino}: has no constant {name}, expected one")
        if quantised:
            both = values, scales.reshape(-1)
            int8.tensor(
                source, source.shape[1], tensor.most, lambda a, b, x=both: (x[0][a:b], x[1][a:b])
            )
        else:
            floats.tensor(name, "F32", source, lambda a, b, v=values: v.reshape(len(v), -1)[a:b])
    return {**floats.checks(), **int8.checks()}


if __name__ == "__main__":
    step(verify_openvino)
