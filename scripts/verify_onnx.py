"""Run an ONNX graph by ONNX Runtime; its tokens must be transformers'.  Runs in envs/rtx."""

import argparse
from pathlib import Path

import numpy as np

from ingot.entry import run
from ingot.parity import divergence, limits
from ingot.parity import texts as texts_of
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import read
from ingot.terminal.console import stderr_to_log
from ingot.verify import verification


def verify_onnx(onnx: Path, reference: Path, texts: Path, scores: Path, record: Path) -> None:
    sha256 = verification.digest(onnx)
    check = GreedyCheck(read(reference), "float16")
    corpus = texts_of.read(texts)
    with stderr_to_log(f"{onnx}: running the prompts"):
        import onnxruntime

        path = onnx / "model.onnx"
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

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
        "transformers in float32, greedy, by ONNX Runtime",
        {
            **check.checks(onnx),
            "numbers": divergence.held(onnx, numbers, limits.numbers("f16", {}), "build it again"),
        },
        versions=verification.versions("onnxruntime", "onnx"),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--onnx", type=Path, required=True, help="artifacts/M.onnx")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument("--texts", type=Path, required=True, help="by encode_texts.py")
    parser.add_argument("--scores", type=Path, required=True, help="by score_corpus.py")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_onnx(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
