"""What a report says of an artifact, as plain values: what its page shows, and holds as JSON."""

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.base.sealed import SUMS
from ingot.driver.catalogue import targets
from ingot.driver.catalogue.formats.rows import RECORD, row_of
from ingot.driver.catalogue.model import base_of
from ingot.driver.release import card, older
from ingot.driver.release.on_record import OnRecord, commit, portable
from ingot.driver.show import status

FORMAT = 1
SAME = 60.0  # seconds between the end of a job and its record
FETCH = "fetch_file"
ASKED = re.compile(r"^([A-Za-z0-9_.-]+)", re.M)  # names of requirements.in


def about(
    on: OnRecord, target: str, serving: dict[str, Any], verifiable: bool = True
) -> dict[str, Any]:
    """Of a target that is on record; `verifiable`: its format is verified.  Seconds, and bytes."""
    record = on.record(target)
    if record is None:
        known = "its bytes are not on record" if (on.cwd / target).exists() else "not here"
        raise Refused(f"{target}: {known}, expected something built; snakemake {target}")
    output, model = on.output(target), targets.model_of(target)
    entry, row = on.catalogue["models"][model], row_of(target)
    verified = verification(on, target)
    actions = folded(_actions(on, [target, *([target + RECORD] if verified else [])]))
    title, paths, made = output["title"], on.makers[target]["outputs"], on.outputs(target)
    own = f"--configfile {shlex.quote(Path(on.own).name)} " if on.own else ""
    verify = f" {target}{RECORD}" if verifiable else ""
    return {
        "format": FORMAT,
        "target": target,
        "title": title,
        "what": row.what if row else "an artifact",
        "digest": output["digest"],
        "bytes": sum(one["size"] for one in made),
        "files": sum(len(one.get("entries", ())) or 1 for one in made),
        "verifiable": verifiable,
        "older": older.why(on.root, on.store, on.catalogue, [target]).get(target, ""),
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "source": {
            "model": model,
            "name": entry.get("name", model),
            "hub": entry.get("hub", ""),
            "revision": _revision(on, model) or entry.get("revision", ""),
            "path": portable(entry.get("path", "")),
            "commit": commit(on.root),
        },
        "licence": _licence(on, model, entry),
        "verification": verified,
        "actions": actions,
        "sources": _sources(actions),
        "toolchains": _toolchains(on.root, actions),
        "serving": serving,
        "run": _run(actions),
        "commands": {
            "make it again": f"snakemake {own}-- {target}{verify}",
            "check its digest": _check(dict(zip(paths, made, strict=True))),
            "see why it would be built": f"ingot explain {own}{target}",
            "serve it": row.serve.format(title=target) if row and "  #" not in row.serve else "",
        },
    }


def verification(on: OnRecord, target: str) -> dict[str, Any]:
    """The record of its verification; empty where it was not verified."""
    record = on.record(target + RECORD)
    name = on.output(target + RECORD)["digest"] if record else ""
    if not name or not on.store.has(name):
        return {}
    return json.loads(on.store.blob(name).read_bytes())


def _actions(on: OnRecord, wanted: list[str]) -> list[dict[str, Any]]:
    """The actions on the way, makers first; each names those that it reads from by their place."""
    found: dict[str, dict[str, Any]] = {}  # by the first output

    def visit(path: str) -> None:
        job = on.makers.get(path)
        if not job or job["outputs"][0] in found or not (record := on.record(path)):
            return
        for one in job["inputs"]:
            visit(one)
        config = on.store.config(record)
        cost = config.get("cost", {})
        made = {on.makers[one]["outputs"][0] for one in job["inputs"] if one in on.makers}
        found[job["outputs"][0]] = {
            "rule": record.rule,
            "key": record.key,
            "outputs": [
                {"path": name, "digest": one["digest"], "bytes": one["size"]}
                for name, one in zip(job["outputs"], on.outputs(path), strict=True)
            ],
            "reads": sorted(n for n, name in enumerate(found) if name in made),
            "seconds": cost.get("seconds"),
            "memory": cost["peak_rss_mb"] * 1e6 if "peak_rss_mb" in cost else None,
            "bytes": cost.get("bytes"),
            "cores": cost.get("cores"),
            "expected": dict(zip(("seconds", "memory", "bytes"), cost["expected"], strict=True))
            if "expected" in cost
            else None,
            "ended": on.store.blob(record.digest).stat().st_mtime,
            "fields": config.get("fields", {}),
            "about": config.get("about", {}),
        }

    for path in wanted:
        visit(path)
    return list(found.values())


