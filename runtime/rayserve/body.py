"""A request's body: OpenAI's completions and chats, and guide 001's; what is unknown is refused."""

from dataclasses import dataclass
from math import inf
from typing import Any

from batching import Asked
from words import Words

NUMBER = (int, float)
TAKEN: dict[str, tuple] = {  # by name: what it is
    "model": (str,), "prompt": (str, list), "messages": (list,), "user": (str,), "stop": (str, list),
    "stop_token_ids": (list,), "ignore_eos": (bool,), "stream": (bool,), "stream_options": (dict,),
    "return_token_ids": (bool,), "add_special_tokens": (bool,), "logprobs": (int, bool),
    "max_tokens": (int,), "max_completion_tokens": (int,), "max_new_tokens": (int,),
    "temperature": NUMBER, "top_p": NUMBER, "top_k": (int,), "seed": (int,),
}  # fmt: skip
BOUNDS = {
    "max_tokens": (1, inf), "max_completion_tokens": (1, inf), "max_new_tokens": (1, inf),
    "temperature": (0, 100), "top_p": (0, 1), "top_k": (-1, 1 << 31), "seed": (0, 1 << 64),
    "logprobs": (0, 1),
}  # fmt: skip
NEUTRAL = {  # what others offer: taken where it asks for nothing
    "n": 1, "best_of": 1, "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1,
    "echo": False, "suffix": None, "logit_bias": {}, "top_logprobs": 0, "min_p": 0, "tools": [],
    "response_format": {"type": "text"}, "use_beam_search": False, "store": False, "metadata": {},
    "tool_choice": "none", "parallel_tool_calls": True, "service_tier": "auto",
}  # fmt: skip
STOPS = 16
AROUND = 1 << 20  # bytes of a body beside its prompt
LETTERS = 64  # of a token at most: what is longer is not tokenized to learn that it is too long


class UnknownModel(ValueError):
    """A request for a model that this application does not serve."""


@dataclass(frozen=True)
class Defaults:
    """Of what a body does not say."""

    model: str
    longest: int  # tokens of a prompt and its continuation
    vocabulary: int
    max_new_tokens: int
    temperature: float

    @property
    def most(self) -> int:
        """Bytes of a body: a prompt of `longest` long tokens, and what stands around it."""
        return LETTERS * self.longest + AROUND


@dataclass(frozen=True)
class Request:
    asked: Asked
    stops: list[str]
    stream: bool
    logprobs: bool
    ids: bool  # token ids are wanted, too
    usage: bool  # at the end of a stream


def request(body: Any, words: Words, own: Defaults, kind: str) -> Request:
    """`kind`: prompt or messages.  ValueError: one line on what is wrong."""
    if not isinstance(body, dict):
        raise ValueError("the body: expected a JSON object")
    said = {name: value for name, value in body.items() if value is not None}
    for name, value in said.items():
        hold(name, value, kind)
    if said.get("model", own.model) != own.model:
        raise UnknownModel(f"model: {shown(said['model'])}, expected {own.model}")
    prompt = prompt_ids(said, words, own, kind)
    room = own.longest - len(prompt)
    if room < 1:
        raise ValueError(f"{kind}: {len(prompt)} tokens, expected fewer than {own.longest}")
    names = ("max_completion_tokens", "max_tokens", "max_new_tokens")
    count = next((said[name] for name in names if name in said), min(own.max_new_tokens, room))
    if count > room:
        raise ValueError(f"max_tokens: {count} after {len(prompt)} tokens, expected at most {room}")
    stops = said.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    if len(stops) > STOPS or not all(isinstance(one, str) and one for one in stops):
        raise ValueError(f"stop: expected at most {STOPS} texts")
    more = said.get("stop_token_ids", [])
    if not all(type(one) is int for one in more):
        raise ValueError("stop_token_ids: expected token ids")
    ends = frozenset() if said.get("ignore_eos") else words.ends
    asked = Asked(
        prompt, count, ends | frozenset(more), float(said.get("temperature", own.temperature)),
        float(said.get("top_p", 1)), max(0, said.get("top_k", 0)), said.get("seed"),
    )  # fmt: skip
    usage = said.get("stream_options", {"include_usage": False})
    if set(usage) != {"include_usage"} or not isinstance(usage["include_usage"], bool):
        raise ValueError("stream_options: expected {include_usage: true or false}")
    return Request(
        asked, stops, said.get("stream", False), said.get("logprobs", False) is not False,
        said.get("return_token_ids", False), usage["include_usage"],
    )  # fmt: skip


