"""Write a page to choose by: of a model all its forms, of an artifact how it was made and verified.

    ingot report demo                        what each form loses, where it runs, what was checked
    ingot report artifacts/demo.q8_0.gguf    whether to ship it
    ingot report                             what stands in this folder

One file of HTML, which works offline and holds its data as JSON.
"""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.base.atomic import replacing
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.rows import RECORD, row_of
from ingot.driver.commands import numbers, plan, report_model
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.forecast.costs import Costs
from ingot.driver.forecast.past import Past
from ingot.driver.release import older
from ingot.driver.release.on_record import OnRecord
from ingot.driver.release.pages import page, plots
from ingot.driver.release.pages.about import FORMAT, about
from ingot.driver.release.pages.against import against
from ingot.driver.show import status
from ingot.driver.show.quality import few
from ingot.driver.show.shown import NUMBERS, verdict
from ingot.parity import verification
from ingot.store.records import Store

PAGES = Path("reports")
COMPILE = "compile_vmfb"
NO_PAGE = "{}: no page of an artifact, expected one; write it again"


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="?", help="a model, or artifacts/...; without one, all of this folder"
    )
    parser.add_argument(
        "--against", metavar="OTHER", help="another artifact, or a page of `ingot report`"
    )
    parser.add_argument("--out", type=Path, help=f"the page to write (default: {PAGES}/NAME.html)")
    parser.add_argument(
        "--svg", type=Path, metavar="FOLDER", help="write the pictures as files, too"
    )
    parser.add_argument(
        "--json", action="store_true", help="machine-readable: print the page's data only"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print a model's table for its card only"
    )
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    if options.against and not options.target:
        raise Refused("--against: no artifact to compare, expected one; name it first")
    if options.markdown and (not options.target or options.target.startswith(targets.FOLDER)):
        raise Refused("--markdown: no model, expected one of the catalogue; name it first")
    try:
        catalogue = schema.load(root, options.configfile)
    except Refused:
        if options.target:
            raise
        catalogue = {"models": {}}  # a folder's page needs none
    if options.target in catalogue["models"]:
        if options.against:
            raise Refused("--against: compares artifacts, expected one of a model; name it")
        found, compared = report_model.of_model(root, options.target, catalogue, PAGES), None
        rows = report_model.with_numbers(found["forms"])
        pictures = {"quality": plots.quality(rows) if rows else ""}
        text, name = page.model(found, pictures), options.target
    elif options.target:
        other = of_other(root, options) if options.against else None
        found = of_target(root, options.target, options.configfile)
        try:
            compared = against(found, other) if other else None
        except (KeyError, TypeError, AttributeError, ValueError):  # a page that somebody edited
            raise Refused(NO_PAGE.format(options.against)) from None
        pictures = {name: getattr(plots, name)(found) for name in ("costs", "run", "prompts")}
        text = page.page(found, pictures, compared)
        name = found["title"]
    else:
        found, pictures = of_folder(root, catalogue)
        text, name, compared = page.folder(found, pictures), "index", None
    for one in found.get("forms", found.get("artifacts", [found])):
        if one["older"]:
            print(older.sentence(one.get("target") or one["path"], one["older"]), file=sys.stderr)
    if options.markdown:
        print(report_model.markdown(found))
        return
    if options.json:
        print(json.dumps(found | ({"against": compared} if compared else {})))
        return
    place = options.out or PAGES / f"{name}.html"
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as partial:
        partial.write_text(text)
    print(f"{place}: {len(text.encode()) / 1e3:.0f} kB; open it in a browser")
    if options.svg:
        options.svg.mkdir(parents=True, exist_ok=True)
        for word, picture in pictures.items():
            if picture:
                (options.svg / f"{name}.{word}.svg").write_text(plots.plain(picture))
                print(options.svg / f"{name}.{word}.svg")


def of_target(root: Path, target: str, catalogue: str | None) -> dict[str, Any]:
    target = target.rstrip("/")
    found = schema.load(root, catalogue)
    targets.check(target, found)
    if target.endswith(RECORD):
        raise Refused(
            f"{target}: a record, expected what it is of; ingot report {target[: -len(RECORD)]}"
        )
    wanted, verifiable = [target], True
    try:
        targets.check(target + RECORD, found)
        wanted.append(target + RECORD)
    except Refused:  # of a format that is not verified
        verifiable = False
    on = OnRecord(root, Store(), wanted, catalogue, built=False)
    return about(on, target, serving(root, target, found), verifiable)


