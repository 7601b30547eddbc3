"""What the page of a model shows: each of its forms, what it loses, where it runs, what was checked."""

import json
import re
import time
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.driver.catalogue import devices, targets
from ingot.driver.catalogue.formats.rows import RECORD, row_of
from ingot.driver.commands import fit, numbers, speed
from ingot.driver.commands.fit_forms import Asked
from ingot.driver.forecast.schedule import size
from ingot.driver.release import older
from ingot.driver.release.pages import page, plots
from ingot.store.records import Store

CONTEXTS = (8192, 32768)  # tokens of one request, or as many as the model takes
# one of these holds a form: the first whose server takes it
PLACES = ("h200", "b200", "m4-max-128gb", "cpu-1024gb")
# what a record says that was checked, by the first of its numbers that it has
CHECKS = {
    "weights": ("values", "tensors", "tensors_equal", "layers_quantised", "layers"),
    "files": ("files_equal", "files", "graph", "graphs", "parts"),
    "tokenizer": ("texts_equal",),
    "answers": ("greedy_equal",),
    "divergence": ("numbers",),
}
SHOWN = ("answers", "divergence")  # of them, those that a card has a column of
UNIT = re.compile(r"(?<=\d) (?=[kMGT]i?B )")
PART = re.compile(r"\.rank\d+\.irpa$|\.vmfb$")  # no form by itself: a bundle holds it
WHAT = (
    "{}: no form of it is here, expected one or more; snakemake artifacts/{}.gguf, or ingot cast {}"
)


def of_model(root: Path, name: str, catalogue: dict[str, Any], pages: Path) -> dict[str, Any]:
    """Of the forms in artifacts/; bytes, tokens, nats.  Refused where there is none."""
    entry, found = catalogue["models"][name], here(name, pages)
    if not found:
        raise Refused(WHAT.format(name, name, name))
    measured = {row["artifact"]: row for row in numbers.rows()}
    held = memory(root, catalogue, name, [form["target"] for form in found])
    timed = speed.of_forms(name)
    reasons = older.why(root, Store(), catalogue, [form["target"] for form in found])
    for form in found:
        row = measured.get(form["target"], {})
        form["numbers"] = {key: row[key] for key in numbers.COLUMNS if key in row}
        form |= held.get(form["target"], {"server": "", "memory": {}, "serve": ""})
        form["older"] = reasons.get(form["target"], "")
        form["speed"] = timed["forms"].get(form["target"], {}) if timed else {}
    front = plots.front(with_numbers(found))
    for form in found:
        form["front"] = form["target"] in front
    return {
        "model": name,
        "name": entry.get("name", name),
        "hub": entry.get("hub", ""),
        "revision": entry.get("revision", ""),
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "contexts": sorted({context for form in found for context in form["memory"]}),
        "timed": where(timed) if timed else "",
        "forms": sorted(found, key=lambda form: -form["bytes"]),
    }


def with_numbers(forms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that plots.quality draws."""
    return [
        {"artifact": form["target"], "bytes": form["bytes"], **form["numbers"]}
        for form in forms
        if form["numbers"] and form["bytes"]
    ]


def here(name: str, pages: Path) -> list[dict[str, Any]]:
    """The artifacts of a model, with what their records say; `pages` may have one of each."""
    found = []
    for path in sorted(Path(targets.FOLDER).glob(f"{name}[._]*")):
        row = row_of(str(path))
        if row is None or row.intermediate or targets.model_of(path.name) != name:
            continue
        if PART.search(path.name) or (row.no_record and not row.final):
            continue
        record = record_of(path)
        checks, own = record.get("checks", {}), pages / f"{path.name}.html"
        checked = {what for what, keys in CHECKS.items() if any(map(_has(checks), keys))}
        found.append({
            "target": str(path), "title": path.name, "what": row.what,
            "bytes": numbers.bytes_of(path) or 0,
            "result": record.get("result", ""), "reference": record.get("reference", ""),
            "answers": answers(_first(checks, "greedy_equal"), _first(checks, "prompts")),
            "checked": [what for what in CHECKS if what in checked],
            "unchecked": [what for what in CHECKS if what not in checked and what != "files"],
            "verifiable": not row.no_record,
            "page": own.name if own.is_file() else "",
        })  # fmt: skip
    return found


def record_of(artifact: Path) -> dict[str, Any]:
    """Empty where there is none, or nobody can read it."""
    try:
        found = json.loads(artifact.with_name(artifact.name + RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and isinstance(found.get("checks"), dict) else {}


def _first(checks: Any, key: str) -> Any:
    """The first value of that name, however deep."""
    if not isinstance(checks, dict):
        return None
    if key in checks:
        return checks[key]
    inside = (_first(value, key) for value in checks.values())
    return next((value for value in inside if value is not None), None)


def _has(checks: dict[str, Any]):
    return lambda key: _first(checks, key) is not None


def memory(root: Path, catalogue: dict, name: str, wanted: list[str]) -> dict[str, dict[str, Any]]:
    """By target: the server whose memory Ingot knows, the command, bytes by the tokens of one request."""
    found: dict[str, dict[str, Any]] = {}
    places = [devices.named(place, catalogue) for place in PLACES]
    with fit.shaped(root, catalogue, name) as (model, shape):
        for context in sorted({min(context, shape.context) for context in CONTEXTS}):
            asked = Asked(context, requests=1)
            for _, form in fit.on(model, shape, places, asked, wanted):
                if not form.why_not:
                    said = {"server": form.server, "serve": form.serve, "memory": {}}
                    found.setdefault(form.target, said)["memory"].setdefault(context, form.needs)
    return found


def markdown(found: dict[str, Any]) -> str:
    """The same for a model card."""
    heads = ["form", "size", "mean KL", "same best token", "answers"]
    timed = found["timed"]
    heads += [f"memory at {context}" for context in found["contexts"]]
    heads += [f"{name}, tokens/s" for name in speed.MEASURES] if timed else []
    lines = [[*heads, "checked"], ["---", *["---:"] * (len(heads) - 1), "---"]]
    for form in found["forms"]:
        said, title = form["numbers"], f"`{form['title']}`"
        lines.append([
            f"**{title}**" if form["front"] else title, size(form["bytes"]),
            *(numbers.COLUMNS[key][1].format(said[key]) if said else ""
              for key in ("mean_kl", "same_top")),
            form["answers"], *(page.gib(form["memory"].get(context)) for context in found["contexts"]),
            *(f"{form['speed'][name]:.4g}" if form["speed"] else ""
              for name in (speed.MEASURES if timed else ())),
            checked(form["checked"]),
        ])  # fmt: skip
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    rows = UNIT.sub("\u00a0", rows)  # a hub's narrow columns would part them
    return f"{rows}\n\nSpeed: {timed}." if timed else rows


def checked(found: list[str]) -> str:
    """In words, but for what has a column of its own."""
    return ", ".join(one for one in found if one not in SHOWN) or ("yes" if found else "no")


def where(timed: dict[str, Any]) -> str:
    """On what a speed was measured, and how busy that was."""
    said = f"{timed['machine']}, {timed['threads']} threads, {timed['written']}"
    return f"{said}, beside {timed['busy']} other processes a core" if timed["busy"] else said


def answers(equal: Any, prompts: Any) -> str:
    """26 of 26, where they were compared."""
    return f"{equal} of {prompts}" if isinstance(equal, int) and isinstance(prompts, int) else ""
