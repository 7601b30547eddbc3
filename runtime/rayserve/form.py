"""An answer in OpenAI's form: whole, or part by part."""

import time
import uuid
from typing import Any

from body import Request


class Form:
    """Of one request."""

    def __init__(self, kind: str, model: str, wanted: Request):
        self.chat, self.wanted = kind == "messages", wanted
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.head = {"id": self.id, "created": int(time.time()), "model": model}
        self.object = "chat.completion" if self.chat else "text_completion"
        self.first = True

    def whole(self, text: str, ids: list, scores: list, why: str) -> dict:
        body = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        found = self._choice(body, ids, scores, why)
        return {
            **self.head,
            "object": self.object,
            "choices": [found],
            "usage": self._usage(len(ids)),
        }

    def part(self, text: str, ids: list, scores: list, why: str) -> dict:
        role = {"role": "assistant"} if self.first else {}
        self.first = False
        body = {"delta": {**role, "content": text}} if self.chat else {"text": text}
        kind = f"{self.object}.chunk" if self.chat else self.object
        return {**self.head, "object": kind, "choices": [self._choice(body, ids, scores, why)]}

    def last(self, count: int) -> dict:
        return {**self.head, "object": self.object, "choices": [], "usage": self._usage(count)}

    def _choice(self, body: dict, ids: list, scores: list, why: str) -> dict:
        logs: Any = None
        if self.wanted.logprobs and self.chat:
            logs = {"content": [{"token": f"token_id:{i}", "logprob": s, "bytes": None, "top_logprobs": []}
                                for i, s in zip(ids, scores, strict=True)]}  # fmt: skip
        elif self.wanted.logprobs:
            logs = {"tokens": [f"token_id:{i}" for i in ids], "token_logprobs": scores}
        more = {"token_ids": ids} if self.wanted.ids else {}
        return {"index": 0, **body, "logprobs": logs, "finish_reason": why or None, **more}

    def _usage(self, count: int) -> dict:
        prompt = len(self.wanted.asked.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
