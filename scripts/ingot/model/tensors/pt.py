"""One tensor as torch.save writes it, streamed, and without torch.

A zip archive, nothing compressed: data.pkl, a pickle of one call that puts the tensor together, and
data/0, its bytes (https://docs.pytorch.org/docs/stable/notes/serialization.html).
"""

import pickle
import zipfile
import zlib
from collections.abc import Iterable
from math import prod
from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)  # a zip's earliest time: the same file whenever it is written
STORAGES = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage"}


def write(path: Path, dtype: str, shape: tuple[int, int], blocks: Iterable[bytes]) -> None:
    """A tensor [rows, columns] whose bytes are `blocks`, one after another."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, text in _texts(dtype, shape).items():
            archive.writestr(_entry(path, name), text)
        with archive.open(_entry(path, "data/0"), "w", force_zip64=True) as file:
            for block in blocks:
                file.write(block)


def holds(path: Path, dtype: str, shape: tuple[int, int], blocks: Iterable[bytes]) -> bool:
    """Is the file what `write` makes of the same?"""
    try:
        with zipfile.ZipFile(path) as archive:
            texts = {f"{path.stem}/{name}": text for name, text in _texts(dtype, shape).items()}
            data = f"{path.stem}/data/0"
            if archive.namelist() != [*texts, data]:
                return False
            with archive.open(data) as file:
                same = all(file.read(len(block)) == bytes(block) for block in blocks)
                same = same and not file.read(1)
            return same and all(archive.read(name) == text for name, text in texts.items())
    except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError, OSError, ValueError):
        return False


def _texts(dtype: str, shape: tuple[int, int]) -> dict[str, bytes]:
    return {"data.pkl": _pickle(dtype, shape), "byteorder": b"little", "version": b"3\n"}


def _entry(path: Path, name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(f"{path.stem}/{name}", EPOCH)


def _pickle(dtype: str, shape: tuple[int, int]) -> bytes:
    """torch._utils._rebuild_tensor_v2(storage, 0, shape, strides, False, OrderedDict()), protocol 2."""
    numbers = b"".join(
        b"".join(_number(n) for n in pair) + pickle.TUPLE2 for pair in (shape, (shape[1], 1))
    )
    storage = b"".join(
        (
            pickle.MARK,
            _text("storage"),
            _global("torch", STORAGES[dtype]),
            _text("0"),
            _text("cpu"),
            _number(prod(shape)),
            pickle.TUPLE,
            pickle.BINPERSID,
        )
    )
    return b"".join(
        (
            pickle.PROTO,
            b"\x02",
            _global("torch._utils", "_rebuild_tensor_v2"),
            pickle.MARK,
            storage,
            _number(0),
            numbers,
            pickle.NEWFALSE,
            _global("collections", "OrderedDict"),
            pickle.EMPTY_TUPLE,
            pickle.REDUCE,
            pickle.TUPLE,
            pickle.REDUCE,
            pickle.STOP,
        )
    )


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode()
    return pickle.BINUNICODE + len(data).to_bytes(4, "little") + data


def _number(number: int) -> bytes:
    if number < 1 << 31:
        return pickle.BININT + number.to_bytes(4, "little")
    return pickle.LONG1 + b"\x09" + number.to_bytes(9, "little")
