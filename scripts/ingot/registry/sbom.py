"""What an artifact was built by: each package of its toolchains, as CycloneDX 1.6.

Source: cyclonedx.org/docs/1.6.  The same bytes for the same steps: no time, no number by chance.
"""

import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.base.digest import canonical

SPACE = uuid.UUID("8e3d0b52-6c7a-5f0e-9d3b-1f6a2c4b7d90")  # of our serial numbers
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?:\s|$)", re.M)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def sbom(title: str, sha256: str, licence: str, locks: Iterable[Path]) -> bytes:
    """`sha256` is the file's, or that of a folder's SHA256SUMS; `locks` are
    envs/<toolchain>/requirements.lock."""
    found: dict[str, dict[str, Any]] = {}
    tools = []
    for lock in sorted(locks):
        toolchain, parts = lock.parent.name, []
        for line in lock.read_text().splitlines():
            if match := PIN.match(line):
                one = _package(*match.groups(), HASH.findall(line))
                found[one["bom-ref"]] = one
                parts.append(one["bom-ref"])
        ref = f"toolchain:{toolchain}"
        found[ref] = {
            "type": "platform", "bom-ref": ref, "name": toolchain,
            "hashes": [{"alg": "SHA-256", "content": digest.of(lock).partition(":")[2]}],
        }  # fmt: skip
        tools.append({"ref": ref, "dependsOn": sorted(set(parts))})
    component: dict[str, Any] = {
        "type": "machine-learning-model", "bom-ref": "artifact", "name": title,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
    }  # fmt: skip
    if licence:
        component["licenses"] = [{"license": {"name": licence}}]
    listed = sorted(found.values(), key=lambda one: one["bom-ref"])
    whole = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": component}, "components": listed,
        "dependencies": [
            {"ref": "artifact", "dependsOn": [one["ref"] for one in tools]}, *tools
        ],
    }  # fmt: skip
    serial = uuid.uuid5(SPACE, digest.of_json(whole))
    return canonical({**whole, "serialNumber": f"urn:uuid:{serial}"})


def _package(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    normal = re.sub(r"[-_.]+", "-", name).lower()
    purl = f"pkg:pypi/{normal}@{version.replace('+', '%2B')}"
    found: dict[str, Any] = {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
    }  # fmt: skip
    if len(hashes) == 1:  # of several wheels nobody can say which one was installed
        found["hashes"] = [{"alg": "SHA-256", "content": hashes[0]}]
    return found
