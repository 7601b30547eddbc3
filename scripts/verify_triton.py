"""Serve a Triton model repository with the real server and compare its answers with the reference.

Runs in envs/triton.  Each file must be the part that it was assembled from, every model must be ready;
the engine's tokens must be the reference's; ensemble and BLS, whole and as a stream, must give one text.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.console import heartbeat
from ingot.base.fields import read_json
from ingot.base.options import RecordFile, ReferenceFile, TextsFile, step
from ingot.base.refused import Refused
from ingot.formats.tensorrt.triton import contents as contents_of
from ingot.formats.tensorrt.triton.schema import BLS, ENGINE, ENSEMBLE
from ingot.formats.tensorrt.triton.server import Server
from ingot.parity import texts as texts_of
from ingot.parity import tokenizer_folder, verification
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import Answer, read

SERVER = "the server (default: INGOT_TRITONSERVER, or nvidia-pytriton's, which has no GPU)"
BACKENDS = "its backends (default: INGOT_TRITON_BACKENDS, or the server's own)"


def verify_triton(
    repository: Annotated[Path, "artifacts/M_tpN.triton"],
    reference: ReferenceFile,
    texts: TextsFile,
    record: RecordFile,
    parts: contents_of.Parts,
    server: Annotated[str, "what server it is, for the record"] = "",
    tritonserver: Annotated[Path | None, SERVER] = None,
    backends: Annotated[Path | None, BACKENDS] = None,
) -> None:
    sha256 = verification.digest(repository)
    held = sealed.hold(repository, contents_of.contents(**vars(parts)))
    backend, tritonserver = parts.backend, tritonserver or of_environment("INGOT_TRITONSERVER")
    backends = backends or of_environment("INGOT_TRITON_BACKENDS")
    answers = read(reference)
    encoding = {}
    for folder in sorted({path.parent for path in repository.rglob("tokenizer.json")}):
        encoding = texts_of.read(texts).checks(
            folder, tokenizer_folder.ids_of(folder), tokenizer_folder.chat_of(folder)
        )
    started = time.monotonic()
    kind = dtype(repository, backend)
    asking = heartbeat(f"{repository}: asking the server")
    with asking, Server(repository, backends, tritonserver) as serving:
        ready = time.monotonic() - started
        states, version = serving.models(), serving.version()
        if odd := sorted(name for name, state in states.items() if state != "READY"):
            raise Refused(f"{repository}: model {odd[0]} is {states[odd[0]]}, expected READY")
        smoke = json.loads((repository / "smoke.json").read_bytes())
        if backend != "llmapi":
            rough = quantised(repository, backend)
            checks = tokens(serving, GreedyCheck(answers, kind, rough))
            checks |= {"streams_equal": streams(serving, [smoke, *asked(repository, answers)])}
            if backend == "onnx":
                checks |= {"at_once_equal": at_once(serving, answers)}
        else:
            checks = llmapi(serving, GreedyCheck(answers, kind))
        said = serving.infer(ENGINE if backend == "llmapi" else ENSEMBLE, smoke)["text_output"]
        asked_all = time.monotonic() - started - ready
    verification.write(
        record,
        repository,
        sha256,
        "transformers in float32, greedy, by Triton",
        {"files_equal": held, **encoding, **checks, "models_ready": len(states)},
        server={"identity": server, "version": version},
        smoke={"request": smoke["text_input"], "answer": said},
        seconds={"to_ready": round(ready, 2), "to_answer_all": round(asked_all, 2)},
        versions=verification.versions("tokenizers", "tritonclient"),
    )


def of_environment(name: str) -> Path | None:
    return Path(os.environ[name]) if os.environ.get(name) else None


def dtype(repository: Path, backend: str) -> str:
    """What is computed in: float16, bfloat16 or, by ONNX Runtime, float32."""
    if backend == "onnx":
        weights = read_json(repository / ENGINE / "1/model/graph.json")["weights"]
        return "float16" if weights == "fp16" else "float32"
    if backend == "engine":
        said = read_json(repository / ENGINE / "1/config.json")["pretrained_config"]["dtype"]
    else:
        model = read_json(repository / ENGINE / "1/model/config.json")
        said = model.get("dtype") or model.get("torch_dtype")
    return "bfloat16" if said == "bfloat16" else "float16"


def quantised(repository: Path, backend: str) -> bool:
    if backend == "onnx":
        return read_json(repository / ENGINE / "1/model/graph.json")["weights"] == "int8"
    engine_config = read_json(repository / ENGINE / "1/config.json")["pretrained_config"]
    return bool((engine_config.get("quantization") or {}).get("quant_algo"))


def tokens(server: Server, check: GreedyCheck) -> dict[str, Any]:
    """The engine's greedy tokens, from token ids."""
    for answer in check.answers:
        body = {
            "input_ids": answer.prompt,
            "input_lengths": len(answer.prompt),
            "request_output_len": len(answer.tokens),
        }
        found = server.infer(ENGINE, body)["output_ids"]
        found = found if isinstance(found, list) else [found]
        check.tokens(answer, found[: len(answer.tokens)])
    return check.checks(server.folder)


def at_once(server: Server, answers: list[Answer]) -> int:
    """How many prompts get the same tokens at once as one after another: all, or the end."""
    bodies = [
        {
            "input_ids": answer.prompt,
            "input_lengths": len(answer.prompt),
            "request_output_len": len(answer.tokens),
        }
        for answer in answers
    ]

    def said(body: dict) -> list[int]:
        return server.infer(ENGINE, body)["output_ids"]

    alone = [said(body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(said, bodies))
    if alone != together:
        raise Refused(
            f"{server.folder}: requests at once get other tokens than one after another, expected the same"
        )
    return len(bodies)


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


def streams(server: Server, requests: list[dict]) -> int:
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
                raise Refused(
                    f"{server.folder}: {which} says {text!r} to {request['text_input']!r}, expected "
                    f"{whole!r} as the ensemble says"
                )
    return len(requests)


def llmapi(server: Server, check: GreedyCheck) -> dict[str, Any]:
    """The prompts that a text can give again, start token and all.

    Random ids mostly cannot: such a model needs prompts of its own.
    """
    from tokenizers import Tokenizer

    folder = server.folder / ENGINE / "1/model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for answer in check.answers:
        text = as_text(tokenizer, answer.prompt)
        if text is None:
            continue
        body = {"text_input": text, "sampling_param_max_tokens": len(answer.tokens)}
        check.text(answer, server.infer(ENGINE, body)["text_output"], tokenizer.decode)
    return check.checks(server.folder, least=(len(check.answers) + 1) // 2)


def as_text(tokenizer, prompt: list[int]) -> str | None:
    """A text that the server takes for just these ids, as model.py encodes it; or None."""
    text = tokenizer.decode(prompt, skip_special_tokens=False)
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    full = tokenizer.encode(text, add_special_tokens=True).ids
    taken = plain if plain and full[:2] == [plain[0], plain[0]] else full
    return text if taken == prompt else None


if __name__ == "__main__":
    step(verify_triton)
