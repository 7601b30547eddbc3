"""How far each artifact is from its model: the numbers of the records in artifacts/, as a table."""

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ingot.base import memo
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.rows import RECORD
from ingot.driver.catalogue.targets import FOLDER, model_of
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.forecast.schedule import size
from ingot.driver.release import older
from ingot.driver.show.quality import FIRST
from ingot.store.records import Store

COLUMNS = {  # of a record's numbers: heading, and how one is shown
    "mean_kl": FIRST["mean_kl"],
    "median_kl": ("median", "{:.2g}"),
    "kl_99": ("99 %", "{:.2g}"),
    "kl_99_9": ("99.9 %", "{:.2g}"),
    "largest_kl": ("largest", "{:.2g}"),
    "same_top": FIRST["same_top"],
    "rms_dp": ("RMS Δp", "{:.2%}"),
    "perplexity": ("perplexity", "{:.2f}"),
    "perplexity_reference": ("of the model", "{:.2f}"),
    "tokens": ("tokens", "{}"),
}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a model of the catalogue (default: all)")
    parser.add_argument("--json", action="store_true", help="machine-readable: the same as JSON")
    parser.add_argument("--svg", type=Path, help="a file to draw KL divergence over size into")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> int:
    found = [row for row in rows() if options.model in (None, model_of(row["artifact"]))]
    if not found:
        if options.model:
            targets.stop_on_unknown(options.model, schema.load(root, options.configfile))
        print(
            f"{FOLDER}: no record with numbers, expected one or more; ask for one, such as "
            f"{FOLDER}{options.model or 'demo'}.q4_k_m.gguf{RECORD}",
            file=sys.stderr,
        )
        return 1
    marked(root, found, options.configfile)
    if options.svg:
        from ingot.driver.release.pages import plots

        options.svg.write_text(plots.plain(plots.quality(found)))
    print(json.dumps(found, indent=2) if options.json else table(found))
    return 0


def marked(root: Path, found: list[dict[str, Any]], own: str | None = None) -> None:
    """Say of each row why it is older than its model, where it is, and on stderr; `own` as --configfile."""
    try:
        catalogue = schema.load(root, own)
    except Refused:  # the table needs none
        catalogue = {"models": {}}
    reasons = older.why(root, Store(), catalogue, [row["artifact"] for row in found])
    for row in found:
        row["older"] = reasons.get(row["artifact"], "")
    for target, reason in reasons.items():
        print(older.sentence(target, reason), file=sys.stderr)


def divergences(root: Path, catalogue: dict[str, Any]) -> dict[str, float]:
    """Mean KL, nats, by artifact: of those that are not older than their model."""
    found = {row["artifact"]: row["mean_kl"] for row in rows()}
    reasons = older.why(root, Store(), catalogue, found)
    return {target: kl for target, kl in found.items() if target not in reasons}


def rows() -> list[dict[str, Any]]:
    """Of each record with numbers, those nearest to their model first."""
    found = []
    for path in Path(FOLDER).glob(f"*{RECORD}"):
        try:
            record = json.loads(path.read_bytes())
            numbers = record["checks"]["numbers"]
        except (ValueError, KeyError, TypeError):  # of a record without numbers, or of no record
            continue
        if set(COLUMNS) <= set(numbers):
            artifact = path.with_name(path.name.removesuffix(RECORD))
            known = memo.known(artifact)  # of the store's files, nothing is read
            if known and known != f"sha256:{record.get('sha256')}":
                said = f"{artifact}: built again since {path.name}, so left out; snakemake {path}"
                print(said, file=sys.stderr)
                continue
            found.append({"artifact": str(artifact), "bytes": bytes_of(artifact), **numbers})
    return sorted(found, key=lambda row: (model_of(row["artifact"]), row["mean_kl"]))


def bytes_of(artifact: Path) -> int | None:
    """None where only the record lies here."""
    if artifact.is_dir():
        return sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file())
    return artifact.stat().st_size if artifact.exists() else None


def table(found: list[dict[str, Any]]) -> str:
    """Markdown."""
    heads = ["artifact", "size", *(head for head, _ in COLUMNS.values())]
    lines = [heads, ["---"] * 2 + ["---:"] * len(COLUMNS)]
    for row in found:
        shown = [form.format(row[name]) for name, (_, form) in COLUMNS.items()]
        bytes_here = size(row["bytes"]) if row["bytes"] is not None else ""
        lines.append([f"`{Path(row['artifact']).name}`", bytes_here, *shown])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
