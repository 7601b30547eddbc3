"""Damaged files for every reader of what comes from outside, and what may not come of them.

A reader may refuse a file (`Refused`), or take it when `wrong` finds nothing in what it read.
"""

import copy
import functools
import hashlib
import itertools
import json
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checkpoints
from ingot.base import digest
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.table import SIZES
from ingot.formats.gguf import file as gguf
from ingot.formats.gguf import metadata, vocabulary
from ingot.formats.gguf.kv import KV
from ingot.formats.iree import irpa
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import read_checkpoint, read_header
from ingot.model.config import read_config
from ingot.model.hub.client import BrokenTransferError, no_longer_than
from ingot.model.hub.listing import read_listing
from ingot.model.specs import specs_of
from ingot.store import gc
from ingot.store.records import Action, Store
from ingot.store.usage import usage

HANG = 5  # seconds
NASTY = [
    None, True, False, -1, 0, 1, 2, 33, 2**31, 2**32, 2**53, 2**63, 2**64, 10**400, 1.5, 1.0, -0.0,
    float("nan"), float("inf"), "", "x", "1", "\ud800", "\x1b[2J\n", "../x", "/etc/passwd", "a" * 4000,
    [], [[]], {}, {"": {}}, [0, 1], [1 << 40, 1 << 40], ["x", 1 << 33], [[0], 1 << 28],
]  # fmt: skip


@dataclass
class Outcome:
    """What came of the cases of one reader."""

    counts: Counter = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)  # foreign exceptions, hangs, wrong acceptances
    slowest: float = 0.0  # seconds


@dataclass(frozen=True)
class Reader:
    """One reader: the file it reads below a folder, how it does, and what it may not have taken."""

    damage: Callable[[random.Random, bytes], bytes]
    file: Callable[[Path], Path]
    read: Callable[[Path], Any]
    wrong: Callable[[Any, Path], str | None]


def run(reader: Reader, folder: Path, seed: int, cases: int, seconds: float = 1e9) -> Outcome:
    """Damage the file again and again, in `cases` ways or for `seconds`."""
    chance, place, found = random.Random(seed), reader.file(folder), Outcome()
    whole, until = place.read_bytes(), time.monotonic() + seconds
    for case in range(cases):
        if time.monotonic() > until:
            break
        place.write_bytes(reader.damage(chance, whole))
        start = time.monotonic()
        word, text = _outcome(reader, place)
        found.slowest = max(found.slowest, time.monotonic() - start)
        found.counts[word] += 1
        if word not in ("refused", "taken"):
            found.bad.append(f"case {case} of seed {seed}: {word}: {text}")
    place.write_bytes(whole)
    return found


def _outcome(reader: Reader, place: Path) -> tuple[str, str]:
    try:
        with no_longer_than(HANG):
            taken = reader.read(place)
            if fault := reader.wrong(taken, place):
                return "wrongly taken", fault
            return "taken", ""
    except Refused as refusal:
        odd = [c for c in str(refusal) if not c.isprintable()]
        return ("refused", "") if not odd else ("raw characters", repr(str(refusal)))
    except BrokenTransferError:
        return "hang", ""
    except Exception as error:  # that is what is looked for
        return "foreign exception", f"{type(error).__name__}: {str(error)[:200]}"


