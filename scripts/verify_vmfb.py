"""Run a compiled program and compare it with transformers.  Runs in envs/iree.

Each prompt is prefilled, then the reference's tokens are fed one by one: the token chosen at every
step must be the reference's, unless float16 cannot tell the reference's two best apart, and no
logit may be further off than the tolerance.  The prompts take turns through all exported batches.
"""

import json
from pathlib import Path
from typing import Annotated

from ingot.base.console import stderr_to_log
from ingot.base.options import RecordFile, ReferenceFile, ScoresFile, TextsFile, step
from ingot.base.refused import Refused
from ingot.formats.iree.program import Program
from ingot.parity import verification

# Of the corpus: on a CPU attention takes 3 s of 512 tokens even of the demo
WINDOWS, LENGTH = 8, 256
WEIGHTS = {"bfloat16": "bf16"}  # a program of float32 has those of float16


def verify_vmfb(
    vmfb: Annotated[Path, "the program to run"],
    config: Annotated[Path, "the server's config"],
    parameters: Annotated[list[Path], "IRPA files"],
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    device: Annotated[str, "local-task, cuda or hip"],
    record: RecordFile,
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
        checks = check.checks(vmfb) | check.logits(vmfb, TOLERANCE[program.dtype])
        kind = WEIGHTS.get(program.dtype, "f16")
        numbers = divergence.measure(
            vmfb, texts_of.read(texts), scores, program.prefilled, WINDOWS, LENGTH
        )
    verification.write(
        record,
        vmfb,
        sha256,
        "transformers in float32, greedy",
        {
            **checks,
            "numbers": divergence.held(vmfb, numbers, limits.numbers(kind, {})),
        },
        batches={"prefill": program.prefill_sizes, "decode": program.decode_sizes},
        parameters=[verification.digest(path) for path in parameters],
        versions=verification.versions("iree-base-runtime", "numpy"),
    )


if __name__ == "__main__":
    step(verify_vmfb)
