"""Serve a Triton model repository by the real server and hold its answers against the reference.

Runs in envs/triton.  Every model must be ready; the engine's tokens must be the reference's; ensemble
and BLS, whole and as a stream, must give one text.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from ingot.checkpoint.config import read_json
from ingot.files.console import beating
from ingot.triton.repository import check
from ingot.triton.schema import BLS, ENGINE, ENSEMBLE
from ingot.triton.server import Server
from ingot.verify import record as records
from ingot.verify.reference import MOST_TIES, Answer, peak, read, summary


def verify_triton(
    repository: Path,
    reference: Path,
    record: Path,
    server: str,
    backends: Path | None,
    tritonserver: Path | None,
) -> None:
    sha256 = records.digest(repository)
    layout = check(repository)
    answers = read(reference)
    started = time.monotonic()
    kind = "bfloat16" if dtype(repository, layout) == "bfloat16" else "float16"
    asking = beating(f"{repository}: asking the server")
    with asking, Server(repository, backends, tritonserver) as serving:
        ready = time.monotonic() - started
        states, version = serving.models(), serving.version()
        if odd := sorted(name for name, state in states.items() if state != "READY"):
            sys.exit(f"{repository}: model {odd[0]} is {states[odd[0]]}, expected READY")
        smoke = json.loads((repository / "smoke.json").read_bytes())
        if layout == "engine":
            checks = tokens(serving, answers, kind, quantised(repository))
            checks |= {"texts_equal": texts(serving, [smoke, *asked(repository, answers)])}
        else:
            checks = llmapi(serving, answers, kind)
        said = serving.infer(ENSEMBLE if layout == "engine" else ENGINE, smoke)["text_output"]
        asked_all = time.monotonic() - started - ready
    records.write(
        record,
        repository,
        sha256,
        "transformers in float32, greedy, by Triton",
        {**summary(answers), "models_ready": len(states), **checks},
        server={"identity": server, "version": version},
        smoke={"request": smoke["text_input"], "answer": said},
        seconds={"to_ready": round(ready, 2), "to_answer_all": round(asked_all, 2)},
        versions=records.versions("tokenizers", "tritonclient"),
    )


def dtype(repository: Path, layout: str) -> str:
    """What is computed in."""
    if layout == "engine":
        return read_json(repository / ENGINE / "1/config.json")["pretrained_config"]["dtype"]
    told = read_json(repository / ENGINE / "1/model/config.json")
    return told.get("dtype") or told.get("torch_dtype") or "float16"


def quantised(repository: Path) -> bool:
    told = read_json(repository / ENGINE / "1/config.json")["pretrained_config"]
    return bool((told.get("quantization") or {}).get("quant_algo"))


def tokens(server: Server, answers: list[Answer], kind: str, rough: bool) -> dict:
    """The engine's greedy tokens, from token ids, against the reference's.

    Up to the first that `kind` cannot tell from the second best.  A quantised engine is another
    model: of its tokens only the share that agrees is known, and must be half or more.
    """
    top, equal, ties, wrong, agreed = peak(answers), 0, 0, [], []
    for answer in answers:
        body = {
            "input_ids": answer.prompt,
            "input_lengths": len(answer.prompt),
            "request_output_len": len(answer.tokens),
        }
        found = server.infer(ENGINE, body)["output_ids"]
        found = (found if isinstance(found, list) else [found])[: len(answer.tokens)]
        certain = sure(answer, top, kind)
        agreed.append(found[:1] == answer.tokens[:1])
        if found == answer.tokens:
            equal += 1
        elif found[:certain] == answer.tokens[:certain]:
            ties += 1
        else:
            wrong.append(f"{len(answer.prompt)} tokens: {found}, expected {answer.tokens}")
    counts = {"tokens_equal": equal, "tokens_ties": ties}
    if rough:
        if sum(agreed) < len(answers) / 2:
            sys.exit(
                f"{server.folder}: the first token of {sum(agreed)} of {len(answers)} prompts is "
                "transformers', expected half or more of a quantised engine"
            )
        return {**counts, "first_tokens_equal": sum(agreed), "limit": "half of the first tokens"}
    if wrong or ties > MOST_TIES * len(answers):
        sys.exit(
            f"{server.folder}: {equal} of {len(answers)} prompts continued as transformers does "
            f"({ties} ties), expected all; first wrong at {', '.join(wrong[:1]) or 'none'}"
        )
    return counts


def sure(answer: Answer, top: float, kind: str) -> int:
    """How many of its tokens stand before the first that could be another."""
    first = np.flatnonzero(answer.ties(top, kind))
    return int(first[0]) if len(first) else len(answer.tokens)


def asked(repository: Path, answers: list[Answer]) -> list[dict]:
    """Some of the reference's prompts as texts: what a stream says must be what the whole does."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(repository / "preprocessing/1/tokenizer/tokenizer.json"))
    return [
        {
            "text_input": tokenizer.decode(answer.prompt, skip_special_tokens=False),
            "max_tokens": len(answer.tokens),
        }
        for answer in answers[:8]
    ]


