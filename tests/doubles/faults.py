"""Faults for verifiers: each makes a wrong artifact of a right one, with its seal made good again.

`of(kind, artifact)` yields (name, plant) for every fault of a kind; plant(copy) changes a copy in place.
"""

import hashlib
import itertools
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import spec_faults
from ingot.formats.gguf import file as gguf
from ingot.formats.iree import irpa

QUANTISED = ("fp8", "fp8_block", "w8a8", "w4a16", "mxfp4", "nvfp4")
Plant = Callable[[Path], None]
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by GGUF type
STRING, ARRAY = 8, 9
ALIGN = 32


def of(kind: str, artifact: Path) -> Iterator[tuple[str, Plant]]:
    yield from KINDS[kind](artifact)
    for file, editor in EDITORS.get(kind, {}).items():
        path = artifact / file if file else artifact
        for name, change in editor(path.read_bytes()):
            plant = edited(change)
            yield f"by bytes: {file} {name}", inside(file, plant) if file else plant


def flip(data: bytearray, at: int, bit: int = 0) -> None:
    data[at] ^= 1 << bit


def edited(change: Callable[[bytearray], None]) -> Plant:
    """A fault of a file's bytes."""

    def plant(path: Path) -> None:
        data = bytearray(path.read_bytes())
        change(data)
        path.unlink()  # it may be a link into the store
        path.write_bytes(data)

    return plant


def inside(name: str, plant: Plant) -> Plant:
    """A fault of one file of a folder, which is sealed again."""

    def planted(folder: Path) -> None:
        plant(folder / name)
        reseal(folder)

    return planted


def reseal(folder: Path) -> None:
    sums = folder / "SHA256SUMS"
    if not sums.exists():
        return
    names = sorted(path for path in folder.rglob("*") if path.is_file() and path != sums)
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in names
    ]
    sums.unlink()
    sums.write_text("".join(lines))


# GGUF


def gguf_pairs(data: bytes) -> list[tuple[str, int, int, int, int]]:
    """Key, type, where its length begins, where its value begins, where it ends."""
    at = 24
    (count,) = struct.unpack_from("<Q", data, 16)
    found = []
    for _ in range(count):
        start = at
        (size,) = struct.unpack_from("<Q", data, at)
        key = data[at + 8 : at + 8 + size].decode()
        at += 8 + size
        (kind,) = struct.unpack_from("<I", data, at)
        value = at = at + 4
        if kind == STRING:
            at += 8 + struct.unpack_from("<Q", data, at)[0]
        elif kind == ARRAY:
            item, items = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(items if item == STRING else 0):
                at += 8 + struct.unpack_from("<Q", data, at)[0]
            at += items * SIZES.get(item, 0)
        else:
            at += SIZES[kind]
        found.append((key, kind, start, value, at))
    return found


