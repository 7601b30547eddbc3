"""A checkpoint's chat templates as GGUF key/value pairs: the default one, and others by name."""

import string

from ingot.base.refused import Refused
from ingot.formats.gguf.kv import KV
from ingot.model.checkpoint.files import TEMPLATES, Checkpoint

KEY = "tokenizer.chat_template"
NAME = string.ascii_letters + string.digits  # what a key may hold of a name
TEMPLATE = (str, [{"name?": str, "template": str}], None)
SETTING = {"chat_template?": TEMPLATE}  # of a tokenizer_config.json, or a chat_template.json


def templates(checkpoint: Checkpoint, settings: dict) -> list[KV]:
    """In the order of the checkpoint, the default one last.

    llama.cpp lists the others' names in the order of a set, which differs from run to run.
    """
    found = settings.get("chat_template")
    if found is None and "chat_template.jinja" in checkpoint:
        found = _text(checkpoint, "chat_template.jinja")
        if more := sorted(name for name in checkpoint.files if name.startswith(f"{TEMPLATES}/")):
            found = [{"name": "default", "template": found}]
            for name in more:
                word = name.removeprefix(f"{TEMPLATES}/").removesuffix(".jinja")
                found.append({"name": word, "template": _text(checkpoint, name)})
    elif found is None:
        found = checkpoint.optional_json("chat_template.json", SETTING).get("chat_template")
    if not isinstance(found, list):
        return [] if found is None else [KV(KEY, "str", found)]
    named = {_name(one): one["template"] for one in found if one.get("name")}
    default = named.pop("default", None)
    kvs = [KV(f"{KEY}.{name}", "str", text) for name, text in named.items()]
    if named:
        kvs.append(KV(f"{KEY}s", "[str]", sorted(named)))
    return kvs if default is None else [*kvs, KV(KEY, "str", default)]


def _name(one: dict) -> str:
    return "".join(letter if letter in NAME else "_" for letter in one["name"])


def _text(checkpoint: Checkpoint, name: str) -> str:
    path = checkpoint[name]
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Refused(f"{path}: not UTF-8, expected a template; fetch or copy it again") from None
