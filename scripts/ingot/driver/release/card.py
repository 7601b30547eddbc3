"""The model card of what is put on the Hugging Face hub, and the licence that its source states.

Source: the hub's model-card metadata (huggingface.co/docs/hub/model-cards).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.driver.catalogue.formats.rows import row_of
from ingot.driver.catalogue.found import front, license_of
from ingot.driver.forecast.schedule import size
from ingot.driver.show import quality
from ingot.registry.published import Artifact, Origin

MARK = "<!-- written by ingot -->"  # ours may be replaced
FILES = ("README.md", "LICENSE", "LICENSE.txt", "LICENSE.md")
NAMED = ("license", "license_name", "license_link")  # of a card with `license: other`
LICENCES = {  # how the first lines of a licence's text are known, for checkpoints that say no more
    "Apache License": "apache-2.0", "MIT License": "mit", "LLAMA 3.1 COMMUNITY": "llama3.1",
    "LLAMA 3.2 COMMUNITY": "llama3.2", "LLAMA 3.3 COMMUNITY": "llama3.3",
}  # fmt: skip
QUANTISED = re.compile(r"\.(i?q\d\w*|fp8\w*|int\d\w*|w\da\d+|(mx|nv)fp4|\dbit)\.")


@dataclass(frozen=True)
class Licence:
    name: str
    where: str  # the checkpoint's file that states it; empty where none does
    read: bool = True  # were its files here to be read?
    front: dict[str, str] = field(
        default_factory=dict
    )  # as its card has it, where the hub knows no such


def licence(folder: Path, catalogues: str) -> Licence:
    """What a checkpoint's own files state.  Refused where the catalogue says another."""
    found = license_of(folder) or ""
    where = "README.md" if found else ""
    for name in FILES[1:]:
        if not found and (folder / name).is_file():
            head = (folder / name).read_text(errors="replace")[:400].upper()
            known = [short for text, short in LICENCES.items() if text.upper() in head]
            found, where = (known[0], name) if known else ("", "")
    if found and catalogues and catalogues not in (found, front(folder).get("license")):
        raise Refused(
            f"{folder / where}: its licence is {found}, but the catalogue says {catalogues}; correct "
            "license: of the model"
        )
    said = {key: one for key, one in front(folder).items() if key in NAMED and isinstance(one, str)}
    named = found and found == said.get("license_name") and said.get("license") == "other"
    return Licence(found or catalogues, where, folder.is_dir(), said if named else {})


def card(
    artifact: Artifact,
    origin: Origin,
    entry: dict[str, Any],
    said: Licence,
    record: dict[str, Any],
    forms: dict[str, dict[str, Any]],
) -> str:
    """The text of README.md; `forms` are all that the repository will hold: bytes and record by title."""
    title, hub = artifact.title, entry.get("hub", "")
    row = row_of(f"artifacts/{title}")
    about: dict[str, Any] = {"license": said.name or "unknown", **said.front}
    if (link := about.pop("license_link", "")) and (hub or "://" in link):  # else of another folder
        whole = f"https://huggingface.co/{hub}/blob/{entry.get('revision', 'main')}/{link}"
        about |= {"license_link": link if "://" in link else whole}
    if adapter := entry.get("adapter"):
        if its := adapter.get("hub"):
            about |= {"base_model": its, "base_model_relation": "quantized"}
        elif hub:
            about |= {"base_model": hub, "base_model_relation": "finetune"}
    elif hub:
        about |= {"base_model": hub}
        if QUANTISED.search(f".{title}."):
            about |= {"base_model_relation": "quantized"}
    about |= {"tags": ["ingot", *([row.name] if row else [])]}
    steps = origin.predicate["buildDefinition"]["internalParameters"]["steps"]
    made = [f"`{step['rule']}`" for step in steps]
    checks = record["checks"]
    numbers = [
        (quality.FIRST[name][0], quality.FIRST[name][1].format(value))
        for name, value in quality.first(checks).items()
    ]
    numbers += [(k, v) for k, v in checks.items() if isinstance(v, int | float | str)]
    source = f"[{hub}](https://huggingface.co/{hub})" if hub else entry.get("name", "a checkpoint")
    revision = f" at revision `{entry['revision']}`" if entry.get("revision") else ""
    if adapter:
        its = adapter.get("hub", "")
        named = (
            f"[{its}](https://huggingface.co/{its}) at revision `{adapter['revision']}`"
            if its
            else ""
        )
        source = f"the adapter {named or entry['name']} on {source}"
    serve = row.serve.format(title=title) if row else ""
    lines = [
        "---", *_yaml(about), "---", MARK, "", f"# {title}", "",
        f"{row.what if row else 'An artifact'}: of {source}{revision}.", "",
        f"Made by Ingot in the steps {', '.join(made)}, from the files that `{title}.sigstore.json` names "
        "by digest.", "",
        *(["```sh", serve, "```", ""] if serve else []),
        *of_forms(forms, title),
        f"Verified against {record['reference']}: {record['result']}.", "",
        "| number | value |", "|---|---:|", *(f"| {name} | {value} |" for name, value in numbers), "",
        "| file | bytes | SHA-256 |", "|---|---:|---|",
        *(f"| `{one['path']}` | {one['size']:,} | `{one['digest'].removeprefix('sha256:')}` |"
          for one in artifact.files), "",
        f"Licence: {said.name or 'unknown'}, as the source's "
        + (f"`{said.where}` states." if said.where else "catalogue entry says")
        + ("" if said.where else "; its files state none." if said.read else "."), "",
    ]  # fmt: skip
    return "\n".join(lines)


def of_forms(forms: dict[str, dict[str, Any]], own: str) -> list[str]:
    """A table of several, the smallest first; nothing of one.  Others' records are somebody's word: what is
    no number is left out."""
    if len(forms) < 2:
        return []
    lines = ["| file | size | mean KL | same best token | answers |", "|---|---:|---:|---:|---:|"]
    for title, one in sorted(forms.items(), key=lambda form: (form[1]["bytes"], form[0])):
        checks = one["record"].get("checks") if isinstance(one["record"], dict) else None
        checks = checks if isinstance(checks, dict) else {}
        numbers = quality.first(checks)
        kl, same = (_shown(numbers.get(key), form) for key, (_, form) in quality.FIRST.items())
        equal, asked = (_shown(checks.get(key), "{:.0f}") for key in ("greedy_equal", "prompts"))
        answers = f"{equal} of {asked}" if equal and asked else ""
        name = f"**`{title}`**" if title == own else f"`{title}`"
        lines.append(f"| {name} | {size(one['bytes'])} | {kl} | {same} | {answers} |")
    return [
        *lines, "",
        "Mean KL: how far the next-token probabilities are from the model's, in nats, on a text. Answers: "
        "prompts that are answered word for word as by the model.", "",
    ]  # fmt: skip


LARGEST = 1e6


def _shown(value: Any, form: str) -> str:
    """Nothing of what is no number, or none that a record could have."""
    if not isinstance(value, int | float) or not 0 <= value < LARGEST:
        return ""
    return form.format(value)


def _yaml(front: dict[str, Any]) -> Iterable[str]:
    import yaml

    return yaml.safe_dump(front, sort_keys=False).splitlines()