def gguf_header_faults(path: Path) -> Iterator[tuple[str, Plant]]:
    """Of every key: a bit of its value, its name, its absence; of lists their first, middle and last."""
    data = path.read_bytes()
    pairs = gguf_pairs(data)
    for key, kind, start, value, end in pairs:
        places = {"value": value}
        if kind == STRING:
            places = {"text": value + 8} if end > value + 8 else {}
        elif kind == ARRAY:
            item, items = struct.unpack_from("<IQ", data, value)
            if item != STRING and items:
                size = SIZES[item]
                places = {f"[{n}]": value + 12 + n * size for n in (0, items // 2, items - 1)}
            elif items:
                places, at = {}, value + 12
                for n in range(items):
                    size = struct.unpack_from("<Q", data, at)[0]
                    if n in (0, items // 2, items - 1) and size:
                        places[f"[{n}]"] = at + 8
                    at += 8 + size
        for what, at in places.items():
            yield f"{key} {what}", edited(lambda data, at=at: flip(data, at))
        yield f"{key} renamed", edited(lambda data, at=start + 8: flip(data, at))
        yield f"{key} missing", edited(lambda data, cut=(start, end): removed(data, *cut))


def removed(data: bytearray, start: int, end: int) -> None:
    """Without the pair at start..end: the tensors' data move to where they are aligned again."""
    infos = gguf_data_start(bytes(data))
    head, tensors = data[:infos], data[infos:]
    del head[start:end]
    struct.pack_into("<Q", head, 16, struct.unpack_from("<Q", head, 16)[0] - 1)
    end_of_head = gguf_end_of_infos(bytes(head))
    head = head[:end_of_head].ljust(-(-end_of_head // ALIGN) * ALIGN, b"\0")
    data[:] = head + tensors


def gguf_end_of_infos(data: bytes) -> int:
    pairs = gguf_pairs(data)
    at = pairs[-1][4]
    (count,) = struct.unpack_from("<Q", data, 8)
    for _ in range(count):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        (dims,) = struct.unpack_from("<I", data, at)
        at += 4 + 8 * dims + 4 + 8
    return at


def gguf_data_start(data: bytes) -> int:
    return -(-gguf_end_of_infos(data) // ALIGN) * ALIGN


def gguf_tensor_faults(path: Path) -> Iterator[tuple[str, Plant]]:
    infos = {info.name: info for info in gguf.read(path)[1]}

    def one(name: str, change: Callable[[bytearray, object], None]) -> Plant:
        return edited(lambda data: change(data, infos[name]))

    def byte(at: float):
        return lambda data, info: flip(data, info.offset + int(at * (info.nbytes - 1)), 6)

    def rows(order: Callable[[int], np.ndarray]):
        def change(data: bytearray, info) -> None:
            whole = np.frombuffer(data, np.uint8, info.nbytes, info.offset).copy()
            table = whole.reshape(info.shape[0], -1)
            data[info.offset : info.offset + info.nbytes] = table[order(info.shape[0])].tobytes()

        return change

    def head_order(count: int) -> np.ndarray:  # the order of the checkpoint: halves, not pairs
        pairs = np.arange(count).reshape(-1, 16, 2)
        return pairs.swapaxes(1, 2).reshape(-1)

    for name in infos:
        yield f"{name}: a byte", one(name, byte(0.5))
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"):
        yield f"{name}: its first byte", one(name, byte(0))
        yield f"{name}: its last byte", one(name, byte(1))
    for name in ("blk.0.attn_q.weight", "blk.1.attn_k.weight"):
        yield f"{name}: in the checkpoint's order", one(name, rows(head_order))
    for name in ("blk.0.ffn_gate.weight", "output.weight"):
        yield f"{name}: rows reversed", one(name, rows(lambda n: np.arange(n)[::-1]))
        yield f"{name}: one row over another", one(name, rows(lambda n: np.r_[0, 0, 2:n]))
    same = [("attn_k", "attn_v"), ("ffn_gate", "ffn_up")]
    for a, b in same:
        pair = infos[f"blk.0.{a}.weight"], infos[f"blk.0.{b}.weight"]
        if pair[0].nbytes == pair[1].nbytes:
            yield (
                f"blk.0: {a} and {b} swapped",
                edited(lambda data, pair=pair: swapped(data, *pair)),
            )
    pair = infos["blk.0.attn_q.weight"], infos["blk.1.attn_q.weight"]
    if pair[0].nbytes == pair[1].nbytes:
        yield "blocks 0 and 1: attn_q swapped", edited(lambda data: swapped(data, *pair))


def swapped(data: bytearray, one, other) -> None:
    first = bytes(data[one.offset : one.offset + one.nbytes])
    data[one.offset : one.offset + one.nbytes] = data[other.offset : other.offset + other.nbytes]
    data[other.offset : other.offset + other.nbytes] = first


def gguf_faults(path: Path) -> Iterator[tuple[str, Plant]]:
    yield from gguf_header_faults(path)
    yield from gguf_tensor_faults(path)


# IRPA


def irpa_faults(path: Path) -> Iterator[tuple[str, Plant]]:
    properties, entries = irpa.read(path)
    texts = irpa.texts(path)
    for name, value in properties.items():
        yield f"property {name}", texted(irpa.DATASET, {**properties, name: other(value)})
        gone = {key: one for key, one in properties.items() if key != name}
        yield f"property {name} missing", texted(irpa.DATASET, gone)
    for entry in entries:
        at = entry.offset + entry.nbytes // 2
        yield f"{entry.name}: a byte", edited(lambda data, at=at: flip(data, at, 6))
    listed = json.loads(texts.get(irpa.TENSORS, "{}"))
    by_shape: dict[tuple, list] = {}
    for entry in entries:
        by_shape.setdefault((entry.shape, entry.dtype), []).append(entry)
    for group in by_shape.values():
        for one, two in itertools.pairwise(group):
            yield (
                f"{one.name} and {two.name} swapped",
                edited(lambda data, pair=(one, two): swapped(data, *pair)),
            )
    for name in list(listed)[:8]:
        raw = listed[name]["raw_tensors"]
        if "" in raw:
            wrong = next(one for one in listed if one != name)
            change = {**listed, name: {**listed[name], "raw_tensors": {"": wrong}}}
            yield f"{name} is another's bytes", texted(irpa.TENSORS, change)
        yield (
            f"{name} is not listed",
            texted(irpa.TENSORS, {n: v for n, v in listed.items() if n != name}),
        )


def other(value):
    """A value of the same kind that is another."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 + 1
    if isinstance(value, list):
        return [*value[:-1], other(value[-1])] if value else [1]
    return f"{value}x" if value is not None else 1


def texted(name: str, content) -> Plant:
    """One text of an archive replaced, what lies behind it moved."""

    def plant(path: Path) -> None:
        _, entries = irpa.read(path)
        texts = irpa.texts(path)
        data = path.read_bytes()
        texts[name] = json.dumps(content, indent=2).encode()
        layout = irpa.archive([(e.name, e.dtype, e.shape) for e in entries], texts)
        out = bytearray(layout.size)
        for offset, text in {0: layout.head, **layout.texts}.items():
            out[offset : offset + len(text)] = text
        for old, new in zip(entries, layout.entries, strict=True):
            out[new.offset : new.offset + new.nbytes] = data[old.offset : old.offset + old.nbytes]
        path.unlink()
        path.write_bytes(out)

    return plant


# Folders


def json_faults(path: Path, keep: tuple[str, ...] = ()) -> Iterator[tuple[str, Plant]]:
    """Of every key of a JSON file, at any depth: another value, and its absence."""
    document = json.loads(path.read_bytes())

    def walk(node, way=()):
        for key, value in node.items():
            if isinstance(value, dict) and value:
                yield from walk(value, (*way, key))
            elif ".".join((*way, key)) not in keep:
                yield (*way, key)

    def changed(way: tuple[str, ...], change: Callable[[dict, str], None]) -> Plant:
        def plant(where: Path) -> None:
            found = json.loads(json.dumps(document))
            node = found
            for key in way[:-1]:
                node = node[key]
            change(node, way[-1])
            where.unlink()
            where.write_text(json.dumps(found, indent=2))

        return plant

    for way in walk(document):
        name = ".".join(way)
        yield f"{path.name}: {name}", changed(way, lambda n, k: n.__setitem__(k, other(n[k])))
        yield f"{path.name}: {name} missing", changed(way, lambda n, k: n.pop(k))


def safetensors_faults(path: Path) -> Iterator[tuple[str, Plant]]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = (8 + length + at for at in entry["data_offsets"])
        at = (begin + end) // 2 | (3 if entry["dtype"] == "F32" else 1)  # sign and exponent
        yield f"{path.name}: {name}: a byte", edited(lambda data, at=at: flip(data, at, 6))


def folder_faults(folder: Path) -> Iterator[tuple[str, Plant]]:
    """TensorRT-LLM checkpoints: config.json, tensors, ranks in each other's place."""
    for name, plant in json_faults(folder / "config.json"):
        yield name, inside("config.json", plant)
    ranks = sorted(folder.glob("rank*.safetensors"))
    for path in ranks:
        for name, plant in safetensors_faults(path):
            yield name, inside(path.name, plant)
    if len(ranks) > 1:
        yield "rank 0 and the last swapped", exchanged(ranks[0].name, ranks[-1].name)


def exchanged(one: str, other: str) -> Plant:
    """Two files of a folder in each other's place."""

    def plant(folder: Path) -> None:
        (folder / one).rename(folder / "x")
        (folder / other).rename(folder / one)
        (folder / "x").rename(folder / other)
        reseal(folder)

    return plant


def quantised_faults(folder: Path) -> Iterator[tuple[str, Plant]]:
    """Quantised checkpoints: what config.json says, tensors, files; scales of another group or layer."""
    yield "a file more", inside("more", lambda path: path.write_text("more"))
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        for fault, plant in json_faults(folder / name):
            yield fault, inside(name, plant)
    shards = sorted(folder.glob("*.safetensors"))
    for path in shards:
        for name, plant in safetensors_faults(path):
            yield name, inside(path.name, plant)
        for name, change in spec_faults.quantised(path.read_bytes()):
            yield f"{path.name}: {name}", inside(path.name, edited(change))
    yield "shards swapped", exchanged(shards[0].name, shards[-1].name)


def split_faults(folder: Path) -> Iterator[tuple[str, Plant]]:
    parts = sorted(folder.glob("*.gguf"))
    for path in parts:
        for name, plant in [*gguf_header_faults(path)][:: max(1, len(parts))]:
            yield f"{path.name}: {name}", inside(path.name, plant)
        for info in gguf.read(path)[1]:
            at = info.offset + info.nbytes // 2
            change = edited(lambda data, at=at: flip(data, at, 6))
            yield f"{path.name}: {info.name}: a byte", inside(path.name, change)


def onnx_faults(folder: Path) -> Iterator[tuple[str, Plant]]:
    """Bytes of the weights, where they count; bits of the graph; a file too few or too many."""
    yield "a file more", inside("more", lambda path: path.write_text("more"))
    paths = [path for path in sorted(folder.iterdir()) if path.name != "SHA256SUMS"]
    each = max(4, 120 // len(paths))
    for path in paths:
        yield f"{path.name} missing", inside(path.name, Path.unlink)
        size = path.stat().st_size
        for n in range(each):
            at = min(int((n + 0.5) / each * size) | 1, size - 1)
            bit = n % 8
            yield (
                f"{path.name}: byte {at}",
                inside(path.name, edited(lambda d, at=at, b=bit: flip(d, at, b))),
            )


def bundle_faults(folder: Path) -> Iterator[tuple[str, Plant]]:
    """Of every file some bits, each word of what launches it, its absence; what is there beside."""
    paths = [one for one in sorted(folder.rglob("*")) if one.is_file() and one.name != "SHA256SUMS"]
    for path in paths:
        name, size = path.relative_to(folder).as_posix(), path.stat().st_size
        for n in range(4 if size else 0):
            at = int((n + 0.5) / 4 * size)
            change = edited(lambda data, at=at, n=n: flip(data, at, n))
            yield f"{name}: byte {at} of {size}", inside(name, change)
        yield f"{name} missing", inside(name, Path.unlink)
    launch = (folder / "serve").read_text()
    for word in dict.fromkeys(launch.split()):
        change = launch.replace(word, f"{word}x", 1)
        yield f"serve: {word}", inside("serve", lambda path, text=change: path.write_text(text))
    yield "serve is not executable", inside("serve", lambda path: path.chmod(0o644))
    yield "a linked folder more", inside("more", lambda path: path.symlink_to(path.parent.parent))
    yield "a file more", inside("more", lambda path: path.write_text("more"))
    large = sorted(paths, key=lambda path: path.stat().st_size)[-2:]

    def exchange(copy: Path) -> None:
        one, other = (copy / path.relative_to(folder) for path in large)
        one.rename(copy / "x")
        other.rename(one)
        (copy / "x").rename(other)
        reseal(copy)

    yield "its two largest files swapped", exchange


def engine_faults(folder: Path) -> Iterator[tuple[str, Plant]]:
    """TensorRT for RTX: bits of the engine, its settings."""
    for name, plant in json_faults(folder / "config.json"):
        yield name, inside("config.json", plant)
    for name in ("LICENSE", "model.engine"):
        yield f"{name} missing", inside(name, Path.unlink)
    change = edited(lambda data: flip(data, 100))
    yield "LICENSE: byte 100", inside("LICENSE", change)
    size = (folder / "model.engine").stat().st_size
    for n in range(40):
        at = int((n + 0.5) / 40 * size)
        change = edited(lambda data, at=at, n=n: flip(data, at, n % 8))
        yield f"model.engine: byte {at} of {size}", inside("model.engine", change)


def program_faults(path: Path) -> Iterator[tuple[str, Plant]]:
    """Bits all over a compiled program: its code, its constants, its tables."""
    size = path.stat().st_size
    for n in range(48):
        at = int((n + 0.5) / 48 * size)
        yield f"byte {at} of {size}", edited(lambda data, at=at, n=n: flip(data, at, n % 8))


KINDS = {
    "gguf": gguf_faults,
    "k-quant": gguf_faults,
    "split": split_faults,
    "irpa": irpa_faults,
    "ranks": irpa_faults,
    "trtllm-ckpt": folder_faults,
    "trtllm-quantised": folder_faults,
    **dict.fromkeys(QUANTISED, quantised_faults),
    "shortfin": bundle_faults,
    "triton": bundle_faults,
    "vllm-slurm": bundle_faults,
    "rayserve": bundle_faults,
    "rtx": engine_faults,
    "onnx": onnx_faults,
    "int8 onnx": onnx_faults,
    "openvino": onnx_faults,
    "torchpipe": onnx_faults,
    "vmfb": program_faults,
}

SHARD = {
    "model-00001-of-00002.safetensors": spec_faults.safetensors,
    "config.json": spec_faults.config_json,
}
FOLDER = {"rank0.safetensors": spec_faults.safetensors, "config.json": spec_faults.config_json}
EDITORS = {  # by kind, of a file of the artifact, or of the artifact itself
    "gguf": {"": spec_faults.gguf},
    "k-quant": {"": spec_faults.gguf},
    "irpa": {"": spec_faults.irpa},
    "ranks": {"": spec_faults.irpa},
    "trtllm-ckpt": FOLDER,
    "trtllm-quantised": FOLDER,
    **dict.fromkeys(QUANTISED, SHARD),
}
