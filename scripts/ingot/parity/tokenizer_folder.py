"""A bundle's own tokenizer files, as a server reads them: by the tokenizers library, and by jinja2."""

from collections.abc import Callable
from pathlib import Path

from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.parity.clock import strftime_now

Messages = list[dict[str, str]]


def ids_of(folder: Path) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: tokenizer.encode(text).ids


def chat_of(folder: Path) -> Callable[[Messages], str] | None:
    """None where the bundle carries no chat template."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    settings = read_json(folder / "tokenizer_config.json")
    source = settings.get("chat_template")
    if (folder / "chat_template.jinja").exists():
        source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(source, list):  # named ones
        source = {one.get("name"): one["template"] for one in source}.get("default")
    if not isinstance(source, str):
        return None
    # as transformers sets it
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    named = {
        f"{kind}_token": text_of(settings.get(f"{kind}_token")) for kind in ("bos", "eos", "unk")
    }

    def chat(messages: Messages) -> str:
        try:
            template = environment.from_string(source)
            return template.render(
                messages=messages, add_generation_prompt=True, strftime_now=strftime_now, **named
            )
        except TemplateError as error:
            word = str(error).splitlines()[0]
            raise Refused(f"{folder}: chat_template: {word}, expected a dialogue") from None

    return chat


def text_of(token: str | dict | None) -> str:
    return token["content"] if isinstance(token, dict) else token or ""
