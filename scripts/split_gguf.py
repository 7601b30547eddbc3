"""Cut a GGUF file into a set of smaller ones, each within a limit.  Runs in envs/convert.

The set that llama.cpp's llama-gguf-split makes, byte for byte: the first file has all of the metadata,
and libllama loads the set by it.  Bytes are copied by the kernel.
"""

import errno
import os
import re
from pathlib import Path
from typing import Annotated

from ingot.base import sealed, stream
from ingot.base.atomic import replacing
from ingot.base.options import step
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.formats.gguf.file import Pairs, TensorInfo, align, layout_of, read_pairs
from ingot.formats.gguf.kv import KV

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
MOST = 65535  # split.count has 16 bits
COPY = 1 << 26  # bytes per call


def split_gguf(
    gguf: Annotated[Path, "the file to cut"],
    folder: Annotated[Path, "artifacts/M.split, to write"],
    stem: Annotated[str, "of the files: M.q4_k_m"],
    limit: Annotated[str, "bytes of tensors per file"] = "49G",
) -> None:
    most = size_of(limit)
    pairs, infos = read_pairs(gguf)
    groups: list[list[TensorInfo]] = [[]]
    used = 0
    for info in infos:
        size = align(info.nbytes)
        if size > most:
            raise Refused(
                f"{gguf}: tensor {info.name} has {info.nbytes} bytes, expected at most {most} per file; "
                "set `split` of the catalogue higher"
            )
        if used + size > most:
            groups.append([])
            used = 0
        groups[-1].append(info)
        used += size
    progress = Progress(folder.name, sum(info.nbytes for info in infos))
    if len(groups) > MOST:
        raise Refused(
            f"{gguf}: {len(groups)} files of {limit}, expected at most {MOST}; set it higher"
        )
    with replacing(folder) as partial, gguf.open("rb") as source:
        partial.mkdir()
        for number, group in enumerate(groups):
            name = f"{stem}-{number + 1:05d}-of-{len(groups):05d}.gguf"
            own = [
                KV("split.no", "u16", number),
                KV("split.tensors.count", "i32", len(infos)),
                KV("split.count", "u16", len(groups)),
            ]
            whole = pairs if number == 0 else Pairs(0, b"")
            plan = layout_of(whole + own, [(info.name, info.type, info.shape) for info in group])
            with (partial / name).open("wb") as file:
                stream.allocate(file.fileno(), plan.size, folder / name)
                file.write(plan.head)
                for old, new in zip(group, plan.entries, strict=True):
                    file.seek(new.offset)
                    copy(source.fileno(), file, old.offset, old.nbytes, progress)
                file.truncate(plan.size)
        sealed.seal(partial)


def copy(source: int, file, offset: int, count: int, progress: Progress) -> None:
    file.flush()
    at, end = offset, offset + count
    place = file.tell()
    while at < end:
        done = moved(source, file.fileno(), min(COPY, end - at), at, place)
        if done == 0:
            raise Refused(f"{file.name}: the source ended at byte {at}; it was cut short meanwhile")
        at, place = at + done, place + done
        progress.add(done)


def moved(source: int, target: int, count: int, at: int, place: int) -> int:
    """By the kernel, or through memory where the two lie on file systems that it cannot join."""
    try:
        return os.copy_file_range(source, target, count, at, place)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    data = os.pread(source, min(count, stream.BLOCK), at)
    stream.write_exactly(target, memoryview(data), place)
    return len(data)


def size_of(limit: str) -> int:
    """Bytes of 50G, 300M: powers of ten, as hubs count."""
    match = re.fullmatch(r"(\d+)([KMG]?)", limit)
    if not match or not int(match[1]):
        raise Refused(f"--limit: {limit}, expected a size such as 50G")
    return int(match[1]) * UNITS[match[2]]


if __name__ == "__main__":
    step(split_gguf)
