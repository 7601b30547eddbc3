"""Run an OpenVINO folder that optimum-intel wrote, beside transformers.  Runs in envs/openvino.

The exporter's exit status says nothing.  By OpenVINO with everything computed in float32, the folder must
have transformers' greedy tokens, and its distributions but for rounding, or for what its weights lost; and
openvino_genai, which serves it, the same tokens.
"""

from pathlib import Path
from typing import Annotated

import numpy as np

from ingot.base.console import stderr_to_log
from ingot.base.fields import read_json
from ingot.base.options import (
    Limits,
    ReadingFile,
    RecordFile,
    ReferenceFile,
    ScoresFile,
    TextsFile,
    step,
)
from ingot.base.refused import Refused
from ingot.formats.onnx.openvino import ir
from ingot.formats.onnx.openvino.session import EXACT, Session, generated, token_ids
from ingot.parity import divergence, limits, verification
from ingot.parity import reading as reading_of
from ingot.parity import texts as texts_of
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import read

KINDS = {"fp32": "f32", "int8": "int8", "int4": "int4"}  # weights: whose limits
ADVICE = "the IR computes another model than transformers: see docs/breadth.md"
LOST = "its weights lost more than they may: set `limits` of the catalogue, or take more bits"


def verify_built_openvino(
    openvino: Annotated[Path, "artifacts/M.openvino"],
    reading: ReadingFile,
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    weights: Annotated[str, "their format", tuple(KINDS)] = "fp32",
    limit: Limits = (),
) -> None:
    sha256 = verification.digest(openvino)
    model, known = reading_of.outline(reading), texts_of.read(texts)
    answers, lossy = read(reference), weights != "fp32"
    with (
        stderr_to_log(f"{openvino}: running the prompts"),
        verification.run_by("OpenVINO", openvino),
    ):
        as_read(openvino, *ir.said(openvino), model, known.vocabulary["ends"])
        session, check = Session(openvino, EXACT), GreedyCheck(answers, "float32", rough=lossy)
        for answer in answers:
            check.rows(answer, session.forced(answer.prompt, answer.tokens))
        checks = check.checks(openvino) | check.logits(openvino, None)
        numbers = divergence.measure(openvino, known, scores, session.logits)
        del session
        checks |= known.nearly(openvino, token_ids(openvino))
        asked = [(answer.prompt, len(answer.tokens)) for answer in answers]
        check = GreedyCheck(answers, "float32", rough=lossy)
        for answer, said in zip(answers, generated(openvino, asked, EXACT), strict=True):
            ended = len(said) if {*said[-1:]} & {*known.vocabulary["ends"]} else None
            check.tokens(answer.upto(ended), said)
        checks["openvino_genai"] = check.checks(openvino)
    own = limits.numbers(KINDS[weights], limits.pairs(limit))
    verification.write(
        record,
        openvino,
        sha256,
        "transformers in float32, by OpenVINO and openvino_genai: greedy tokens, distributions",
        {**checks, "numbers": divergence.held(openvino, numbers, own, LOST if lossy else ADVICE)},
        way="upstream: optimum-intel",
        versions=verification.versions("openvino", "openvino-genai", "openvino-tokenizers"),
    )


def as_read(
    openvino: Path,
    epsilons: set[np.float32],
    numbers: set[int],
    model: reading_of.Reading,
    ends: list[int],
) -> None:
    """Refuse a folder whose epsilon, window or ends are not transformers': a short run shows none."""
    said = read_json(openvino / "generation_config.json").get("eos_token_id")
    if sorted({said} if isinstance(said, int) else {*(said or ())}) != sorted(ends):
        raise Refused(
            f"{openvino / 'generation_config.json'}: eos_token_id is {said}, expected {ends} by "
            "transformers"
        )
    wanted, window = model.get("epsilon"), model.get("window")
    if wanted is not None and epsilons != {np.float32(wanted)}:
        raise Refused(
            f"{openvino}: epsilon of its norms is {sorted(epsilons)}, expected {wanted} by transformers"
        )
    if window and not {window, -window} & numbers:
        raise Refused(
            f"{openvino}: no window of {window} in its graph, expected that of transformers"
        )


if __name__ == "__main__":
    step(verify_built_openvino)
