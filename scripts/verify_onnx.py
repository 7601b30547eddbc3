"""Run an ONNX graph by ONNX Runtime; its tokens must be transformers'.  Runs in envs/rtx."""

import argparse
from pathlib import Path

import numpy as np

from ingot.entry import run
from ingot.terminal.console import stderr_to_log
from ingot.verify import verification
from ingot.verify.greedy import GreedyCheck
from ingot.verify.reference import read


def verify_onnx(onnx: Path, reference: Path, record: Path) -> None:
    sha256 = verification.digest(onnx)
    check = GreedyCheck(read(reference), "float16")
    with stderr_to_log(f"{onnx}: running the prompts"):
        import onnxruntime

        path = onnx / "model.onnx"
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for answer in check.answers:
            whole = np.array([[*answer.prompt, *answer.tokens[:-1]]], np.int64)
            logits = session.run(None, {"input_ids": whole})[0][0, len(answer.prompt) - 1 :]
            check.steps(answer, logits.argmax(-1))
    verification.write(
        record,
        onnx,
        sha256,
        "transformers in float32, greedy, by ONNX Runtime",
        check.checks(onnx),
        versions=verification.versions("onnxruntime", "onnx"),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--onnx", type=Path, required=True, help="artifacts/M.onnx")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_onnx(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
