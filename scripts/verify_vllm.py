"""Serve a bundle with the real vLLM and compare its answers with the reference.  Runs in envs/vllm.

Each file must be the part that it was assembled from.  The server's greedy tokens must be transformers',
and so must the log-probability of each; its KV cache must be the plan's.
"""

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.console import heartbeat
from ingot.base.fields import read_json
from ingot.base.options import RecordFile, TextsFile, step
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import texts as texts_of
from ingot.parity import tokenizer_folder, verification
from ingot.parity.divergence import log_softmax
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import Answer, read
from ingot.serving.vllm import bundle as bundle_of
from ingot.serving.vllm.adapters import names_of
from ingot.serving.vllm.server import Server

ASKED = 4  # at once
PATIENCE = 120  # seconds until the bundle's own smoke test is through, too
CACHE = re.compile(r"KV cache: ([\d,]+) tokens, planned ([\d,]+)")


def verify_vllm(
    bundle: Annotated[Path, "artifacts/M_tp1.vllm-slurm"],
    texts: TextsFile,
    record: RecordFile,
    parts: bundle_of.Parts,
) -> None:
    sha256 = verification.digest(bundle)
    held = sealed.hold(bundle, bundle_of.contents(**vars(parts)))
    folder, answers = bundle / "model", read(parts.reference[0])
    encoding = texts_of.read(texts).checks(
        folder, tokenizer_folder.ids_of(folder), tokenizer_folder.chat_of(folder)
    )
    words = read_json(bundle / "bundle.json")["arguments"]
    # kernels of a scheme round as they like
    dtype = "bfloat16" if parts.quantised else words[words.index("--dtype") + 1]
    check, away, started = GreedyCheck(answers, dtype), [0.0], time.monotonic()
    rough = bundle_of.stored(Checkpoint(parts.checkpoint)["config.json"])
    of_adapters: dict[str, Any] = {}
    with heartbeat(f"{bundle}: asking the server"), Server(bundle, Path(sys.executable)) as server:
        ready = time.monotonic() - started
        for answer in answers:
            said, scores = server.generate(answer.prompt, len(answer.tokens))
            check.tokens(answer, said)
            away.append(difference(answer, said, scores, check.certain(answer)))
        names = names_of(bundle)
        if names:
            known = {
                name: read(path) for name, path in zip(names, parts.adapter_references, strict=True)
            }
            of_adapters = together(bundle, server, {server.model: answers, **known}, dtype, rough)
        cache = own_smoke(server)
    limit, largest = bundle_of.TOLERANCE[dtype], max(away)
    if not largest <= limit:
        raise Refused(
            f"{bundle}: a log-probability is off by {largest:.3g}, expected at most {limit:g}"
        )
    verification.write(
        record,
        bundle,
        sha256,
        "transformers in float32, greedy, by vLLM's server",
        {
            "files_equal": held,
            **encoding,
            **check.checks(bundle),
            "largest_logprob_difference": float(f"{largest:.4g}"),
            "logprob_limit": limit,
            **({"in_one_batch": of_adapters} if of_adapters else {}),
            "kv_cache_tokens": cache[0],
            "kv_cache_tokens_planned": cache[1],
        },
        seconds={"to_health": round(ready, 2)},
        versions=verification.versions("vllm", "torch", "transformers"),
    )


def together(
    bundle: Path, server: Server, known: dict[str, list[Answer]], dtype: str, rough: str
) -> dict[str, Any]:
    """The same of adapters and of their base, the first of `known`, computed in the same batches.

    What PEFT merged is rounded to the base's own dtype, `rough`, which no server of it does.
    """
    rounds = zip_longest(*([(name, one) for one in answers] for name, answers in known.items()))
    jobs = [job for jobs in rounds for job in jobs if job]
    with ThreadPoolExecutor(ASKED) as pool:
        said = pool.map(
            lambda job: server.generate(job[1].prompt, len(job[1].tokens), job[0]), jobs
        )
    found: dict[str, Any] = {}
    checks = {name: GreedyCheck(answers, rough) for name, answers in known.items()}
    checks[server.model] = GreedyCheck(known[server.model], dtype)
    away = dict.fromkeys(known, 0.0)
    for (name, answer), (tokens, scores) in zip(jobs, said, strict=True):
        checks[name].tokens(answer, tokens)
        off = difference(answer, tokens, scores, checks[name].certain(answer))
        away[name] = max(away[name], off)
    for name, check in checks.items():
        limit = bundle_of.TOLERANCE[dtype if name == server.model else rough]
        if not away[name] <= limit:
            raise Refused(
                f"{bundle}: a log-probability of {name} is off by {away[name]:.3g}, expected at most "
                f"{limit:g} beside its adapters"
            )
        said_of = check.checks(bundle)
        found[name] = {**said_of, "largest_logprob_difference": float(f"{away[name]:.4g}")}
    return found


def difference(answer: Answer, said: list[int], scores: list[float], certain: int) -> float:
    """The largest of a log-probability, up to the first tie."""
    rows = log_softmax(answer.logits)
    pairs = list(zip(said, scores, rows, strict=True))[:certain]
    return max((abs(float(row[token]) - score) for token, score, row in pairs), default=0.0)


def own_smoke(server: Server) -> tuple[int, int]:
    """Tokens of the server's KV cache, and of the plan's, once the bundle's own smoke test is through."""
    end = time.monotonic() + PATIENCE
    while "ready after" not in server.words():
        if time.monotonic() > end or server.process.poll() is not None:
            raise Refused(f"{server.folder}: not ready by its own smoke test:", server.tail())
        time.sleep(0.2)
    found: Any = CACHE.search(server.words())
    had, planned = (int(word.replace(",", "")) for word in found.groups())
    return had, planned


if __name__ == "__main__":
    step(verify_vllm)
