"""Faults by editors that know a format's specification and nothing of ours: no reader, no writer, no table.

GGUF: github.com/ggml-org/ggml/docs/gguf.md.  IRPA: iree/schemas/parameter_archive.h.  safetensors:
github.com/huggingface/safetensors.  JSON: RFC 8259.  Each yields (name, edit); edit(bytearray) changes a
file's bytes.  Some change nothing that a reader reads: whoever plants them has to show that.
"""

import itertools
import json
import re
import struct
from collections.abc import Callable, Iterator

Edit = Callable[[bytearray], None]
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes, by GGUF type
U32, I32, STRING, ARRAY = 4, 5, 8, 9
ALIGN = 32  # of GGUF's tensors, where general.alignment says nothing


def number(at: int, form: str, value: int) -> Edit:
    return lambda data: struct.pack_into(
        f"<{form}", data, at, value % (1 << 8 * struct.calcsize(form))
    )


def longer(data: bytearray) -> None:
    data += b"\1" * 32


def shorter(count: int) -> Edit:
    def cut(data: bytearray) -> None:
        del data[-count:]

    return cut


# GGUF


class Parsed:
    """Where each pair and each tensor's description lies in a GGUF file."""

    def __init__(self, data: bytes):
        self.tensors, self.pairs = struct.unpack_from("<QQ", data, 8)
        self.spans, self.infos, at = [], [], 24
        for _ in range(self.pairs):
            begin, at = at, self._string(data, at)
            (kind,) = struct.unpack_from("<I", data, at)
            value, at = at + 4, self._value(data, at + 4, kind)
            size = struct.unpack_from("<Q", data, begin)[0]
            self.spans.append((begin, value, at, kind, data[begin + 8 : begin + 8 + size].decode()))
        for _ in range(self.tensors):
            begin, at = at, self._string(data, at)
            (dims,) = struct.unpack_from("<I", data, at)
            self.infos.append((begin, at, dims))  # its name, its number of dimensions
            at += 4 + 8 * dims + 4 + 8
        self.end = at
        self.data = -(-at // ALIGN) * ALIGN

    def _string(self, data: bytes, at: int) -> int:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]

    def _value(self, data: bytes, at: int, kind: int) -> int:
        if kind == STRING:
            return self._string(data, at)
        if kind != ARRAY:
            return at + SIZES[kind]
        item, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count if item == STRING else 0):
            at = self._string(data, at)
        return at if item == STRING else at + count * SIZES[item]


