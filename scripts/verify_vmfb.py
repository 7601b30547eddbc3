"""Run a compiled program and compare it with transformers.  Runs in envs/iree.

Each prompt is prefilled, then the reference's tokens are fed one by one: the token chosen at every
step must be the reference's, unless float16 cannot tell the reference's two best apart, and no
logit may be further off than the tolerance.  The prompts take turns through all exported batches.
"""

import argparse
import json
from pathlib import Path

from ingot.entry import run
from ingot.iree.program import Program
from ingot.refused import Refused
from ingot.terminal.console import stderr_to_log
from ingot.verify import verification

WINDOWS = 8  # of the corpus: on a CPU one takes a second even of the demo
WEIGHTS = {"bfloat16": "bf16"}  # a program of float32 has those of float16


def verify_vmfb(
    vmfb: Path,
    config: Path,
    parameters: list[Path],
    reference: Path,
    texts: Path,
    scores: Path,
    device: str,
    record: Path,
) -> None:
    sha256 = verification.digest(vmfb)
    with stderr_to_log(f"{vmfb}: running the prompts"):
        import numpy as np

        from ingot.parity import divergence, limits
        from ingot.parity import texts as texts_of
        from ingot.parity.greedy import GreedyCheck
        from ingot.parity.reference import TOLERANCE, read

        answers = read(reference)
        program = Program(vmfb, json.loads(config.read_bytes()), parameters, device)
        check = GreedyCheck(answers, program.dtype)
        for turn, answer in enumerate(answers):
            rows = program.logits(turn, answer.prompt, answer.tokens)
            if not np.isfinite(rows).all():
                length = len(answer.prompt)
                raise Refused(
                    f"{vmfb}: logits of a prompt of {length} tokens are not finite; see {config}"
                )
            check.rows(answer, rows)
        largest = max(check.away)
        limit, kind = TOLERANCE[program.dtype], WEIGHTS.get(program.dtype, "f16")
        if largest > limit * check.top:
            raise Refused(
                f"{vmfb}: a logit is off by {largest:.4f}, expected at most {limit * check.top:.4f}; is "
                "the rope scaling in the program?"
            )
        numbers = divergence.measure(vmfb, texts_of.read(texts), scores, program.prefilled, WINDOWS)
    verification.write(
        record,
        vmfb,
        sha256,
        "transformers in float32, greedy",
        {
            **check.checks(vmfb),
            "largest_logit_difference": round(largest, 6),
            "largest_logit": round(check.top, 6),
            "difference_limit": {"dtype": program.dtype, "share_of_largest_logit": limit},
            "numbers": divergence.held(vmfb, numbers, limits.numbers(kind, {})),
        },
        batches={"prefill": program.prefill_sizes, "decode": program.decode_sizes},
        parameters=[verification.digest(path) for path in parameters],
        versions=verification.versions("iree-base-runtime", "numpy"),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vmfb", type=Path, required=True, help="the program to run")
    parser.add_argument("--config", type=Path, required=True, help="the server's config")
    parser.add_argument("--parameters", type=Path, nargs="+", required=True, help="IRPA files")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument("--texts", type=Path, required=True, help="by encode_texts.py")
    parser.add_argument("--scores", type=Path, required=True, help="by score_corpus.py")
    parser.add_argument("--device", required=True, help="local-task, cuda or hip")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_vmfb(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
