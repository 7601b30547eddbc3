"""Hold an ONNX folder against its checkpoint, and run it by ONNX Runtime.  Runs in envs/rtx.

The graph and its settings must be just those that follow from config.json, each weight the nearest
float16 of the checkpoint's; greedy tokens and distributions must be transformers'.
"""

import argparse
from pathlib import Path

import numpy as np

from ingot.architecture.config import ModelConfig, read_config
from ingot.checkpoint.files import Checkpoint, add_checkpoint
from ingot.checkpoint.safetensors import read_checkpoint
from ingot.entry import run
from ingot.files import sealed
from ingot.onnx import decoder
from ingot.parity import divergence, limits
from ingot.parity import texts as texts_of
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import read
from ingot.refused import Refused
from ingot.terminal.console import stderr_to_log
from ingot.verify import verification
from ingot.verify.values import Comparison


def verify_onnx(
    checkpoint: Checkpoint,
    onnx: Path,
    reference: Path,
    texts: Path,
    scores: Path,
    record: Path,
    architecture: str | None = None,
) -> None:
    sha256 = verification.digest(onnx)
    compared = weights(checkpoint, read_config(checkpoint["config.json"], architecture), onnx)
    check = GreedyCheck(read(reference), "float16")
    corpus = texts_of.read(texts)
    with stderr_to_log(f"{onnx}: running the prompts"):
        import onnxruntime

        session = onnxruntime.InferenceSession(
            onnx / decoder.GRAPH, providers=["CPUExecutionProvider"]
        )

        def logits(ids: list[int]) -> np.ndarray:
            found = session.run(None, {"input_ids": np.array([ids], np.int64)})[0]
            return found[0].astype(np.float32)

        for answer in check.answers:
            rows = logits([*answer.prompt, *answer.tokens[:-1]])[len(answer.prompt) - 1 :]
            check.steps(answer, rows.argmax(-1))
        numbers = divergence.measure(onnx, corpus, scores, logits)
    verification.write(
        record,
        onnx,
        sha256,
        "the checkpoint, value by value; transformers in float32, greedy, by ONNX Runtime",
        {
            **compared,
            **check.checks(onnx),
            "numbers": divergence.held(onnx, numbers, limits.numbers("f16", {}), "build it again"),
        },
        versions=verification.versions("onnxruntime", "onnx"),
    )


def weights(checkpoint: Checkpoint, config: ModelConfig, onnx: Path) -> dict:
    """What a record says of the folder's files.  Refused where one is not the checkpoint's."""
    graph, placed, size = decoder.build(config)
    names = {path.name for path in sealed.files(onnx)}
    if odd := sorted(names ^ {decoder.GRAPH, decoder.DATA, decoder.SETTINGS}):
        word = "not part of an export" if odd[0] in names else "missing, expected a part"
        raise Refused(f"{onnx / odd[0]}: {word}; build it again")
    wanted = {decoder.GRAPH: graph, decoder.SETTINGS: decoder.settings(config).encode()}
    for name, content in wanted.items():
        if (onnx / name).read_bytes() != content:
            raise Refused(f"{onnx / name}: not what config.json asks for; build it again")
    data = onnx / decoder.DATA
    if data.stat().st_size != size:
        raise Refused(f"{data}: {data.stat().st_size} bytes, expected {size}; build it again")
    sources, comparison = read_checkpoint(checkpoint), Comparison(data)
    for spec, offset in placed:
        if spec.source not in sources:
            raise Refused(f"{checkpoint}: tensor {spec.source} is in no shard; fetch it again")
        row = int(np.prod(spec.shape[1:]))

        def found(first: int, last: int, start: int = offset, row: int = row) -> np.ndarray:
            count = (last - first) * row
            return np.fromfile(data, np.float16, count, offset=start + 2 * first * row).astype(
                np.float32
            )

        comparison.tensor(spec.name, "F16", sources[spec.source], found)
    return {"graph": "equal", **comparison.checks()}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_checkpoint(parser)
    parser.add_argument("--architecture", help="what config.json must say")
    parser.add_argument("--onnx", type=Path, required=True, help="artifacts/M.onnx")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument("--texts", type=Path, required=True, help="by encode_texts.py")
    parser.add_argument("--scores", type=Path, required=True, help="by score_corpus.py")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_onnx(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
