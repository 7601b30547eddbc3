"""Serve a bundle with the real Ray Serve and compare each application's answers.  Runs in envs/vllm.

Each file must be the part that it was assembled from.  Greedy tokens and log-probabilities of each
application are transformers', alone and with others beside them; a stream says what the whole answer says.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.console import heartbeat
from ingot.base.fields import read_json
from ingot.base.options import RecordFile, TextsFile, step
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import texts as texts_of
from ingot.parity import verification
from ingot.parity.divergence import log_softmax
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import Answer, read
from ingot.serving.rayserve import bundle as bundle_of
from ingot.serving.rayserve.server import Server
from ingot.serving.vllm.bundle import TOLERANCE, stored

AT_ONCE = 6


def verify_rayserve(
    bundle: Annotated[Path, "artifacts/M_tpN.rayserve"],
    texts: TextsFile,
    record: RecordFile,
    parts: bundle_of.Parts,
) -> None:
    sha256 = verification.digest(bundle)
    checks: dict[str, Any] = {"files_equal": sealed.hold(bundle, bundle_of.contents(**vars(parts)))}
    answers, corpus = read(parts.reference[0]), texts_of.read(texts)
    known, dtype = read_json(bundle / "smoke.json")["applications"], parts.settings["dtype"]
    if dtype == "auto":
        dtype = stored(Checkpoint(parts.checkpoint)["config.json"])
    if parts.quantised:  # kernels of a scheme round as they like
        dtype = "bfloat16"
    started = time.monotonic()
    with heartbeat(f"{bundle}: asking the server"), Server(bundle, Path(sys.executable)) as server:
        ready = time.monotonic() - started
        for one in known:
            checks[one["name"]] = Asker(server, one).checks(bundle, answers, corpus, dtype)
    verification.write(
        record,
        bundle,
        sha256,
        "transformers in float32, greedy, by each application of Ray Serve",
        checks,
        seconds={"to_ready": round(ready, 2)},
        versions=verification.versions("ray", "vllm", "onnxruntime", "openvino"),
    )


class Asker:
    """One application."""

    def __init__(self, server: Server, known: dict[str, Any]):
        self.server, self.name, self.model = server, known["name"], known["model"]
        self.route = known["route"].rstrip("/")

    def checks(self, bundle: Path, answers: list[Answer], corpus, dtype: str) -> dict[str, Any]:
        where, int8 = bundle / f"{self.name}", self.name != "llm"
        dtype = "float32" if int8 else dtype
        check = GreedyCheck(answers, dtype, rough=int8)
        limit = TOLERANCE[bundle_of.INT8 if int8 else dtype]
        alone = [self.whole(answer) for answer in answers]
        away, compared = 0.0, 0
        for answer, (said, scores, text) in zip(answers, alone, strict=True):
            check.tokens(answer, said)
            found = differences(answer, said, scores, check.certain(answer))
            compared += bool(found)
            away = max([away, *found])
            if (stream := self.stream(answer)) != text:
                raise Refused(f"{where}: a stream says {stream!r}, and the whole answer {text!r}")
        if not away <= limit or compared < len(answers) / 2:
            raise Refused(
                f"{where}: log-probabilities of {compared} of {len(answers)} prompts are off by up to "
                f"{away:.3g}, expected those of half or more, within {limit:g}"
            )
        with ThreadPoolExecutor(AT_ONCE) as pool:
            together = list(pool.map(self.whole, answers))
        rough = GreedyCheck(answers, bundle_of.INT8 if int8 else dtype)
        for answer, one, other in zip(answers, alone, together, strict=True):
            sure = rough.certain(answer)  # beside others int8 rounds otherwise
            if one[0][:sure] != other[0][:sure]:
                raise Refused(
                    f"{where}: {other[0]} beside other requests, expected {one[0]} as alone"
                )
        encoding = corpus.checks(where, self.ids, self.chat) if int8 else {}
        return {
            **check.checks(where),
            "largest_logprob_difference": float(f"{away:.4g}"),
            "logprob_limit": limit,
            "streams_equal": len(answers),
            "logprobs_compared": compared,
            "equal_beside_others": sum(a[0] == b[0] for a, b in zip(alone, together, strict=True)),
            **encoding,
        }

    def whole(self, answer: Answer) -> tuple[list[int], list[float], str]:
        return self.server.generate(self.route, self.model, answer.prompt, len(answer.tokens))

    def stream(self, answer: Answer) -> str:
        return self.server.streamed(self.route, self.model, answer.prompt, len(answer.tokens))

    def ids(self, text: str) -> list[int]:
        return self._tokenized({"prompt": text})["tokens"]

    def chat(self, messages: list[dict[str, str]]) -> str:
        return self._tokenized({"messages": messages})["text"]

    def _tokenized(self, body: dict) -> dict:
        return json.loads(self.server.post(f"{self.route}/tokenize", body))


def differences(answer: Answer, said: list[int], scores: list[float], certain: int) -> list[float]:
    """Of each log-probability, up to the first tie or the first other token."""
    rows, found = log_softmax(answer.logits), []
    each = zip(said, answer.tokens, scores, rows, strict=True)
    for token, own, score, row in list(each)[:certain]:
        if token != own:
            break
        found.append(abs(float(row[token]) - score))
    return found


if __name__ == "__main__":
    step(verify_rayserve)