def hold(name: str, value: Any, kind: str) -> None:
    """Refuse what is unknown, of another type, or out of bounds."""
    other = {"prompt": "messages", "messages": "prompt"}[kind]
    if name in NEUTRAL:
        alike = isinstance(value, bool) == isinstance(NEUTRAL[name], bool)
        if value not in ("", [], {}) and not (alike and value == NEUTRAL[name]):
            raise ValueError(f"{name}: {shown(value)}, expected {NEUTRAL[name]!r}, or nothing")
    elif name not in TAKEN or name == other:
        known = ", ".join(sorted(set(TAKEN) - {other}))
        raise ValueError(f"{shown(name)}: unknown, expected one of {known}")
    elif not isinstance(value, TAKEN[name]) or (type(value) is bool and bool not in TAKEN[name]):
        wanted = " or ".join(one.__name__ for one in TAKEN[name])
        raise ValueError(f"{name}: {shown(value)}, expected {wanted}")
    elif name in BOUNDS:
        low, high = BOUNDS[name]
        if not low <= value <= high:
            raise ValueError(f"{name}: {shown(value)}, expected {low} to {high}")


def shown(value: Any) -> str:
    """Of what came: short, and in letters that any answer can hold."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def prompt_ids(said: dict, words: Words, own: Defaults, kind: str) -> list[int]:
    found = words.chat(messages(said)) if kind == "messages" else said.get("prompt")
    if isinstance(found, str):
        special = kind == "prompt" and said.get("add_special_tokens", True)
        found = text_ids(found, words, own, kind, special)
    if not found or not all(type(one) is int for one in found):
        raise ValueError(f"{kind}: expected one text, or one list of token ids")
    if min(found) < 0 or max(found) >= own.vocabulary:
        raise ValueError(f"{kind}: expected token ids from 0 to {own.vocabulary - 1}")
    return found


def text_ids(text: str, words: Words, own: Defaults, kind: str, special: bool) -> list[int]:
    if len(text) > LETTERS * own.longest:
        raise ValueError(f"{kind}: {len(text)} letters, expected {own.longest} tokens at most")
    return words.ids(text, special)


def tokenized(body: dict, words: Words, own: Defaults) -> dict[str, Any]:
    """Of {"prompt": text} the ids; of {"messages": [...]} also the text that they make."""
    if "messages" in body:
        text = words.chat(messages(body))
        return {"text": text, "tokens": text_ids(text, words, own, "messages", special=False)}
    if not isinstance(body.get("prompt"), str):
        raise ValueError("expected {prompt: text}, or {messages: [...]}")
    return {"tokens": text_ids(body["prompt"], words, own, "prompt", special=True)}


def messages(said: dict) -> list[dict]:
    """With contents as texts: parts of type text are joined."""
    found = []
    for one in said.get("messages") or [None]:
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            raise ValueError("messages: expected a list of {role, content}")
        content = one.get("content")
        if isinstance(content, list):
            texts = [
                p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"
            ]
            if len(texts) != len(content) or not all(isinstance(one, str) for one in texts):
                raise ValueError("messages: a part that is no text, expected texts")
            content = "".join(texts)
        if not isinstance(content, str):
            raise ValueError("messages: a content that is no text, expected one")
        found.append({**one, "content": content})
    return found
