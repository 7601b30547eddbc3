"""Adapters of LoRA that vLLM serves beside their base, each by its own name, and nothing merged."""

import json
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.base.sealed import Contents
from ingot.model.checkpoint import adapter
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.specs import HEAD

FOLDER = "adapters"  # of the bundle
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM takes as the largest of all


class Served:
    """By name; `files` are each one's config and weights, in the order of `names`."""

    def __init__(self, names: list[str], files: list[Path]):
        pairs = [files[n : n + 2] for n in range(0, len(files), 2)]
        if len(pairs) != len(names):
            raise Refused(f"{len(files)} files of {len(names)} adapters, expected two of each")
        self.files = dict(zip(names, pairs, strict=True))
        self.found = {name: _taken(name, Checkpoint(pair)) for name, pair in self.files.items()}

    def contents(self) -> Contents:
        return {
            f"{FOLDER}/{name}/{path.name}": path
            for name, pair in self.files.items()
            for path in pair
        }

    def places(self, device: str) -> int:
        """How many vLLM keeps.  On CPUs the last one stays empty: a request of the base that is computed
        beside an adapter's is given what lies there (its index is -1, which torch counts from the end)."""
        return len(self.files) + (device == "cpu") if self.files else 0

    def arguments(self, device: str) -> list[str]:
        """vLLM's; where the files lie only a running job knows."""
        if not self.files:
            return []
        most = max(one.rank for one in self.found.values())
        return [
            "--enable-lora", "--max-loras", str(self.places(device)),
            "--max-lora-rank", str(next(rank for rank in RANKS if rank >= most)),
        ]  # fmt: skip

    def values(self, device: str) -> int:
        """Of the largest one's matrices, for each place."""
        sizes = (
            sum(sum(pair.shape) * pair.rank for pair in one.loras.values())
            for one in self.found.values()
        )
        return self.places(device) * max(sizes, default=0)


def _taken(name: str, files: Checkpoint) -> adapter.Adapter:
    """Refused: what vLLM does not apply."""
    found = adapter.read(files)
    if found is None:
        raise Refused(f"{files}: no adapter, expected {adapter.ADAPTER}; name one")
    embeddings = (one for one, pair in found.loras.items() if pair.embedding or one == HEAD)
    if odd := next(iter((*found.replaced, *embeddings)), None):
        raise Refused(
            f"{found.path}: changes {odd}, which vLLM does not take of an adapter; serve {name} merged"
        )
    if found.bias != "none":
        raise Refused(
            f"{found.path}: trained biases, which vLLM does not take; serve {name} merged"
        )
    if (most := found.rank) > RANKS[-1]:
        raise Refused(f"{found.path}: rank {most}, expected at most {RANKS[-1]} for vLLM")
    return found


def known(cases: dict[str, list[dict[str, Any]]], tolerance: float) -> list[dict[str, Any]]:
    """What each must answer, for smoke.json."""
    return [
        {"model": name, "tolerance": tolerance, "cases": asked} for name, asked in cases.items()
    ]


def names_of(bundle: Path) -> list[str]:
    """Those of an assembled bundle."""
    return json.loads((bundle / "bundle.json").read_bytes()).get("adapters", [])