def folded(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fetches of a checkpoint as one action: a model of 196 files is one box."""
    many = [n for n, one in enumerate(actions) if one["rule"] == FETCH]
    if len(many) < status.MANY:
        return actions
    first, some = many[0], [actions[n] for n in many]

    def whole(name: str, of: Callable, field: str = "") -> Any:
        values = [(one[field] or {}).get(name) if field else one[name] for one in some]
        known = [value for value in values if value is not None]
        return of(known) if known else None

    costs = {"seconds": sum, "memory": max, "bytes": sum}
    fetched = {
        **some[0], **{name: whole(name, of) for name, of in costs.items()},
        "expected": {name: whole(name, of, "expected") for name, of in costs.items()}
        if any(one["expected"] for one in some) else None,
        "outputs": [made for one in some for made in one["outputs"]],
        "ended": max(one["ended"] for one in some),
    }  # fmt: skip
    kept = [n for n in range(len(actions)) if n == first or n not in many]
    place = {n: kept.index(first if n in many else n) for n in range(len(actions))}
    found = []
    for n in kept:
        one = fetched if n == first else actions[n]
        found.append({**one, "reads": sorted({place[m] for m in actions[n]["reads"]})})
    return found


def _sources(actions: list[dict[str, Any]]) -> dict[str, str]:
    """What no action made, but its code, by name.  A shard is read by its tensors, not by its bytes."""
    outputs = [made for action in actions for made in action["outputs"]]
    made = {one["digest"] for one in outputs}
    shards = {
        one["path"].rpartition("/")[2] for one in outputs if one["path"].endswith(".safetensors")
    }
    found: dict[str, str] = {}
    for action in actions:
        for role, value in action["fields"].get("inputs", {}).items():
            listed = value if isinstance(value, list) else [[role, value]]
            found.update(
                {name: one for name, one in listed if one not in made and name not in shards}
            )
    return found


def _toolchains(root: Path, actions: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """What was asked for of each toolchain, in the versions that were used."""
    found: dict[str, dict[str, str]] = {}
    for one in actions:
        pins = one["about"].get("pins", {})
        for name in {place.split("/")[0] for place in one["fields"].get("lock", {})}:
            asked = root / "envs" / name / "requirements.in"
            names = ASKED.findall(asked.read_text()) if asked.is_file() else []
            known = {word: pins[word] for word in names if word in pins}
            found.setdefault(name, {}).update(known)
    return dict(sorted(found.items()))


def _revision(on: OnRecord, model: str) -> str:
    """Of the hub's, as its list of files says."""
    if "hub" not in on.catalogue["models"][model]:
        return ""
    base = base_of(model, on.catalogue["models"][model])
    said = on.listing(f"artifacts/{base}.hf/listing.json")
    return said["revision"] if said else ""


def _licence(on: OnRecord, model: str, entry: dict[str, Any]) -> dict[str, str]:
    folder = (
        Path(entry["path"]) if "path" in entry else Path("artifacts", f"{base_of(model, entry)}.hf")
    )
    folder = folder if folder.is_absolute() or "hub" in entry else on.root / folder
    try:
        said = card.licence(folder, entry.get("license", ""))
    except Refused:
        return {"name": "", "where": "the checkpoint's own file and the catalogue name two"}
    return {"name": said.name, "where": said.where or ("the catalogue" if said.name else "nobody")}


def _check(outputs: dict[str, dict[str, Any]]) -> str:
    """The digests of what the action made; of a folder, of its SHA256SUMS, and of all that these name."""
    lines, folders = [], []
    for path, one in outputs.items():
        name, place = one["digest"], path
        if not name.startswith("sha256:"):
            inside = {entry["path"]: entry.get("digest", "") for entry in one.get("entries", ())}
            name, place = inside.get(SUMS, ""), f"{path}/{SUMS}"
            folders.append(f" && (cd {shlex.quote(path)} && sha256sum --quiet -c {SUMS})")
        if name:
            lines.append(shlex.quote(f"{name.removeprefix('sha256:')}  {place}"))
    return f"printf '%s\\n' {' '.join(lines)} | sha256sum -c{''.join(folders)}" if lines else ""


def _run(actions: list[dict[str, Any]]) -> dict[str, Any]:
    """The last run of this folder that built one of them, as it is on record: its own jobs alone."""
    ended = {made["path"]: one["ended"] for one in actions for made in one["outputs"]}
    for one in reversed(status.runs()):
        jobs = [
            {name: job[name] for name in ("output", "rule", "since", "seconds", "bytes")}
            for job in one.jobs
            if abs(job["since"] + job["seconds"] - ended.get(job["output"], 0.0)) < SAME
        ]
        if jobs:
            return {"since": one.since, "plan": one.plan, "jobs": jobs, "samples": one.samples,
                    "others": len(one.jobs) - len(jobs)}  # fmt: skip
    return {}
