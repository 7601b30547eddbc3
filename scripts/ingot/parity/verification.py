"""A verification record: what an artifact was compared with, the numbers, the thresholds."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.fields import read_json
from ingot.base.record import shown
from ingot.base.refused import Refused

FORMAT = 3  # of the record


def write(
    record: Path, artifact: Path, sha256: str, reference: str, checks: dict[str, Any], **more
) -> None:
    """Write the record of an artifact that passed.  `checks` holds numbers and their limits.

    `sha256` is the artifact's digest, taken before it was checked.  No file is named: two artifacts
    of the same content have the same record.
    """
    found = {
        "format": FORMAT,
        "sha256": sha256,
        "reference": reference,
        "checks": checks,
        **more,
        "result": "passed",
    }
    with replacing(record) as partial:
        partial.write_text(json.dumps(found, indent=2) + "\n")
    if not shown():
        print(f"{artifact}: verified against {reference}", file=sys.stderr)


def rests_on(artifact: Path, record: Path) -> None:
    """Refuse to go by `artifact` unless `record` is of it, and says that it passed."""
    found = read_json(record, {"sha256": str, "result": str})
    if (found["sha256"], found["result"]) != (digest(artifact), "passed"):
        raise Refused(
            f"{record}: not of {artifact} as it is now, expected its record; verify it again"
        )


def digest(artifact: Path) -> str:
    """SHA-256 of a file; of a folder, that of its SHA256SUMS, once each line of it holds."""
    return sealed.file_digest(artifact) if artifact.is_file() else sealed.sealed(artifact)


def same_properties(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse an archive whose properties are not exactly those expected, of the same types."""
    for name in [*wanted, *found]:
        has, expected = (repr(one.get(name, "missing"))[:60] for one in (found, wanted))
        if name not in found or name not in wanted or repr(found[name]) != repr(wanted[name]):
            raise Refused(f"{path}: property {name} is {has}, expected {expected}")


def versions(*packages: str) -> dict[str, str]:
    """The installed versions of `packages`."""
    from importlib.metadata import version

    return {package: version(package) for package in packages}


@contextmanager
def run_by(tool: str, artifact: Path) -> Iterator[None]:
    """Refused: whatever stops `tool`, a runtime, at an artifact."""
    try:
        yield
    except RuntimeError as error:
        words = " ".join(str(error).split())
        raise Refused(
            f"{artifact}: {tool} stops ({words:.200}), expected what it runs; its log says more"
        ) from None
