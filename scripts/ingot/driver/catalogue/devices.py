"""What people serve on, by its name: rtx4090, 8xh100, m4-max-64gb, cpu-32gb, or this machine."""

import difflib
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ingot.base import machine
from ingot.base.refused import Refused
from ingot.formats.tensorrt import gpus
from ingot.model.gpu_layout import GIB

THIS = "this"
MOST, ROUNDS = 4 << 30, 5  # bytes that are read, and how often
NAME = re.compile(r"(?:(?P<count>[1-9]\d?)x)?(?P<name>[a-z0-9-]+?)(?:-(?P<memory>[1-9]\d{0,4})gb)?")
MAKERS = r"\b(?:nvidia|geforce|tesla|generation|sxm\d?|80gb|141gb|hbm3e?)\b"  # words without a meaning here
CPU, CUDA, HIP, METAL = "cpu", "cuda", "hip", "metal"
# bytes of a GPU that its driver and a process's context take: 0.3 to 0.6 GiB where people report it
CONTEXT = GIB // 2
CPU_SHARE = 0.9  # of a machine's memory: the rest is the system's
# of memory that it shares with the system, what macOS leaves to a GPU: less below this size
METAL_SHARE, METAL_SMALL, METAL_SMALL_SHARE = 3 / 4, 36 * GIB, 2 / 3


@dataclass(frozen=True)
class Device:
    """One or several alike."""

    name: str
    kind: str  # cpu, cuda, hip or metal
    memory: int  # bytes of one
    count: int = 1
    bandwidth: float = 0  # bytes a second of one; 0: not known
    capability: str = ""  # of an NVIDIA GPU, such as 8.9
    hardware: str = ""  # a key of the catalogue's `hardware`, where IREE has code for it

    @property
    def usable(self) -> int:
        """Bytes of one that weights, cache and the rest may fill, by llama.cpp or MLX."""
        if self.kind == CPU:
            return int(self.memory * CPU_SHARE)
        if self.kind == METAL:
            small = self.memory < METAL_SMALL
            return int(self.memory * (METAL_SMALL_SHARE if small else METAL_SHARE))
        return self.memory - CONTEXT


def named(word: str, catalogue: dict[str, Any]) -> Device:
    """Refused: what the catalogue's `devices` do not know, memory that nobody says."""
    if word == THIS:
        return this(catalogue)
    known = catalogue["devices"]
    match = NAME.fullmatch(word)
    entry = known.get(match["name"]) if match else None
    if match is None or entry is None:
        near = difflib.get_close_matches(match["name"] if match else word, known, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"
        raise Refused(
            f"{word}: unknown device, expected one of the catalogue's `devices`, or {THIS}; {hint}"
        )
    memory = float(match["memory"] or entry.get("memory", 0))
    if not memory:
        raise Refused(f"{word}: its memory is not said, expected such as {match['name']}-64gb")
    return Device(
        word,
        entry["kind"],
        int(memory * GIB),
        int(match["count"] or 1),
        entry.get("bandwidth", 0) * 1e9,
        entry.get("compute_capability", ""),
        entry.get("hardware", ""),
    )


def this(catalogue: dict[str, Any]) -> Device:
    """This machine: its NVIDIA GPUs, where it has some, or else its memory, whose bandwidth is measured."""
    if found := gpus.memories():
        name, capability, memory = found[0]
        alike = [one for one in found if one == found[0]]
        known = catalogue["devices"].get(short(name), {})
        said = known.get("bandwidth", 0) * 1e9
        return Device(name, CUDA, memory, len(alike), said, capability)
    return Device("this machine", CPU, machine.memory(), bandwidth=bandwidth())


def bandwidth() -> float:
    """Bytes a second that the cores read from memory together: the best of some rounds."""
    import numpy as np

    count = machine.cores()
    each = min(64 << 20, MOST // count, machine.memory() // (8 * count)) // 8  # more than its cache
    found = 0.0
    with ThreadPoolExecutor(count) as pool:
        held = [*pool.map(lambda _: np.ones(each, np.int64), range(count))]
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            assert sum(pool.map(np.max, held)) == count
            found = max(found, 8 * each * count / (time.perf_counter() - begun))
    return found


def short(name: str) -> str:
    """What `devices` call the GPU of that name to its driver; other words, such as PCIe or Laptop, stay:
    they are other memory."""
    return re.sub(MAKERS, "", name.lower().replace("-", " ")).replace(" ", "")


def every(catalogue: dict[str, Any]) -> list[Device]:
    """Each that says its memory by itself."""
    return [named(name, catalogue) for name, one in catalogue["devices"].items() if "memory" in one]