def binary(chance: random.Random, data: bytes, head: int = 1 << 14) -> bytes:
    """Bytes changed, numbers of a header set to a limit, parts left out, doubled, cut off."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(max(1, min(len(out), head)))
        kind = chance.randrange(7)
        if kind == 0:
            out[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            number = chance.choice((0, 1, 2, 7, 31, 33, 255, 2**31, 2**32 - 1))
            out[at : at + 4] = struct.pack("<I", number)
        elif kind == 2:
            number = chance.choice((0, 1, 3, len(out), len(out) + 1, 2**33, 2**63, 2**64 - 1))
            at -= at % 8
            out[at : at + 8] = struct.pack("<Q", number)
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            del out[at : at + chance.randrange(1, 64)]
        elif kind == 5:
            out[at:at] = out[at : at + chance.randrange(1, 64)]
        else:
            at = chance.randrange(len(out) or 1)
            out[at:at] = bytes(chance.randrange(1, 9))
    return bytes(out)


def spoiled(chance: random.Random, document: Any) -> Any:
    """`document` with a few of its values replaced, left out, or put where they do not belong."""
    out = copy.deepcopy(document)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        node = out
        while isinstance(node, dict | list) and node:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = chance.choice(keys[:50] + keys[-50:])
            if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.8:
                node = node[key]
                continue
            if chance.random() < 0.15:
                del node[key]
            elif isinstance(node, dict) and chance.random() < 0.1:
                node[chance.choice(("\x1b", "-1", "1e9", "../x", key))] = node.pop(key)
            else:
                node[key] = copy.deepcopy(chance.choice((*NASTY, node[key])))
            break
    return out


def json_text(chance: random.Random, data: bytes) -> bytes:
    """A JSON document spoiled in its values; now and then in its bytes, or nested without end."""
    luck = chance.random()
    if luck < 0.03:
        return b"[" * 200_000
    if luck < 0.06:
        return b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    if luck < 0.15:
        return binary(chance, data)
    if luck < 0.2:
        return data.replace(b"{", b'{"twice": 1, "twice": 2, ', 1)
    return json.dumps(spoiled(chance, json.loads(data))).encode()


def shard_text(chance: random.Random, data: bytes) -> bytes:
    """A shard whose header is spoiled, its data as they were."""
    (length,) = struct.unpack("<Q", data[:8])
    head = json_text(chance, data[8 : 8 + length])
    size = len(head) if chance.random() < 0.97 else chance.choice((0, 2**40, 2**63, 2**64 - 1))
    tail = data[8 + length :]
    tail = tail if chance.random() < 0.95 else tail[: chance.randrange(len(tail))]
    return struct.pack("<Q", size) + head + tail


# Each reader's file, and an independent look at what it took


def shard(folder: Path) -> Path:
    data = {f"blk.{n}.w": ("BF16", (2, n + 1), bytes(4 * (n + 1))) for n in range(4)}
    checkpoints.write_shard(folder / "model.safetensors", data)
    return folder / "model.safetensors"


def uncovered(tensors: dict, path: Path) -> str | None:
    size = path.stat().st_size
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    seen = [0] * (size - 8 - length)
    for tensor in tensors.values():
        if {*map(type, tensor.shape), type(tensor.offset)} - {int}:
            return f"{tensor} is not of whole numbers"
        for at in range(tensor.offset, tensor.offset + tensor.nbytes):
            seen[at - 8 - length] += 1
    return None if set(seen) <= {1} else "a byte of the data is in no tensor, or in two"


def indexed(folder: Path) -> Path:
    return checkpoints.llama31(folder / "c") / "model.safetensors.index.json"


def of_llama(name: str) -> Callable[[Path], Path]:
    def file(folder: Path) -> Path:
        return checkpoints.llama31(folder / "c") / name

    return file


def configured(path: Path) -> Any:
    config = read_config(path)
    return config, metadata.hyperparameters(config, "f16"), specs_of(config, "f16")


def packable(pairs: list[KV], _: Path) -> str | None:
    """Does a GGUF file take these pairs?  Numbers that are none are not refused by struct."""
    gguf.layout(pairs, [])
    odd = [kv for kv in pairs if isinstance(kv.value, float) and kv.value != kv.value]
    return f"{odd[0]} is no number" if odd else None


def config_wrong(taken: Any, path: Path) -> str | None:
    config, pairs, specs = taken
    if any(side <= 0 for spec in specs for side in spec.shape):
        return "a tensor of no size"
    if config.heads % config.kv_heads or not 0 < config.rms_eps < 1e30:
        return str(config)
    return packable(pairs, path)


def words(path: Path) -> list[KV]:
    checkpoint = Checkpoint([path.parent])
    return vocabulary.vocabulary(checkpoint, read_config(path.parent / "config.json"), "llama-bpe")


def sampling(path: Path) -> list[KV]:
    config = read_config(path.parent / "config.json")
    found = Checkpoint([path.parent]).optional_json(path.name, metadata.GENERATION)
    return metadata.general(config, "f16", "name", None, found)


def gguf_file(folder: Path) -> Path:
    pairs = [KV("general.name", "str", "m"), KV("n", "[i32]", [1, 2]), KV("t", "[str]", ["a", "b"])]
    kinds = [("a", gguf.TYPES["F16"], (4, 8)), ("b", gguf.TYPES["Q8_0"], (2, 64))]
    found = gguf.layout(pairs, kinds)
    (folder / "m.gguf").write_bytes(found.head.ljust(found.size, b"\1"))
    return folder / "m.gguf"


def irpa_file(folder: Path) -> Path:
    found = irpa.layout({"schema": "GGUF"}, [("a.b", "F16", (4, 8)), ("a.c", "F32", (3,))])
    data = bytearray(found.size)
    for offset, text in {0: found.head, **found.texts}.items():
        data[offset : offset + len(text)] = text
    (folder / "m.irpa").write_bytes(data)
    return folder / "m.irpa"


def outside(taken: Any, path: Path) -> str | None:
    tensors, size = taken[1], path.stat().st_size
    if len({tensor.name for tensor in tensors}) < len(tensors):
        return "a name that comes twice"
    spans = sorted((tensor.offset, tensor.offset + tensor.nbytes) for tensor in tensors)
    if any(end > size for _, end in spans):
        return "a tensor outside the file"
    if any(a[1] > b[0] for a, b in itertools.pairwise(spans)):
        return "tensors one over another"
    return None


def nothing(taken: Any, path: Path) -> None:
    return None


def listing_file(folder: Path) -> Path:
    files = {
        "config.json": {"size": 3, "git_sha1": "a" * 40},
        "model.safetensors": {"size": 1 << 33, "sha256": "b" * 64},
    }
    text = json.dumps({"hub": "org/name", "revision": "c" * 40, "files": files})
    (folder / "listing.json").write_text(text)
    return folder / "listing.json"


def listing_wrong(taken: Any, path: Path) -> str | None:
    for name, entry in taken["files"].items():
        inside = Path("/folder", name)
        if ".." in inside.parts or inside.parts[:2] != ("/", "folder") or not name.isprintable():
            return f"{name!r} leaves its folder"
        found = entry.get("sha256") or entry["git_sha1"]
        if len(found) not in (40, 64) or not set(found) <= set("0123456789abcdef"):
            return f"{found!r} is no hash"
    return None


def record_file(folder: Path) -> Path:
    store, made = Store(folder / "store"), folder / "made"
    (made / "deep").mkdir(parents=True)
    (made / "deep/m").write_text("weights")
    (made / "link").symlink_to("deep")
    store.prepare()
    output = {**store.take(made), "title": "made"}
    return store.record(Action("rule", "ab" * 32, {}, [output], {}, {})).path


def record_text(chance: random.Random, data: bytes) -> bytes:
    """A manifest spoiled in its values or its outputs', with the digest that it then has."""
    manifest = json.loads(data.partition(b"\n")[2])
    notes = manifest["annotations"]
    if chance.random() < 0.7:
        notes["ingot.outputs"] = json.dumps(spoiled(chance, json.loads(notes["ingot.outputs"])))
    else:
        manifest = spoiled(chance, manifest)
    text = json.dumps(manifest).encode()
    return f"sha256:{hashlib.sha256(text).hexdigest()}\n".encode() + text


