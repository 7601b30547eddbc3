"""How much lies in the store, by model and format."""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

from ingot.store.records import DAY, Record, Store


def usage(store: Store) -> dict[str, Any]:
    """Bytes by model and kind, each blob counted once, for the record that was used last."""
    rows: dict[tuple[str, str], dict] = {}
    counted: set[str] = set()
    for record in sorted(store.records(), key=lambda record: record.used, reverse=True):
        model, kind = _model_and_kind(record)
        row = rows.setdefault(
            (model, kind), {"model": model, "kind": kind, "artifacts": 0, "bytes": 0, "days": 1e9}
        )
        row["days"] = min(row["days"], round((time.time() - record.used) / DAY, 1))
        row["artifacts"] += 1
        for layer in record.manifest["layers"]:
            if layer["digest"] not in counted and store.blob(layer["digest"]).exists():
                counted.add(layer["digest"])
                row["bytes"] += layer["size"]
    found = sorted(rows.values(), key=lambda row: -row["bytes"])
    total, aside = (_bytes(store.root / place) for place in ("blobs/sha256", "quarantine"))
    return {"store": str(store.root), "bytes": total, "quarantine_bytes": aside, "rows": found}


def _bytes(folder: Path) -> int:
    found = 0
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # gc took it meanwhile
            found += path.lstat().st_size
    return found


def _model_and_kind(record: Record) -> tuple[str, str]:
    title = record.outputs[0]["title"]
    if record.rule.startswith("fetch"):
        return "(fetched)", title.rpartition(".")[2]
    model, _, kind = re.sub(r"_tp\d+", "", title).partition(".")
    return model, kind or record.rule
