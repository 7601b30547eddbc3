"""Compare a checkpoint for MLX with its source, and run it in mlx-lm on the CPU.  Runs in envs/mlx.

Each tensor must be what mlx-lm and mlx make of the checkpoint.  Then mlx-lm runs it in float32: a part of
the prompts and of the corpus, since MLX's kernels are slow on a CPU.
"""

from pathlib import Path
from typing import Annotated

from ingot.base.console import stderr_to_log
from ingot.base.options import (
    Limits,
    RecordFile,
    ReferenceFile,
    ScoresFile,
    TextsFile,
    TokenizerFiles,
    step,
)
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import (
    checkpoint_folder,
    divergence,
    limits,
    mlx_model,
    tokenizer_folder,
    verification,
)
from ingot.parity import texts as texts_of
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import TOLERANCE, Answer, read

KINDS = {0: "f32", 4: "4bit", 8: "8bit"}  # of limits
PROMPTS, WINDOWS = 8, 2  # of the reference and of the corpus
ADVICE = "take more bits, or set `limits` of the catalogue"


def verify_mlx(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    mlx_: Annotated[Path, "artifacts/M.4bit.mlx"],
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    bits: Annotated[int, "that were asked for; 0: as it is", tuple(KINDS)] = 0,
    limit: Limits = (),
) -> None:
    sha256 = verification.digest(mlx_)
    compared = mlx_model.MlxComparison(mlx_, checkpoint, bits)
    checkpoint_folder.hold_files(mlx_, tokenizer, compared.shards, index=True)
    checks = compared.run()
    corpus, answers = texts_of.read(texts), some(read(reference))
    checks |= corpus.checks(mlx_, tokenizer_folder.ids_of(mlx_), tokenizer_folder.chat_of(mlx_))
    with stderr_to_log(f"{mlx_}: running by mlx-lm"):
        logits = mlx_model.logits_of(mlx_model.load(mlx_))
        check = GreedyCheck(answers, "float32", rough=bool(bits))
        for answer in answers:
            check.rows(answer, answer.forced(logits))
        checks |= check.checks(mlx_)
        checks |= check.logits(mlx_, None if bits else TOLERANCE["float32"])
        numbers = divergence.measure(mlx_, corpus, scores, logits, most=WINDOWS)
    own = limits.numbers(KINDS[bits], limits.pairs(limit))
    verification.write(
        record,
        mlx_,
        sha256,
        "mlx's own codes of the checkpoint, byte by byte; transformers in float32: tokens and "
        "distributions, by mlx-lm in float32",
        {**checks, "numbers": divergence.held(mlx_, numbers, own, ADVICE)},
        versions=verification.versions("mlx", "mlx-lm"),
    )


def some(answers: list[Answer]) -> list[Answer]:
    """PROMPTS of them, from the shortest to the longest."""
    known = sorted(answers, key=lambda answer: len(answer.prompt))
    last = len(known) - 1
    return [known[n * last // (PROMPTS - 1)] for n in range(min(PROMPTS, len(known)))]


if __name__ == "__main__":
    step(verify_mlx)