def record_read(path: Path) -> Any:
    """Also what gc, du and the index make of it."""
    store = Store(path.parents[2])
    usage(store)
    gc.collect(store, 30, {}, True)
    store.reindex()
    found = store.read(path)
    if found is None:
        raise Refused("no record")
    return found


def record_wrong(taken: Any, path: Path) -> str | None:
    for output in taken.outputs:
        for entry in output.get("entries", ()):
            inside = Path("/folder", entry["path"])
            if ".." in inside.parts or inside.parts[:2] != ("/", "folder") or len(inside.parts) < 3:
                return f"{entry['path']!r} leaves its folder"
            if "digest" in entry and not digest.NAME.fullmatch(entry["digest"]):
                return f"{entry['digest']!r} is no digest"
    return None


def target_file(folder: Path) -> Path:
    (folder / "target").write_text("artifacts/demo_tp2.f16.mlir.verified.json")
    return folder / "target"


def target_text(chance: random.Random, _: bytes) -> bytes:
    """A target's name put together from right parts and odd ones, a few characters changed."""
    of = lambda *words: chance.choice(words)  # noqa: E731
    models = (
        "demo",
        "llama405b",
        "llama2-7b-chat",
        "demo",
        "demo2",
        "DEMO",
        "",
        "../demo",
        "a" * 9000,
    )
    name = of("artifacts/", "artifacts/", "artifacts/", "artifacts//", "/artifacts/", "") + of(
        *models
    )
    name += of(
        "", "", "_tp1", "_tp2", "_tp8", "_tp08", "_tp-1", "_tp\u0662", "_tp" + "9" * 5000, "_tp3"
    )
    name += of(
        "", "", ".f16", ".bf16", ".q8_0", ".q4_k_m", ".fp8", ".gfx942", ".sm90", ".f16.gfx942", ".x"
    )
    name += "." + of("gguf", "irpa", "mlir", "vmfb", "shortfin", "trtllm-ckpt", "trtllm", "triton",
                     "onnx", "openvino", "torchpipe", "rtx", "vllm-slurm", "rayserve", "kuberay",
                     "config.json", "hf",
                     "hf/config.json", "hf/..", "hf/a\nb", "")  # fmt: skip
    name += of("", "", "", ".verified.json", "/", "/..", "\n")
    for _ in range(of(0, 0, 0, 1, 2)):
        at = chance.randrange(len(name) + 1)
        odd = of("", "\n", "\x1b", "..", "/", "\u0661", "{x}", " ", "_", name[:at])
        name = name[:at] + odd + name[at + of(0, 1) :]
    return name.encode()


