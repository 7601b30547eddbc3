"""Run an ONNX folder that onnxruntime-genai's builder wrote, beside transformers.  Runs in envs/onnx.

The builder's exit status says nothing: graphs of it that load, and compute something else, have been seen.
By onnxruntime-genai the folder must have transformers' greedy tokens, and its distributions but for
rounding.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from ingot.base.console import stderr_to_log
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
from ingot.formats.onnx import external
from ingot.parity import divergence, in_genai, limits, verification
from ingot.parity import reading as reading_of
from ingot.parity import texts as texts_of
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import read

# right folders of Gemma are off by 3e-3 of a logit and by 1.5e-5 nats, where ONNX Runtime computes its
# gelu faster; wrong ones were off by 2.7e-4 nats and more
TIES, BUILT = "float16", {"mean_kl": 5e-5, "same_top": 0.99}
# attributes of the graph -> of transformers' reading
READ = {"epsilon": "epsilon", "local_window_size": "window"}
EVERYTHING = -1  # the window of a layer that has none
ADVICE = "the builder's graph computes another model than transformers: see docs/breadth.md"


def verify_built_onnx(
    onnx: Annotated[Path, "artifacts/M.onnx"],
    reading: ReadingFile,
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    limit: Limits = (),
) -> None:
    sha256 = verification.digest(onnx)
    model, known = reading_of.outline(reading), texts_of.read(texts)
    as_read(onnx, external.read_graph(onnx), model)
    in_genai.as_read(onnx, model, known.vocabulary["ends"])
    check, room = GreedyCheck(read(reference), TIES), (model.get("window") or 0) + 1
    longest = max(len(one.prompt) + len(one.tokens) for one in check.answers)
    with (
        stderr_to_log(f"{onnx}: running the prompts"),
        verification.run_by("onnxruntime-genai", onnx),
    ):
        session = in_genai.Session(onnx, max(room, longest))
        for answer in check.answers:
            check.rows(answer, session.forced(answer.prompt, answer.tokens))
        checks = check.checks(onnx) | check.logits(onnx, None)
        numbers = divergence.measure(onnx, known, scores, session.logits)
        del session
        again = GreedyCheck(check.answers, TIES)
        checks["onnxruntime_genai"] = in_genai.continued(onnx, again, known, room)
    own = BUILT | limits.pairs(limit)
    verification.write(
        record,
        onnx,
        sha256,
        "transformers in float32, by onnxruntime-genai: greedy tokens, distributions",
        {**checks, "numbers": divergence.held(onnx, numbers, own, ADVICE)},
        way="upstream: onnxruntime-genai's models.builder",
        versions=verification.versions("onnxruntime", "onnxruntime-genai", "onnx"),
    )


def as_read(onnx: Path, graph: Any, model: reading_of.Reading) -> None:
    """Refuse a graph whose epsilon or window is not transformers': a short run shows neither."""
    said: dict[str, set] = {name: set() for name in READ}
    for node in graph.graph.node:
        for one in node.attribute:
            if one.name in READ:
                said[one.name].add(np.float32(one.f or one.i))
    for name, key in READ.items():
        expected = model.get(key)
        found = {value for value in said[name] if value != EVERYTHING}
        if key == "epsilon" and expected is None:
            continue
        if found != ({np.float32(expected)} if expected else set()):
            raise Refused(
                f"{onnx}: {name} of its graph is {sorted(found)}, expected {expected} by transformers"
            )


if __name__ == "__main__":
    step(verify_built_onnx)
