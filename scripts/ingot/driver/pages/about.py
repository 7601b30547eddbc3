"""What a report says of an artifact, as plain values: what its page shows, and holds as JSON."""

import json
import re
import time
from pathlib import Path
from typing import Any

from ingot.driver.board import status
from ingot.driver.catalogue import targets
from ingot.driver.formats.rows import RECORD, row_of
from ingot.driver.origin import card
from ingot.driver.origin.on_record import OnRecord, commit, portable
from ingot.refused import Refused

FORMAT = 1
PIN = re.compile(r"^([A-Za-z0-9_.-]+(?:\[\w+\])?)==(\S+)$", re.M)


def about(on: OnRecord, target: str, serving: dict[str, Any]) -> dict[str, Any]:
    """Of a target that is on record.  Times in seconds, sizes in bytes."""
    record = on.record(target)
    if record is None:
        raise Refused(f"{target}: not on record here, expected something built; snakemake {target}")
    output, model = on.output(target), targets.model_of(target)
    entry, row = on.catalogue["models"][model], row_of(target)
    verified = verification(on, target)
    actions = _actions(on, [target, *([target + RECORD] if verified else [])])
    title = output["title"]
    return {
        "format": FORMAT,
        "target": target,
        "title": title,
        "what": row.what if row else "an artifact",
        "digest": output["digest"],
        "bytes": output["size"],
        "files": len(output.get("entries", ())) or 1,
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
        "sources": _sources(on, actions),
        "toolchains": _toolchains(on.root, actions),
        "serving": serving,
        "run": _run(actions, on.cwd),
        "commands": {
            "make it again": f"snakemake {target}",
            "check its digest": _check(target, output),
            "see why it would be built": f"ingot explain {target}",
            "serve it": card.SERVE.get(row.name if row else "", "").format(title=target),
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


def _sources(on: OnRecord, actions: list[dict[str, Any]]) -> dict[str, str]:
    """What no action made, but its code, by name."""
    made = {one["digest"] for action in actions for one in action["outputs"]}
    found: dict[str, str] = {}
    for action in actions:
        for role, value in action["fields"].get("inputs", {}).items():
            listed = value if isinstance(value, list) else [[role, value]]
            found.update({name: one for name, one in listed if one not in made})
    return found


def _toolchains(root: Path, actions: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """What was asked for of each toolchain, with versions."""
    names = {name.split("/")[0] for one in actions for name in one["fields"].get("lock", {})}
    asked = {name: root / "envs" / name / "requirements.in" for name in sorted(names)}
    return {
        name: dict(PIN.findall(path.read_text())) for name, path in asked.items() if path.is_file()
    }


def _revision(on: OnRecord, model: str) -> str:
    """Of the hub's, as its list of files says."""
    if "hub" not in on.catalogue["models"][model]:
        return ""
    said = on.listing(f"artifacts/{model}.hf/listing.json")
    return said["revision"] if said else ""


def _licence(on: OnRecord, model: str, entry: dict[str, Any]) -> dict[str, str]:
    folder = Path(entry["path"]) if "path" in entry else Path("artifacts", f"{model}.hf")
    folder = folder if folder.is_absolute() or "hub" in entry else on.root / folder
    try:
        said = card.licence(folder, entry.get("license", ""))
    except Refused as reason:
        return {"name": "", "where": str(reason)}
    return {"name": said.name, "where": said.where or "the catalogue"}


def _check(target: str, output: dict[str, Any]) -> str:
    if output["digest"].startswith("sha256:"):
        return f"echo '{output['digest'].removeprefix('sha256:')}  {target}' | sha256sum -c"
    return f"(cd {target} && sha256sum -c SHA256SUMS)"


def _run(actions: list[dict[str, Any]], cwd: Path) -> dict[str, Any]:
    """The last run of this folder that built one of them: its jobs, memory, and what was planned."""
    ours = {action["outputs"][0]["path"] for action in actions}
    for one in reversed(status.runs()):
        jobs = [job for job in one.jobs if job["output"] in ours]
        if jobs:
            return {"since": one.since, "host": one.host, "plan": one.plan, "jobs": one.jobs,
                    "samples": one.samples}  # fmt: skip
    return {}