@functools.cache
def catalogue() -> dict:
    root = Path(__file__).resolve().parents[2]
    found = schema.read(root / schema.FILE)
    schema.complete(found, root)
    return found


def target_read(path: Path) -> str:
    name = path.read_text()
    targets.check(name, catalogue())
    return name


def target_wrong(name: str, _: Path) -> str | None:
    parts = name.split("/")
    if not re.fullmatch(r"[A-Za-z0-9._/-]+", name) or parts[0] != "artifacts" or ".." in parts:
        return f"{name!r} is no name"
    size = re.search(r"_tp([0-9]+)", parts[1])
    entry = catalogue()["models"][re.split(r"[._]", parts[1])[0]]
    legal = (
        SIZES if re.search("trtllm|triton", name) else (1, *entry["tp"])
    )  # TensorRT's sizes are its own
    if size and int(size[1]) not in legal:
        return f"{name!r} is of a size that the catalogue does not have"
    return None


READERS = {
    "safetensors": Reader(shard_text, shard, read_header, uncovered),
    "safetensors bytes": Reader(binary, shard, read_header, uncovered),
    "index": Reader(json_text, indexed, lambda p: read_checkpoint(Checkpoint([p.parent])), nothing),
    "config": Reader(json_text, of_llama("config.json"), configured, config_wrong),
    "tokenizer": Reader(json_text, of_llama("tokenizer.json"), words, packable),
    "tokenizer_config": Reader(json_text, of_llama("tokenizer_config.json"), words, packable),
    "generation_config": Reader(json_text, of_llama("generation_config.json"), sampling, packable),
    "listing": Reader(json_text, listing_file, read_listing, listing_wrong),
    "record": Reader(record_text, record_file, record_read, record_wrong),
    "GGUF": Reader(binary, gguf_file, gguf.read, outside),
    "IRPA": Reader(binary, irpa_file, irpa.read, outside),
    "target name": Reader(target_text, target_file, target_read, target_wrong),
}
