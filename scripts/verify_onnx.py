"""Compare an ONNX folder with its checkpoint, and run it by its two runtimes.  Runs in envs/onnx.

Every file must be just what follows from the checkpoint and the catalogue: each float weight the nearest
of its dtype, each int8 one the nearest of its scale.  Greedy tokens, with the KV cache, must be those of
transformers, and so must distributions over a corpus.
"""

from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.console import stderr_to_log
from ingot.base.options import (
    Architecture,
    Limits,
    ReadingFile,
    RecordFile,
    ReferenceFile,
    ScoresFile,
    TextsFile,
    TokenizerFiles,
    step,
)
from ingot.base.refused import Refused
from ingot.formats.onnx import decoder, external, folder, weights
from ingot.formats.onnx.session import Session
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.config import ModelConfig, read_config
from ingot.parity import divergence, in_genai, limits, verification
from ingot.parity import reading as reading_of
from ingot.parity import texts as texts_of
from ingot.parity.adapted import sources as sources_of
from ingot.parity.greedy import GreedyCheck, padded
from ingot.parity.onnx_weights import compare
from ingot.parity.reference import TOLERANCE, read


def verify_onnx(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    onnx: Annotated[Path, "artifacts/M.onnx"],
    export: folder.Export,
    reading: ReadingFile,
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    limit: Limits = (),
    architecture: Architecture = None,
) -> None:
    sha256 = verification.digest(onnx)
    config = read_config(checkpoint["config.json"], architecture, can=weights.CAN)
    model = external.read_graph(onnx)
    if cached := export.graph != decoder.PREFILL:
        external.hold_lengths(onnx, model)
    checks = hold(checkpoint, tokenizer, config, export, onnx)
    opened(onnx)
    kind, dtype = kinds(export)
    lossy = kind == "int8"
    check, corpus = GreedyCheck(read(reference), dtype, rough=lossy), texts_of.read(texts)
    if cached:
        in_genai.as_read(onnx, reading_of.read(reading), corpus.vocabulary["ends"])
    with stderr_to_log(f"{onnx}: running the prompts"):
        session = Session(onnx)
        for answer in check.answers:
            check.rows(answer, session.forced(answer.prompt, answer.tokens))
        checks |= check.checks(onnx) | check.logits(onnx, None if lossy else TOLERANCE[dtype])
        if export.graph == decoder.PORTABLE:
            checks |= padded(onnx, check, session.padded)
        numbers = divergence.measure(onnx, corpus, scores, session.logits)
        del session
        if cached:
            answered = in_genai.continued(onnx, GreedyCheck(check.answers, dtype, lossy), corpus)
            checks |= {"onnxruntime_genai": answered}
    own = limits.numbers(kind, limits.pairs(limit))
    verification.write(
        record,
        onnx,
        sha256,
        "the checkpoint, value by value; transformers in float32, greedy, by ONNX Runtime and "
        "onnxruntime-genai",
        {**checks, "numbers": divergence.held(onnx, numbers, own, folder.ADVICE)},
        versions=verification.versions("onnxruntime", "onnxruntime-genai", "onnx"),
    )


def opened(onnx: Path) -> None:
    """Refuse a folder that onnx does not read where it lies: its full checker, and its loader of data."""
    from onnx import TensorProto, checker, load
    from onnx.external_data_helper import load_external_data_for_tensor

    path = onnx / decoder.GRAPH
    try:
        checker.check_model(str(path), full_check=True)
        for tensor in load(path, load_external_data=False).graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                one = TensorProto()  # a message of its own: the graph's would keep the data of all
                one.CopyFrom(tensor)
                load_external_data_for_tensor(one, str(onnx))
    except Exception as error:
        words = " ".join(str(error).split())
        raise Refused(
            f"{path}: onnx cannot read it ({words:.200}), expected a graph that it does"
        ) from None


def kinds(export: folder.Export) -> tuple[str, str]:
    """The name of the format's limits, and what is computed in."""
    form = export.form
    if form.dtype == "int8":
        return "int8", "float32"
    return ("f16", "float16") if form.dtype == "fp16" else ("f32", "float32")


def hold(
    checkpoint: Checkpoint,
    tokenizer: list[Path],
    config: ModelConfig,
    export: folder.Export,
    onnx: Path,
) -> dict[str, Any]:
    """What a record says of the folder's files.  Refused where one is not what follows from the source."""
    graph, layout = decoder.build(config, export.form, export.graph)
    data = {name: sealed.Ours(onnx / name) for name in layout.sizes}
    small = folder.contents(checkpoint, tokenizer, config, export)
    sealed.hold(onnx, {**small, **data, decoder.GRAPH: sealed.Ours(onnx / decoder.GRAPH)})
    if (onnx / decoder.GRAPH).read_bytes() != graph:
        raise Refused(
            f"{onnx / decoder.GRAPH}: not the graph that config.json and the catalogue ask for"
        )
    return {"graph": "equal", **compare(onnx, layout, sources_of(checkpoint), checkpoint)}


if __name__ == "__main__":
    step(verify_onnx)
