"""Run the ONNX that a TensorRT for RTX engine is built of, and build the engine again.  Runs in envs/rtx.

The engine itself cannot be loaded without a GPU: what is verified is the graph, by ONNX Runtime against
transformers' greedy tokens, and that the same bytes come of it.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from ingot.checkpoint.config import read_config, read_json, view
from ingot.files.console import chatter_to_stdout
from ingot.onnx import decoder as onnxdecoder
from ingot.tensorrt.rtx import engine
from ingot.verify import record as records
from ingot.verify.reference import MOST_TIES, peak, read, summary


def verify_rtx(checkpoint: Path, rtx: Path, reference: Path, record: Path) -> None:
    sha256 = records.digest(rtx)
    told, config = read_json(rtx / "config.json"), read_config(checkpoint / "config.json")
    answers = read(reference)
    top, equal, ties = peak(answers), 0, 0
    with tempfile.TemporaryDirectory() as place, chatter_to_stdout(f"{rtx}: running its ONNX"):
        import onnxruntime

        path = onnxdecoder.write(checkpoint, config, told["max_seq_len"], Path(place))
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        for answer in answers:
            whole = np.array([[*answer.prompt, *answer.tokens[:-1]]], np.int64)
            logits = session.run(None, {"input_ids": whole})[0][0, len(answer.prompt) - 1 :]
            off = logits.argmax(-1) != answer.tokens
            equal += not off.any()
            ties += bool(off.any() and not (off & ~answer.ties(top, "float16")).any())
        again = engine(path, told["targets"], told["max_seq_len"])
    if equal + ties < len(answers) or ties > MOST_TIES * len(answers):
        sys.exit(
            f"{rtx}: its ONNX continues {equal} of {len(answers)} prompts as transformers does, "
            "expected all; build it again"
        )
    if again != (rtx / "model.engine").read_bytes():
        sys.exit(f"{rtx / 'model.engine'}: another build gives other bytes, expected the same")
    records.write(
        record,
        rtx,
        sha256,
        "transformers in float32, greedy, by ONNX Runtime on the engine's graph",
        {**summary(answers), "tokens_equal": equal, "tokens_ties": ties, "built_again_equal": True},
        versions=records.versions("onnxruntime", "tensorrt_rtx"),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--checkpoint", type=Path, nargs="+", required=True, help="a folder, or files of one"
    )
    parser.add_argument("--rtx", type=Path, required=True, help="artifacts/M.rtx")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    options = vars(parser.parse_args(argv))
    with view(options.pop("checkpoint")) as checkpoint:
        verify_rtx(checkpoint, **options)


if __name__ == "__main__":
    main()