def serving(root: Path, target: str, catalogue: dict) -> dict[str, Any]:
    """What `ingot plan` says of it; empty where config.json is not here, or no such server takes it."""
    row = row_of(target)
    if row is None or row.whole:  # a layout is of what is laid over GPUs
        return {}
    costs, name = Costs(catalogue, root, Past(Store())), targets.model_of(target)
    if costs.model(name).config is None:
        return {}
    usual = Namespace(context=None, gpu_memory=None, kv_heads=0, nominal=None)
    found = plan.of_serving(name, costs, [target], usual)
    return found if catalogue[row.devices][found["hardware"]].get("memory") else {}


def of_other(root: Path, options: Namespace) -> dict[str, Any]:
    if not options.against.endswith(".html"):
        return of_target(root, options.against, options.configfile)
    try:
        found = page.read(Path(options.against))
        if isinstance(found, dict) and found.get("format") == FORMAT and "actions" in found:
            return found
    except (OSError, ValueError):
        pass
    raise Refused(NO_PAGE.format(options.against))


def of_folder(root: Path, catalogue: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """What stands in artifacts/, the runs of this folder, and what compiling took."""
    runs, places = status.runs(), [p for p in sorted(Path("artifacts").glob("*")) if _counts(p)]
    reasons = older.why(root, Store(), catalogue, map(str, places))
    found = {
        "folder": Path.cwd().name,
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "artifacts": [{**_artifact(path), "older": reasons.get(str(path), "")} for path in places],
        "runs": [_run(one) for one in runs[::-1]],
    }
    pictures = {"run": "", "work": ""}
    if built := [one for one in runs if one.jobs]:
        last = built[-1]
        of_run = {
            "since": last.since,
            "plan": last.plan,
            "jobs": last.jobs,
            "samples": last.samples,
        }
        pictures["run"] = plots.run({"run": of_run})
    if points := compiled(Store()):
        pictures["work"] = plots.over_work(
            points, "blocks compiled, on each rank, in each function"
        )
    return found, pictures


def _counts(path: Path) -> bool:
    skipped = (RECORD, ".published.json", ".hf", "README.md")
    return path.exists() and not (path.name.startswith(".") or path.name.endswith(skipped))


def _run(one: status.Status) -> dict[str, Any]:
    end = max((job["since"] + job["seconds"] for job in one.jobs), default=one.since)
    return {
        "begun": time.strftime("%Y-%m-%d %H:%M", time.localtime(one.since)),
        "targets": ", ".join(one.targets[:3]),
        "done": one.done,
        "failed": len(one.failed),
        "seconds": end - one.since,
        "planned": one.plan.get("seconds", 0.0),
    }


def _artifact(path: Path) -> dict[str, Any]:
    record = path.with_name(path.name + RECORD)
    said = verdict(str(record)) if record.exists() else ""
    return {
        "path": str(path),
        "bytes": numbers.bytes_of(path) or 0,
        "digest": digest.of(path),
        "result": "" if not said else "yes" if _is_of(record, path) else "of other bytes",
        "numbers": "; ".join(few(_checks(record), NUMBERS)) if said else "",
    }


def _checks(record: Path) -> Any:
    return json.loads(record.read_bytes())["checks"]


def _is_of(record: Path, path: Path) -> bool:
    """Was it this that was verified?  Each file of a folder is checked against its SHA256SUMS."""
    try:
        return json.loads(record.read_text()).get("sha256") == verification.digest(path)
    except (OSError, Refused):
        return False


def compiled(store: Store) -> dict[str, list[tuple[float, float]]]:
    """Seconds of iree-compile by blocks, per kind of hardware; of kinds with two depths or more."""
    found: dict[str, list[tuple[float, float]]] = {}
    for job in Past(store).jobs(COMPILE):
        found.setdefault(job.kind or "cpu", []).append((job.units, job.measured[0]))
    return {kind: some for kind, some in found.items() if len({units for units, _ in some}) > 1}
