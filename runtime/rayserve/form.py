"""An answer in OpenAI's form: whole, or part by part."""

import time
import uuid
from typing import Any

from body import Request
from words import Words


class Form:
    """Of one request."""

    def __init__(self, kind: str, model: str, wanted: Request, words: Words):
        self.chat, self.wanted, self.words = kind == "messages", wanted, words
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.head = {"id": self.id, "created": int(time.time()), "model": model}
        self.object = "chat.completion" if self.chat else "text_completion"
        self.part_of = f"{self.object}.chunk" if self.chat else self.object
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
        return {
            **self.head,
            "object": self.part_of,
            "choices": [self._choice(body, ids, scores, why)],
        }

    def last(self, count: int) -> dict:
        return {**self.head, "object": self.part_of, "choices": [], "usage": self._usage(count)}

    def _choice(self, body: dict, ids: list, scores: list, why: str) -> dict:
        logs: Any = None
        texts = [self.words.text([one], special=True) for one in ids]
        if self.wanted.logprobs and self.chat:
            each = zip(texts, scores, strict=True)
            logs = {"content": [
                {"token": text, "logprob": score, "bytes": list(text.encode()), "top_logprobs": []}
                for text, score in each
            ]}  # fmt: skip
        elif self.wanted.logprobs:
            logs = {"tokens": texts, "token_logprobs": scores, "top_logprobs": None}
        more = {"token_ids": ids} if self.wanted.ids else {}
        return {"index": 0, **body, "logprobs": logs, "finish_reason": why or None, **more}

    def _usage(self, count: int) -> dict:
        prompt = len(self.wanted.asked.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
