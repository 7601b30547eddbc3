"""A Ray Serve application: a language model in int8 on CPUs, by ONNX Runtime or OpenVINO.

Below its route: /v1/completions, /v1/chat/completions and /v1/models as OpenAI has them, /tokenize,
/health, and guide 001's own: {"prompt": ...} to the route itself, answered as a text that streams.
"""

import asyncio
import json
import os
import queue
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent))
import sums
from batching import Asked, Batch, Row
from body import Defaults, Request, UnknownModel, request, tokenized
from decoder import RUNTIMES
from fastapi import FastAPI
from fastapi import Request as Asking
from fastapi.responses import JSONResponse, StreamingResponse
from form import Form
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from words import Reading, Words

FOLDER = Path(__file__).resolve().parent.parent
MOST_READ = 64 << 20  # bytes of a body
PATIENCE = 300  # seconds until a token of the smoke test has come
api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)


class Slash:
    """A POST to the route itself, without a slash, is no redirect, which most clients would not follow."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "http" and scope["path"] in ("", scope.get("root_path")):
            scope = {**scope, "path": f"{scope['path']}/"}
        await self.app(scope, receive, send)


api.add_middleware(Slash)


class Args(BaseModel):
    """What serve.yaml says under `args`."""

    model_config = ConfigDict(extra="forbid")
    model: str
    engine: Literal["onnx", "openvino"]
    longest: int = Field(ge=2)  # tokens of a prompt and its continuation
    vocabulary: int = Field(ge=1)
    batch_size: int = Field(default=8, ge=1)
    max_new_tokens: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    properties: dict[str, str] = {}


async def read(asking: Asking, most: int) -> dict:
    """The body, of at most so many bytes.

    What is too long is read on, up to MOST_READ, and dropped: to close a connection that still brings data
    resets it, and the client would see that in place of the answer.
    """
    data, size = bytearray(), 0
    async for part in asking.stream():
        size += len(part)
        if size <= most:
            data += part
        elif size > MOST_READ:
            break
    if size > most:
        raise ValueError(f"the body: more than {most} bytes, expected a prompt that fits")
    try:
        found = await asyncio.to_thread(json.loads, bytes(data))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("the body: expected a JSON object")
    return found


def refused(error: Exception) -> JSONResponse:
    code = 404 if isinstance(error, UnknownModel) else 400  # as vLLM answers
    said = {"message": str(error), "type": "invalid_request_error", "code": code}
    return JSONResponse({"error": said}, status_code=code)


def threads() -> int:
    """The CPUs that Ray gave this replica, or its pod has where Ray counts none."""
    import ray

    given = os.environ.get(
        "INGOT_THREADS"
    ) or ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
    return max(1, int(given))


# Ray pickles the class where it is decorated: what it needs stands above it.
@serve.deployment
@serve.ingress(api)
class Model:
    def __init__(self, args: Args):
        folder = FOLDER / args.engine
        sums.hold(FOLDER, args.engine)
        self.words = Words(folder)
        self.own = Defaults(
            args.model, args.longest, args.vocabulary, args.max_new_tokens, args.temperature
        )
        decoder = RUNTIMES[args.engine](folder, threads(), args.properties)
        self.batch = Batch(decoder, args.batch_size)
        self.began = int(time.time())
        known = json.loads((FOLDER / "smoke.json").read_bytes())["applications"]
        for one in known:
            if one["name"] == args.engine:
                self._smoke(one)

    def _smoke(self, known: dict) -> None:
        """The replica takes requests once it has said what it must."""
        for case in known["cases"]:
            told: queue.Queue = queue.Queue()
            self.batch.add(Asked(case["prompt"], len(case["tokens"])), told.put)
            found = []
            while len(found) < len(case["tokens"]):
                try:
                    found.append(told.get(timeout=PATIENCE))
                except queue.Empty:
                    raise RuntimeError(f"smoke.json: no token after {PATIENCE} s") from None
                if isinstance(found[-1], Exception):
                    raise RuntimeError(str(found[-1]))
            tokens, scores = [list(one) for one in zip(*found, strict=True)]
            away = max(abs(a - b) for a, b in zip(scores, case["logprobs"], strict=True))
            if tokens != case["tokens"] or not away <= known["tolerance"]:
                raise RuntimeError(
                    f"smoke.json: the model says {tokens}, expected {case['tokens']} (log-probabilities "
                    f"within {known['tolerance']}, found {away:.3g}): wrong weights, or too rough ones"
                )

    def check_health(self) -> None:
        """By Ray Serve, which starts a replica anew that raises."""
        if self.batch.error:
            raise RuntimeError(str(self.batch.error))

    @api.get("/health")
    async def health(self) -> JSONResponse:
        if self.batch.error:
            return JSONResponse({"status": str(self.batch.error)}, status_code=503)
        return JSONResponse({"status": "healthy"})

    @api.get("/v1/models")
    async def models(self) -> JSONResponse:
        return JSONResponse({"object": "list", "data": [self._about()]})

    @api.get("/v1/models/{name:path}")
    async def model(self, name: str) -> JSONResponse:
        if name != self.own.model:
            said = {"message": f"{name}: unknown, expected {self.own.model}", "code": 404}
            return JSONResponse({"error": said}, status_code=404)
        return JSONResponse(self._about())

    def _about(self) -> dict:
        own = {"id": self.own.model, "object": "model", "created": self.began, "owned_by": "ingot"}
        return {**own, "max_model_len": self.own.longest}

    @api.post("/tokenize")
    async def tokenize(self, asking: Asking):
        """Of {"prompt": text} the ids; of {"messages": [...]} also the text that they make."""
        try:
            body = await read(asking, self.own.most)
            return JSONResponse(await asyncio.to_thread(tokenized, body, self.words, self.own))
        except ValueError as error:
            return refused(error)

    @api.post("/v1/completions")
    async def completions(self, asking: Asking):
        return await self._answer(asking, "prompt")

    @api.post("/v1/chat/completions")
    async def chat_completions(self, asking: Asking):
        return await self._answer(asking, "messages")

    @api.post("/")
    async def guide(self, asking: Asking):
        try:
            wanted = await self._request(asking, "prompt")
        except ValueError as error:
            return refused(error)
        texts = (text async for text, *_ in self._parts(wanted) if text)
        return StreamingResponse(texts, media_type="text/plain")

    async def _request(self, asking: Asking, kind: str) -> Request:
        """Tokenized beside the event loop, which answers others meanwhile."""
        body = await read(asking, self.own.most)
        return await asyncio.to_thread(request, body, self.words, self.own, kind)

    async def _answer(self, asking: Asking, kind: str):
        try:
            wanted = await self._request(asking, kind)
        except ValueError as error:
            return refused(error)
        form = Form(kind, self.own.model, wanted, self.words)
        if wanted.stream:
            events = self._events(wanted, form)
            return StreamingResponse(events, media_type="text/event-stream")
        texts, ids, scores, why = [], [], [], ""
        async for text, said, own, ended in self._parts(wanted):
            texts.append(text)
            ids += said
            scores += own
            why = ended
        return JSONResponse(form.whole("".join(texts), ids, scores, why))

    async def _events(self, wanted: Request, form: Form) -> AsyncIterator[str]:
        count = 0
        async for text, ids, scores, why in self._parts(wanted):
            count += len(ids)
            if text or why or wanted.ids or wanted.logprobs:
                yield f"data: {json.dumps(form.part(text, ids, scores, why))}\n\n"
        if wanted.usage:
            yield f"data: {json.dumps(form.last(count))}\n\n"
        yield "data: [DONE]\n\n"

    async def _parts(self, wanted: Request) -> AsyncIterator[tuple[str, list, list, str]]:
        """(text, its token, its log-probability, why it ends) of each token."""
        told: asyncio.Queue = asyncio.Queue()
        loop = asyncio.get_running_loop()
        reading = Reading(self.words, wanted.stops, wanted.asked.prompt)
        row: Row = self.batch.add(
            wanted.asked, lambda one: loop.call_soon_threadsafe(told.put_nowait, one)
        )
        try:
            while True:
                found: Any = await told.get()
                if isinstance(found, Exception):
                    raise RuntimeError(str(found))
                if isinstance(found, str):
                    yield reading.finish(), [], [], "stop" if reading.stopped else found
                    return
                text = reading.add(found[0])
                yield text, [found[0]], [found[1]], "stop" if reading.stopped else ""
                if reading.stopped:
                    return
        finally:
            row.cancelled = True  # whoever asked may have gone


def app(args: Args) -> serve.Application:
    return Model.bind(args)