def with_pair(pair: Callable[[bytes, Parsed], bytes]) -> Edit:
    """One pair more, behind the others; the tensors' data move to where they are aligned again."""

    def edit(data: bytearray) -> None:
        found = Parsed(bytes(data))
        more, last = pair(bytes(data), found), found.spans[-1][2]
        head = bytes(data[:last]) + more + bytes(data[last : found.end])
        head = head.ljust(-(-len(head) // ALIGN) * ALIGN, b"\0")
        data[:] = head + data[found.data :]
        struct.pack_into("<Q", data, 16, found.pairs + 1)

    return edit


def pair_of(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def gguf(data: bytes) -> Iterator[tuple[str, Edit]]:
    found = Parsed(data)
    yield "magic", lambda data: data.__setitem__(0, ord("g"))
    for version in (0, 1, 2, 4, 3 << 24):
        yield f"version {version}", number(4, "I", version)
    for name, at, count in (("tensors", 8, found.tensors), ("pairs", 16, found.pairs)):
        for value in (0, count - 1, count + 1, 1 << 40, (1 << 64) - 1):
            yield f"number of {name} {value}", number(at, "Q", value)
    for begin, value, end, kind, key in found.spans:
        if kind == U32:
            yield f"{key}: an i32", number(value - 4, "I", I32)
        yield f"{key}: of type 13", number(value - 4, "I", 13)
        yield f"{key}: its name ends late", number(begin, "Q", 1 << 60)
        if kind == STRING:
            yield f"{key}: ends beyond the file", number(value, "Q", len(data))
            yield f"{key}: one letter shorter", number(value, "Q", end - value - 9)
        if kind == ARRAY:
            yield (
                f"{key}: one item less",
                number(value + 4, "Q", struct.unpack_from("<Q", data, value + 4)[0] - 1),
            )
            yield f"{key}: 2^60 items", number(value + 4, "Q", 1 << 60)
    for key in ("general.architecture", "llama.block_count", "tokenizer.ggml.tokens"):
        begin, _, end, _, _ = next(one for one in found.spans if one[4] == key)
        yield f"{key} twice", with_pair(lambda data, _, at=(begin, end): data[slice(*at)])
    yield (
        "an alignment of 64 said",
        with_pair(lambda *_: pair_of("general.alignment", U32, struct.pack("<I", 64))),
    )
    yield (
        "an alignment of 0 said",
        with_pair(lambda *_: pair_of("general.alignment", U32, struct.pack("<I", 0))),
    )
    for key, kind, value in (
        ("llama.expert_count", U32, struct.pack("<I", 8)),
        ("llama.rope.scaling.factor", 6, struct.pack("<f", 4.0)),
        ("llama.attention.sliding_window", U32, struct.pack("<I", 16)),
        ("tokenizer.ggml.add_space_prefix", 7, b"\1"),
    ):
        yield f"{key} said too", with_pair(lambda *_, pair=(key, kind, value): pair_of(*pair))
    (one, _, _), (other, *_) = found.infos[0], found.infos[1]
    for n in (0, len(found.infos) // 2, len(found.infos) - 1):
        begin, at, dims = found.infos[n]
        kind, offset = at + 4 + 8 * dims, at + 8 + 8 * dims
        yield f"tensor {n}: renamed", lambda data, at=begin + 8: data.__setitem__(at, data[at] ^ 1)
        yield f"tensor {n}: {dims + 1} dimensions", number(at, "I", dims + 1)
        yield f"tensor {n}: no dimension", number(at, "I", 0)
        yield f"tensor {n}: 2^62 columns", number(at + 4, "Q", 1 << 62)
        yield (
            f"tensor {n}: a column less",
            number(at + 4, "Q", struct.unpack_from("<Q", data, at + 4)[0] - 1),
        )
        for type_ in (0, 1, 30, 4, 99):
            if type_ != struct.unpack_from("<I", data, kind)[0]:
                yield f"tensor {n}: of type {type_}", number(kind, "I", type_)
        was = struct.unpack_from("<Q", data, offset)[0]
        for value in (was + 1, was + ALIGN, len(data), (1 << 64) - ALIGN):
            yield f"tensor {n}: at {value}", number(offset, "Q", value)
    yield "tensor 1 called as tensor 0", lambda data: renamed(data, one, other)
    if found.data > found.end:
        yield "a byte between header and data", lambda data: data.__setitem__(found.end, 1)
    yield "bytes behind the end", longer
    yield "a byte less", shorter(1)
    yield "cut in the middle", shorter(len(data) // 2)
    yield "cut in the header", lambda data: data.__delitem__(slice(found.end // 2, None))
    tokens = next(one for one in found.spans if one[4] == "tokenizer.ggml.tokens")
    yield "a token that is no UTF-8", lambda data: data.__setitem__(tokens[1] + 12 + 8, 0xFF)


def renamed(data: bytearray, one: int, other: int) -> None:
    """The name at `other` becomes that at `one`; what lies behind moves."""
    size, old = (struct.unpack_from("<Q", data, at)[0] for at in (one, other))
    name = bytes(data[one : one + 8 + size])
    found = Parsed(bytes(data))
    head = bytes(data[:other]) + name + bytes(data[other + 8 + old : found.end])
    data[:] = head.ljust(-(-len(head) // ALIGN) * ALIGN, b"\0") + data[found.data :]


# IRPA


def irpa(data: bytes) -> Iterator[tuple[str, Edit]]:
    fields = {  # of the header: offset, form, values
        "magic": (0, "I", [0x41505249 ^ 1]), "major version": (4, "H", [1, 0xFFFF]),
        "minor version": (6, "H", [1, 7]), "header size": (8, "Q", [0, 64, 87, 96, 1 << 60]),
        "next header": (16, "Q", [88, 4096, len(data), 1 << 60]), "flags": (24, "Q", [1, 1 << 63]),
        "number of entries": (32, "Q", None), "entries at": (40, "Q", None),
        "bytes of entries": (48, "Q", None), "metadata at": (56, "Q", None),
        "bytes of metadata": (64, "Q", None), "storage at": (72, "Q", None),
        "bytes of storage": (80, "Q", None),
    }  # fmt: skip
    for name, (at, form, values) in fields.items():
        was = struct.unpack_from(f"<{form}", data, at)[0]
        for value in values or (0, was - 1, was + 1, was + 64, 1 << 60):
            if value != was:
                yield f"{name} {value}", number(at, form, value)
    count, table = struct.unpack_from("<QQ", data, 32)
    metadata = struct.unpack_from("<Q", data, 56)[0]
    starts, at = [], table
    for _ in range(count):
        starts.append(at)
        at = table + -(-(at - table + struct.unpack_from("<Q", data, at)[0]) // 16) * 16
    for n in sorted({0, count // 2, count - 1}):
        at = starts[n]
        words = {
            "size": (0, "Q"), "type": (8, "I"), "flags": (12, "Q"), "name at": (20, "Q"),
            "letters of its name": (28, "Q"), "metadata at": (36, "Q"), "bytes of metadata": (44, "Q"),
            "alignment": (52, "Q"), "stored at": (60, "Q"), "bytes": (68, "Q"),
        }  # fmt: skip
        for name, (place, form) in words.items():
            was = struct.unpack_from(f"<{form}", data, at + place)[0]
            for value in (was + 1, was + 64, 0, 1 << 60):
                if value != was and not (name == "type" and value > 99):
                    yield f"entry {n}: {name} {value}", number(at + place, form, value)
        where, size = struct.unpack_from("<QQ", data, at + 20)
        yield (
            f"entry {n}: renamed",
            lambda data, at=metadata + where: data.__setitem__(at, data[at] ^ 1),
        )
        if size > 4:
            yield (
                f"entry {n}: no UTF-8",
                lambda data, at=metadata + where: data.__setitem__(at, 0xFF),
            )
        where, size = struct.unpack_from("<QQ", data, at + 36)
        for word, other in (
            (b'"Tensor"', b'"Censor"'),
            (b"float", b"bloat"),
            (b"true", b"fals"),
            (b"[", b"{"),
        ):
            place = data.find(word, metadata + where, metadata + where + size)
            if place >= 0:
                yield f"entry {n}: its metadata say {other!r}", overwritten(place, other)
    yield "a byte of padding", lambda data: data.__setitem__(90, 1)
    yield "bytes behind the end", longer
    yield "a byte less", shorter(1)
    yield "a page less", shorter(4096)
    yield (
        "an entry twice",
        lambda data: overwritten(starts[0], bytes(data[starts[-1] : starts[-1] + 76]))(data),
    )
    for word, other in (
        (b"PrimitiveTensor", b"QuantizedTensor"), (b'"GGUF"', b'"gguf"'),
        (b'"shard_count": 2', b'"shard_count": 4'),
        (b'"shard_dim": 1', b'"shard_dim": 0'), (b"[0, 1]", b"[1, 0]"), (b"[0, 1]", b"[1, 1]"),
        (b"SplitPrimitiveTensor", b"ReplicatedTensor\0\0\0\0"), (b"false", b"true "), (b'"": "', b'" ": '),
        (b'"llama"', b'"Llama"'),
    ):  # fmt: skip
        if (place := data.find(word)) >= 0:
            yield f"{word!r} is {other!r}", overwritten(place, other)


def overwritten(at: int, by: bytes) -> Edit:
    def edit(data: bytearray) -> None:
        data[at : at + len(by)] = by

    return edit


# safetensors, JSON


def safetensors(data: bytes) -> Iterator[tuple[str, Edit]]:
    (length,) = struct.unpack_from("<Q", data, 0)
    header = json.loads(data[8 : 8 + length])
    names = [name for name in header if name != "__metadata__"]
    first, second = names[0], names[1]

    def headed(change: Callable[[dict], object], spelt: Callable[[dict], str] = json.dumps) -> Edit:
        """Another header; the data move behind it."""

        def edit(data: bytearray) -> None:
            said = json.loads(data[8 : 8 + length])
            change(said)
            text = spelt(said).encode()
            text = text.ljust(-(-len(text) // 8) * 8)
            data[: 8 + length] = struct.pack("<Q", len(text)) + text

        return edit

    for value in (0, length - 1, length + 8, len(data), 1 << 60, (1 << 64) - 1):
        yield f"header of {value} bytes", number(0, "Q", value)
    yield "spelt with blanks", headed(lambda said: None, lambda said: json.dumps(said, indent=1))
    yield (
        "names in another order",
        headed(
            lambda said: None, lambda said: json.dumps(dict(sorted(said.items(), reverse=True)))
        ),
    )
    yield (
        "a name twice, the second another's",
        headed(
            lambda said: None,
            lambda said: (
                json.dumps(said)[:-1] + f", {json.dumps(first)}: {json.dumps(said[second])}" + "}"
            ),
        ),
    )
    yield "metadata more", headed(lambda said: said.update(__metadata__={"format": "pt"}))
    yield (
        "a tensor more, of no bytes",
        headed(
            lambda said: said.update(more={"dtype": "F16", "shape": [0], "data_offsets": [0, 0]})
        ),
    )
    yield "a tensor more, over another's bytes", headed(lambda said: said.update(more=said[first]))
    yield "a tensor less", headed(lambda said: said.pop(first))
    wrong = {
        "dtype": ["BF16", "f16", "F8_E4M3"], "shape": [[1.0], []], "data_offsets": [[0, 1], [-2, 0], "0"],
    }  # fmt: skip
    for key, value in ((key, value) for key, values in wrong.items() for value in values):
        yield (
            f"{key} {value}",
            headed(lambda said, key=key, value=value: said[first].__setitem__(key, value)),
        )
    yield "two tensors' places exchanged", headed(exchanged(first, second))
    yield "bytes behind the end", longer
    yield "a byte less", shorter(1)


def quantised(data: bytes) -> Iterator[tuple[str, Edit]]:
    """Of each kind of tensor of compressed-tensors: the first that is there, changed."""
    (length,) = struct.unpack_from("<Q", data, 0)
    header = json.loads(data[8 : 8 + length])
    places = {
        name: tuple(8 + length + at for at in said["data_offsets"])
        for name, said in header.items()
        if name != "__metadata__"
    }

    def turned(begin: int, end: int) -> Edit:
        """Each byte in its neighbour's place: of scales that of the group beside it."""

        def edit(data: bytearray) -> None:
            data[begin:end] = data[end - 2 : end] + data[begin : end - 2]

        return edit

    def one_more(at: int) -> Edit:
        def edit(data: bytearray) -> None:
            data[at] = (data[at] + 1) % 256

        return edit

    def zeros(begin: int, end: int) -> Edit:
        def edit(data: bytearray) -> None:
            data[begin:end] = bytes(end - begin)

        return edit

    scales = [name for name in places if name.endswith("weight_scale")]
    for one, other in itertools.pairwise(scales):
        a, b = places[one], places[other]
        if a[1] - a[0] == b[1] - b[0]:
            yield f"{one}: exchanged with {other}", swapped_bytes(a, b)
    for end in ("weight_scale", "weight_global_scale", "weight", "weight_packed", "weight_shape"):
        name = next((one for one in places if one.endswith(f"_proj.{end}")), None)
        if name is None:
            continue
        begin, last = places[name]
        yield f"{name}: moved by a group", turned(begin, last)
        yield f"{name}: its first is one more", one_more(begin)
        yield f"{name}: its last is one more", one_more(last - 1)
        yield f"{name}: zeros", zeros(begin, last)


def swapped_bytes(one: tuple[int, int], other: tuple[int, int]) -> Edit:
    def edit(data: bytearray) -> None:
        a, b = data[slice(*one)], data[slice(*other)]
        data[slice(*one)], data[slice(*other)] = b, a

    return edit


def exchanged(one: str, other: str) -> Callable[[dict], None]:
    def change(said: dict) -> None:
        key = "data_offsets"
        said[one][key], said[other][key] = said[other][key], said[one][key]

    return change


def config_json(data: bytes) -> Iterator[tuple[str, Edit]]:
    """Spellings and contradictions of a JSON object."""
    text = data.decode()

    def spelt(change: Callable[[str], str]) -> Edit:
        def edit(data: bytearray) -> None:
            data[:] = change(text).encode()

        return edit

    yield "a byte order mark", spelt(lambda text: f"\ufeff{text}")
    yield "a comma too many", spelt(lambda text: text.rstrip()[:-1].rstrip() + ",}")
    yield "text behind it", spelt(lambda text: text + "{}")
    yield "a comment", spelt(lambda text: "// a comment\n" + text)
    yield "in one line", spelt(lambda text: json.dumps(json.loads(text)))
    yield "UTF-16", lambda data: data.__setitem__(slice(None), text.encode("utf-16"))
    yield "cut", spelt(lambda text: text[: len(text) // 2])
    yield "a list", spelt(lambda text: f"[{text}]")
    for name, value in json.loads(text).items():
        if isinstance(value, bool | str | int | float):
            other = {bool: not value, str: "other"}.get(type(value), 7)
            twice = f", {json.dumps(name)}: {json.dumps(other)}" + "}"
            yield (
                f"{name} twice, the second another",
                spelt(lambda text, t=twice: text.rstrip()[:-1] + t),
            )
        if type(value) in (int, float):
            for word in (
                "NaN",
                "Infinity",
                "1e999",
                "-1",
                f'"{value}"',
                "true",
                f"{value}00",
                "null",
                "[1]",
            ):
                yield (
                    f"{name} is {word}",
                    spelt(
                        lambda text, n=name, w=word: re.sub(
                            rf'("{n}": )[^,\n}}]+', rf"\g<1>{w}", text, count=1
                        )
                    ),
                )