def texts(server: Server, requests: list[dict]) -> int:
    """How many requests get one text from ensemble and BLS, whole and as a stream: all, or the end."""
    for request in requests:
        whole = server.infer(ENSEMBLE, request)["text_output"]
        streamed = {**request, "stream": True}
        others = {
            "the BLS model": server.infer(BLS, request)["text_output"],
            "the ensemble's stream": "".join(
                part["text_output"] for part in server.stream(ENSEMBLE, streamed)
            ),
            "the BLS model's stream": "".join(
                part["text_output"] for part in server.stream(BLS, streamed)
            ),
        }
        for which, text in others.items():
            halves = "\ufffd" in text and which == "the ensemble's stream"
            if text != whole and not halves:  # it decodes token by token: half a character shows
                sys.exit(
                    f"{server.folder}: {which} says {text!r} to {request['text_input']!r}, expected "
                    f"{whole!r} as the ensemble says"
                )
    return len(requests)


def llmapi(server: Server, answers: list[Answer], kind: str) -> dict:
    """The prompts that a text can give again, start token and all, against the reference's text.

    Random ids mostly cannot: such a model needs prompts of its own.
    """
    from tokenizers import Tokenizer

    folder = server.folder / ENGINE / "1/model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    top, equal, ties, wrong = peak(answers), 0, 0, []
    for answer in answers:
        text = as_text(tokenizer, answer.prompt)
        if text is None:
            continue
        body = {"text_input": text, "sampling_param_max_tokens": len(answer.tokens)}
        said, expected = server.infer(ENGINE, body)["text_output"], tokenizer.decode(answer.tokens)
        certain = tokenizer.decode(answer.tokens[: sure(answer, top, kind)])
        if said == expected:
            equal += 1
        elif said.startswith(certain.rstrip("\ufffd")) and certain != expected:
            ties += 1
        else:
            wrong.append(f"{text[:80]!r}: {said!r}, expected {expected!r}")
    if wrong or ties > MOST_TIES * len(answers):
        sys.exit(
            f"{server.folder}: {len(wrong)} answers are wrong ({ties} ties), first {wrong[:1]}"
        )
    if equal + ties < len(answers) / 2:
        sys.exit(
            f"{server.folder}: {equal + ties} of {len(answers)} prompts can be asked as a text, "
            "expected half or more; give the model `prompts` of its own in the catalogue"
        )
    return {"answers_equal": equal, "answers_ties": ties}


def as_text(tokenizer, prompt: list[int]) -> str | None:
    """A text that the server takes for just these ids, as model.py encodes it; or None."""
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    full = tokenizer.encode(text, add_special_tokens=True).ids
    taken = plain if plain and full[:2] == [plain[0], plain[0]] else full
    return text if taken == prompt else None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", type=Path, required=True, help="artifacts/M_tpN.triton")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument(
        "--tritonserver",
        type=Path,
        default=os.environ.get("INGOT_TRITONSERVER") or None,
        help="the server (default: INGOT_TRITONSERVER, or nvidia-pytriton's, which has no GPU)",
    )
    parser.add_argument(
        "--backends",
        type=Path,
        default=os.environ.get("INGOT_TRITON_BACKENDS") or None,
        help="its backends (default: INGOT_TRITON_BACKENDS, or the server's own)",
    )
    parser.add_argument("--server", default="", help="what server it is, for the record")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_triton(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
