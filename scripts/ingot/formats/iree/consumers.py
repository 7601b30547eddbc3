"""IRPA archives in the programs that read them: iree.runtime, sharktank; and every byte accounted for."""

import itertools
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.formats.iree.irpa import Entry
from ingot.model.tensors.layout import FileLayout


def exact(path: Path, layout: FileLayout[list[Entry]]) -> None:
    """Refuse an archive unless its front, its texts, its size and its zeros are the layout's.

    The tensors' own bytes are the caller's to compare.
    """
    if (size := path.stat().st_size) != layout.size:
        raise Refused(f"{path}: {size} bytes, expected {layout.size}")
    spans = [(0, len(layout.head))]
    with path.open("rb") as file:
        for at, wanted in {0: layout.head, **layout.texts}.items():
            file.seek(at)
            if (found := file.read(len(wanted))) != wanted:
                first = next(
                    n for n, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b
                )
                raise Refused(
                    f"{path}: byte {at + first} is {found[first]}, expected {wanted[first]} by its layout"
                )
            spans.append((at, at + len(wanted)))
        spans += [(entry.offset, entry.offset + entry.nbytes) for entry in layout.entries]
        spans = [*sorted(spans), (layout.size, layout.size)]
        for (_, end), (start, _) in itertools.pairwise(spans):
            file.seek(end)
            if any(file.read(max(0, start - end))):
                raise Refused(f"{path}: bytes {end} to {start} are not zero, expected padding")


def in_iree(path: Path, entries: list[Entry]) -> None:
    """Refuse an archive that iree.runtime does not load, or finds other tensors in."""
    from iree.runtime import ParameterIndex

    index = ParameterIndex()
    try:
        index.load(str(path))
        found = {name: (entry.file_storage[1], entry.length) for name, entry in index.items()}
    except Exception as error:
        raise Refused(f"{path}: iree.runtime cannot load it ({_first_line(error)})") from None
    for entry in entries:
        if found.get(entry.name) != (entry.offset, entry.nbytes):
            raise Refused(
                f"{path}: tensor {entry.name} is at {found.get(entry.name)} to iree.runtime, expected "
                f"offset {entry.offset} and {entry.nbytes} bytes"
            )


def in_sharktank(path: Path) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """Type, dtype and shape of each tensor as sharktank's Dataset has it, by name."""
    from sharktank.types import Dataset

    try:
        tensors = Dataset.load(path).root_theta.flatten()
        return {name: _described(tensor) for name, tensor in tensors.items()}
    except Exception as error:
        raise Refused(f"{path}: sharktank cannot load it ({_first_line(error)})") from None


def _described(tensor: Any) -> tuple[str, str, tuple[int, ...]]:
    return type(tensor).__name__, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _first_line(error: Exception) -> str:
    words = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {words[0]:.200}"
