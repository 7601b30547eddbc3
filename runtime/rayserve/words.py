"""Text to tokens and back: the model's own tokenizer and chat template; a text token by token."""

import json
from datetime import datetime
from pathlib import Path

from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

BEFORE = 6  # tokens of a prompt
HALF = "\ufffd"  # how a character that has not come whole is decoded


class Generation(Extension):
    """{% generation %}, with which templates mark what a model says: here it has no effect."""

    tags = frozenset(["generation"])

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


class Words:
    """Of a folder with tokenizer.json and its settings."""

    def __init__(self, folder: Path):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        self.template = self._template(folder, settings)
        kinds = ("bos", "eos", "unk", "pad")
        named = {f"{kind}_token": settings.get(f"{kind}_token") for kind in kinds}
        self.named = {k: v["content"] if isinstance(v, dict) else v or "" for k, v in named.items()}
        self.ends = frozenset(_ends(folder))

    def _template(self, folder: Path, settings: dict):
        source = settings.get("chat_template")
        if (own := folder / "chat_template.jinja").exists():
            source = own.read_text(encoding="utf-8")
        if isinstance(source, list):
            source = {one.get("name"): one["template"] for one in source}.get("default")
        if not isinstance(source, str):
            return None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
        )
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = lambda one, **words: json.dumps(
            one, ensure_ascii=False, **words
        )
        return environment.from_string(source)

    def ids(self, text: str, special: bool = True) -> list[int]:
        if not text.isascii():
            text.encode()  # a half of a surrogate pair is no text: a ValueError
        # as a batch of one: that lets other threads go on meanwhile
        return self.tokenizer.encode_batch([text], add_special_tokens=special)[0].ids

    def chat(self, messages: list[dict]) -> str:
        """The dialogue as text, with the opening of an answer."""
        if self.template is None:
            raise ValueError("messages: the model has no chat template; ask /v1/completions")
        try:
            return self.template.render(
                messages=messages,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self.named,
            )
        except (TemplateError, TypeError) as error:
            word = (str(error).splitlines() or ["refused"])[0]
            raise ValueError(
                f"messages: {word}, expected a dialogue as its template has it"
            ) from None

    def text(self, ids: list[int], special: bool = False) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=not special)


def _raise(text: str) -> None:
    raise TemplateError(text)


def _ends(folder: Path) -> list[int]:
    """The tokens that end an answer."""
    for name in ("generation_config.json", "config.json"):
        if (path := folder / name).exists():
            found = json.loads(path.read_bytes()).get("eos_token_id")
            if found is not None:
                return found if isinstance(found, list) else [found]
    return []


class Reading:
    """What tokens say, as far as it is certain: no half character, nothing that may begin a stop text.

    After the end of `prompt`: a tokenizer may take the space of a text's first word away.
    """

    def __init__(self, words: Words, stops: list[str], prompt: list[int]):
        self.words, self.stops = words, stops
        self.ids: list[int] = prompt[-BEFORE:]
        self.start, self.read = 0, len(self.ids)  # of ids: what is decoded again, what was said
        self.held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """The text that has become certain."""
        self.ids.append(token)
        before = self.words.text(self.ids[self.start : self.read])
        now = self.words.text(self.ids[self.start :])
        if not now.endswith(HALF) and len(now) > len(before):
            self.held += now[len(before) :]
            self.start, self.read = self.read, len(self.ids)
        return self._certain()

    def finish(self) -> str:
        """What is left at the end."""
        if self.stopped:
            return ""
        before = self.words.text(self.ids[self.start : self.read])
        self.held += self.words.text(self.ids[self.start :])[len(before) :]
        self.start = self.read = len(self.ids)
        found = self._certain()
        if not self.stopped:
            found, self.held = found + self.held, ""
        return found

    def _certain(self) -> str:
        if self.stopped:
            return ""
        found = [self.held.find(stop) for stop in self.stops if stop in self.held]
        if found:
            self.stopped = True
            return self.held[: min(found)]
        keep = max((_overlap(self.held, stop) for stop in self.stops), default=0)
        said, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return said


def _overlap(text: str, stop: str) -> int:
    """How much of the end of `text` may be the beginning of `stop`."""
    for count in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-count:]):
            return count
    return 0
