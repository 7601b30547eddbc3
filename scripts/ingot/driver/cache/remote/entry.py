"""A record in the shared cache: one small index, which one request fetches, under one or two tags.

`ac-<key>` is the action's; `re-<recipe>` what is known of it before its inputs are (cache/recipe.py).  The
index holds the record's manifest in its descriptor's `data`, and in an annotation a signature, by which the
key, the recipe and the record belong together.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from ingot.base.digest import canonical, of_json
from ingot.base.fields import held
from ingot.base.refused import Refused
from ingot.registry import envelope, modelpack
from ingot.registry.modelpack import ACTION, ROLE
from ingot.registry.transfer import of_bytes
from ingot.store.records import Record

KIND = "urn:ingot:record:1"
BUNDLE, RECIPE, CONFIG = "ingot.bundle", "ingot.recipe", "ingot.config"
INLINE = 2 << 20  # bytes of manifest and config that an index holds; registries take 4 MiB
FORM = {
    "mediaType": str,
    "manifests": [{"digest": str, "data?": str}],
    "annotations": {str: str},
}


@dataclass(frozen=True)
class Entry:
    """What an index says; `manifest` and `config` are empty where they have to be fetched by digest."""

    digest: str
    manifest: dict[str, Any]
    config: bytes


@dataclass(frozen=True)
class Found:
    """A record that the shared cache has, and its config, which explains it."""

    record: Record
    config: bytes


def tag(word: str, digest: str) -> str:
    return f"{word}-{digest}"


def index(record: Record, config: bytes, recipe: str, key: Any) -> dict[str, Any]:
    """The index of a record, signed where there is a `key`."""
    text = canonical(record.manifest)
    entry = modelpack.described(modelpack.MANIFEST, record.digest, len(text), **{ROLE: ACTION})
    notes = {RECIPE: recipe}
    if len(text) + len(config) <= INLINE:
        entry["data"] = base64.b64encode(text).decode()
        notes[CONFIG] = base64.b64encode(config).decode()
    if key is not None:
        said = {"rule": record.rule, "key": record.key, "recipe": recipe}
        subject = {"record": record.digest.removeprefix("sha256:")}
        notes[BUNDLE] = envelope.sign(envelope.statement(subject, KIND, said), key).decode()
    return modelpack.index([entry], **notes)


def opened(what: str, found: dict[str, Any], keys: tuple, rule: str, asked: str) -> Entry:
    """What an index says of the tag `asked`.  Refused: what no trusted key signed, where there are keys;
    and what was signed of another key or recipe."""
    held(what, found, FORM)
    if len(found["manifests"]) != 1:
        raise Refused(f"{what}: {len(found['manifests'])} records, expected one; not taken")
    (entry,), notes = found["manifests"], found["annotations"]
    try:
        text = base64.b64decode(entry.get("data", ""), validate=True)
        config = base64.b64decode(notes.get(CONFIG, ""), validate=True)
    except (ValueError, binascii.Error):
        raise Refused(f"{what}: a record that is no base64, expected one; not taken") from None
    if text and of_bytes(text).digest != entry["digest"]:
        raise Refused(f"{what}: a record of other bytes than its digest's; not taken")
    if keys:
        said, _ = envelope.opened(what, notes.get(BUNDLE, "").encode(), list(keys))
        about = said["predicate"]
        tags = {tag("ac", str(about.get("key"))), tag("re", str(about.get("recipe")))}
        signed = envelope.digests(said).get("record")
        if (said["predicateType"], about.get("rule"), signed) != (KIND, rule, entry["digest"]):
            raise Refused(f"{what}: what was signed is another record; not taken")
    else:
        tags = {tag("re", notes.get(RECIPE, "")), asked if asked.startswith("ac-") else ""}
    if asked not in tags:
        raise Refused(f"{what}: what was signed is not of {asked[:15]}; not taken")
    return Entry(entry["digest"], _manifest(what, text) if text else {}, config)


def _manifest(what: str, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
        if isinstance(found, dict):
            of_json(found)  # half of a character cannot be written again
            return found
    except (ValueError, RecursionError):
        pass
    raise Refused(f"{what}: a record that is no JSON object, expected one; not taken")
