"""A verification record: what an artifact was compared with, the numbers, the thresholds."""

import json
import sys
from pathlib import Path
from typing import Any

from ingot import digest as content
from ingot.atomic import replacing

FORMAT = 2  # of the record


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
    print(f"{artifact}: verified against {reference}", file=sys.stderr)


def digest(artifact: Path) -> str:
    """SHA-256 of a file; of a folder, that of its SHA256SUMS, once each line of it holds."""
    if artifact.is_file():
        return file_digest(artifact)
    sums = artifact / "SHA256SUMS"
    if not sums.is_file():
        sys.exit(f"{artifact}: has no SHA256SUMS, expected a bundle; build it again")
    listed = dict(reversed(line.split("  ", 1)) for line in sums.read_text().splitlines())
    ours = {sums.name, ".snakemake_timestamp"}  # the second is the orchestrator's
    found = {path.name for path in artifact.iterdir()} - ours
    if found != set(listed):
        odd = sorted(found ^ set(listed))[0]
        sys.exit(f"{artifact / odd}: in the folder or in SHA256SUMS, not in both; build it again")
    for name, known in listed.items():
        if file_digest(artifact / name) != known:
            sys.exit(f"{artifact / name}: its bytes are not those of SHA256SUMS; build it again")
    return file_digest(sums)


def file_digest(path: Path) -> str:
    return content.of(path).removeprefix("sha256:")


def versions(*packages: str) -> dict[str, str]:
    """The installed versions of `packages`."""
    from importlib.metadata import version

    return {package: version(package) for package in packages}
