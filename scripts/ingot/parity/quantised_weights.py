"""Codes and scales of a quantised checkpoint, compared with what compressed-tensors makes of the weights.

That library computes what each must be, of float32 weights; Ingot's own writer is not asked.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.values import WIDE, chunks, values

PRESETS = {
    "fp8": "FP8_DYNAMIC", "fp8_block": "FP8_BLOCK", "w8a8": "W8A8", "w4a16": "W4A16",
    "mxfp4": "MXFP4A16", "nvfp4": "NVFP4A16",
    "fp8_static": "FP8", "w8a8_gptq": "W8A8", "w4a16_gptq": "W4A16", "w4a16_awq": "W4A16",
    "nvfp4_a4": "NVFP4",
}  # fmt: skip
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
# matrices that stay as they are: embeddings, heads, routers, and the parts for images of a model that sees
WHOLE = re.compile(
    r"(.*\.)?(embed_tokens|lm_head|mlp\.gate(\..*)?|block_sparse_moe\.gate|shared_expert_gate)\.weight"
    r"|(.*\.)?(vision_tower|multi_modal_projector)\..*|.*\.router\..*"
)
KEYS = {  # of quantization_config
    "config_groups", "format", "ignore", "kv_cache_scheme", "quant_method", "quantization_status",
    "version",
}  # fmt: skip
# in files of old, what transformers reads no more
UNREAD = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
JOINED = (
    ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)  # fmt: skip
SCALE = "weight_scale"
SIDE = 128  # of a block; chunks of rows are whole ones


class Folder:
    """The tensors of a folder of safetensors, by the library of that name."""

    def __init__(self, path: Path):
        from safetensors import safe_open

        self.path = path
        self.files, self.shards = {}, {}  # by tensor
        for shard in sorted(path.glob("*.safetensors")):
            with _read(shard):
                file = safe_open(shard, "pt")
                names = list(file.keys())
            if twice := {*names} & {*self.files}:
                raise Refused(f"{path}: {min(twice)} is in two shards, expected it once")
            self.files |= dict.fromkeys(names, file)
            self.shards |= dict.fromkeys(names, shard.name)

    def __getitem__(self, name: str):
        if name not in self.files:
            raise Refused(f"{self.path}: has no tensor {name}, expected it")
        with _read(self.path / self.shards[name]):
            return self.files[name].get_tensor(name)


@contextmanager
def _read(path: Path) -> Iterator[None]:
    """What the library cannot read ends in one line."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, ValueError, RuntimeError, TypeError) as error:
        words = " ".join(str(error).split())
        raise Refused(f"{path}: the safetensors library cannot read it: {words:.150}") from None


class Stored:
    """The layers of a folder that are stored by a scheme, as compressed-tensors reads them."""

    def __init__(self, folder: Path, scheme):
        self.tensors, self.scheme = Folder(folder), scheme
        self.format = format_of(scheme)

    def stems(self) -> list[str]:
        """What the names of each layer's tensors begin with."""
        scales = (name for name in self.tensors.files if name.endswith(SCALE))
        return [name.removesuffix(SCALE) for name in scales]

    def parts(self, stem: str) -> dict[str, Any]:
        """The tensors that stand for a layer's weight, by the ends of their names."""
        ends = self.compressor.compression_param_names(self.scheme)
        return {end: self.tensors[stem + end] for end in ends if not end.startswith("input_")}

    def weight(self, parts: dict[str, Any]):
        """What they stand for, in float32."""
        import torch

        wide = {
            end: one.float() if one.dtype in (torch.bfloat16, torch.float16) else one
            for end, one in parts.items()
        }
        return self.compressor.decompress(wide, self.scheme)["weight"].float()

    @property
    def compressor(self):
        from compressed_tensors.compressors import BaseCompressor

        return BaseCompressor.get_value_from_registry(self.format)


class QuantisedComparison:
    """Counts what was compared; refuses at the first tensor that is not what it should be."""

    compared_with = "compressed-tensors' codes and scales of the checkpoint, byte by byte"

    def __init__(self, folder: Path, scheme: str, sources: dict[str, Tensor], tied: bool):
        from compressed_tensors.quantization import preset_name_to_scheme

        self.path, self.scheme = folder, preset_name_to_scheme(PRESETS[scheme], ["Linear"])
        self.stored = Stored(folder, self.scheme)
        unread = UNREAD + (("lm_head.weight",) if tied else ())
        self.sources = {
            name: tensor for name, tensor in sources.items() if not name.endswith(unread)
        }
        self.errors: list[float] = []  # the root mean square over that of the weights, per tensor
        self.left = {*self.stored.tensors.files}
        self.kept = self.values = 0

    def run(self) -> dict[str, Any]:
        """What a record says."""
        for name, tensor in self.sources.items():
            if self.is_linear(name):
                self.quantised(name, tensor)
            else:
                self.as_it_was(tensor)
        if not self.errors:
            raise Refused(f"{self.path}: no layer is quantised, expected its linear ones")
        if self.left:
            raise Refused(f"{self.path}: {min(self.left)} is no tensor of its source")
        return {
            "layers_quantised": len(self.errors),
            "values": self.values,
            "tensors_equal": self.kept,
            "limit": "compressed-tensors' own codes and scales of the float32 weights",
            "largest_error": float(f"{max(self.errors):.4g}"),
            "mean_error": float(f"{sum(self.errors) / len(self.errors):.4g}"),
        }

    def is_linear(self, name: str) -> bool:
        matrix = len(self.sources[name].shape) == 2 and name.endswith(".weight")
        return matrix and not WHOLE.fullmatch(name)

    def kept_whole(self) -> set[str]:
        """The layers whose matrices are as they were."""
        return {
            tensor.name.removesuffix(".weight")
            for name, tensor in self.sources.items()
            if name.endswith(".weight") and len(tensor.shape) > 1 and not self.is_linear(name)
        }

    def as_it_was(self, tensor: Tensor) -> None:
        import torch

        found = self.stored.tensors[tensor.name]
        self.left.discard(tensor.name)
        dtype = getattr(torch, DTYPES[getattr(tensor, "stored", tensor.dtype)])
        same = found.dtype == dtype and tuple(found.shape) == tensor.shape
        for first, last in chunks(tensor.shape, WIDE) if same and tensor.shape else ():
            wanted = torch.from_numpy(values(tensor, first, last))
            same = same and torch.equal(found[first:last].float().reshape(wanted.shape), wanted)
        if not same:
            raise Refused(f"{self.path}: {tensor.name} is not the checkpoint's")
        self.kept += 1

    def quantised(self, name: str, tensor: Tensor) -> None:
        import torch

        stem = tensor.name.removesuffix("weight")
        parts = self.stored.parts(stem)
        self.left -= {stem + end for end in parts}
        shape, of_all = tensor.shape, {"weight_shape", "weight_global_scale"}
        dtype = getattr(torch, DTYPES[getattr(tensor, "stored", tensor.dtype)])
        global_scale = self._global_scale(name, dtype) if "weight_global_scale" in parts else None
        known = {"weight_shape": torch.tensor(shape), "weight_global_scale": global_scale}
        for end in of_all & {*parts}:
            self.hold(stem + end, parts[end], known[end])
        off = total = 0.0
        for first, last in _chunks(shape):
            weight = torch.from_numpy(values(tensor, first, last))
            mine = {}
            for end, one in parts.items():
                rows = partial(_rows, one, shape[0], first, last)
                mine[end] = one if end in of_all else rows()
            own = {end: one for end, one in mine.items() if end not in of_all}
            self.hold_rows(stem, own, weight, dtype, global_scale)
            if "weight_shape" in mine:
                mine["weight_shape"] = torch.tensor(weight.shape)
            back = self.stored.weight(mine)
            off += float(((back - weight).double() ** 2).sum())
            total += float((weight.double() ** 2).sum())
        self.errors.append((off / total) ** 0.5 if total else 0.0)
        self.values += shape[0] * shape[1]

    def hold_rows(self, stem: str, mine: dict[str, Any], weight, dtype, global_scale) -> None:
        """Refuse codes and scales that are not the library's of rows of a weight, float32."""
        wanted = self.expected(weight, dtype, global_scale)
        for end, one in mine.items():
            self.hold(stem + end, one, wanted[end])

    def expected(self, weight, dtype, global_scale, extent=None) -> dict[str, Any]:
        """What rows of a weight become by the library, their scales rounded to `dtype`.

        `extent`: the smallest and the largest weight of all that share one scale, where those are more.
        """
        from compressed_tensors.quantization.utils import calculate_qparams

        args = self.scheme.weights
        exponents = "uint8" in str(args.scale_dtype)  # which no dtype of the checkpoint rounds
        least, most = extent or _ranges(weight if exponents else weight.to(dtype), args)
        scale, _ = calculate_qparams(least, most, args, global_scale)
        said = {"weight": weight, "weight_scale": scale.to(weight.dtype)}
        if global_scale is not None:
            said["weight_global_scale"] = global_scale
        found = self.stored.compressor.compress(said, self.scheme)
        wide = found["weight_scale"]
        return found | {"weight_scale": wide.to(dtype) if wide.dtype.itemsize == 4 else wide}

    def _global_scale(self, name: str, dtype):
        """NVFP4's scale of all layers that a server joins with this one."""
        import torch
        from compressed_tensors.quantization.utils import generate_gparam

        before, _, last = name.removesuffix(".weight").rpartition(".")
        joined = next((names for names in JOINED if last in names), (last,))
        names = [f"{before}.{one}.weight" for one in joined]
        largest = 0.0
        for one in names if {*names} <= {*self.sources} else [name]:
            tensor = self.sources[one]
            for first, last_row in chunks(tensor.shape, WIDE):
                largest = max(largest, float(abs(values(tensor, first, last_row)).max()))
        most = torch.tensor(largest, dtype=dtype)
        return generate_gparam(-most, most)

    def hold(self, name: str, found, wanted) -> None:
        import torch

        if found.dtype != wanted.dtype or found.shape != wanted.shape:
            raise Refused(
                f"{self.path}: {name} is {found.dtype} {list(found.shape)}, expected {wanted.dtype} "
                f"{list(wanted.shape)}"
            )
        a, b = (one.contiguous().view(torch.uint8) for one in (found, wanted))
        if not torch.equal(a, b):
            raise Refused(
                f"{self.path}: {name} is not what compressed-tensors makes of the weights: "
                f"{int((a != b).sum())} of {a.numel()} bytes differ"
            )


def format_of(scheme) -> str:
    """By the library."""
    import torch
    from compressed_tensors.compressors.format import infer_module_format

    return infer_module_format(torch.nn.Linear, scheme).value


def _rows(part, rows: int, first: int, last: int):
    """Those of a part that stand for rows of the weight: of a block's scales one for its 128."""
    if part.shape[0] == rows:
        return part[first:last]
    if part.numel() == 1:
        return part
    return part[first // SIDE : -(-last // SIDE)]


def _chunks(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    size = next(chunks(shape, WIDE))[1]
    step = max(size // SIDE, 1) * SIDE
    for first in range(0, shape[0], step):
        yield first, min(first + step, shape[0])


def _ranges(weight, args):
    """The smallest and the largest of each group that shares a scale."""
    import torch

    rows, columns = weight.shape
    if args.strategy == "channel":
        groups = weight[:, None]
    elif args.strategy == "block":
        down, across = -rows % SIDE, -columns % SIDE
        whole = torch.nn.functional.pad(weight, (0, across, 0, down))
        parts = whole.reshape(whole.shape[0] // SIDE, SIDE, whole.shape[1] // SIDE, SIDE)
        groups = parts.transpose(1, 2).flatten(2)
    else:
        groups = weight.reshape(rows, -1, args.group_size)
    return groups.amin(-1), groups.amax(-1)


def _said(value):
    """A part of a scheme, without how it was made, and without the dtype of zero points: it has none."""
    from compressed_tensors.quantization import QuantizationArgs

    if not isinstance(value, QuantizationArgs):
        return value
    return value.model_dump(exclude={"observer", "observer_kwargs", "zp_dtype"})


def read_scheme(path: Path, said: Any) -> tuple[Any, Any]:
    """A `quantization_config` by compressed-tensors, and its one group's scheme."""
    from compressed_tensors.quantization import QuantizationConfig

    try:
        asked = QuantizationConfig.model_validate(said)
        (group,) = asked.config_groups.values()
        format_of(group)
    except Exception as error:  # the library's own, of several kinds
        words = " ".join(str(error).split())
        raise Refused(
            f"{path}: compressed-tensors refuses quantization_config: {words:.200}"
        ) from None
    return asked, group


def hold_config(folder: Path, scheme: str, source: Path, kept: set[str]) -> None:
    """Refuse a config.json that is not the source's, or says another scheme.

    `kept` are the layers left whole.
    """
    from compressed_tensors.quantization import preset_name_to_scheme

    path = folder / "config.json"
    said = read_json(path)
    found, wanted_said = said.pop("quantization_config", None), read_json(source)
    wanted_said.pop("quantization_config", None)  # null or empty, or it had been refused
    if said != wanted_said:
        raise Refused(f"{path}: not its source's, but for quantization_config, expected that")
    asked, group = read_scheme(path, found)
    wanted = preset_name_to_scheme(PRESETS[scheme], ["Linear"])
    wanted.format = format_of(wanted)
    usual = {"quant_method": "compressed-tensors", "kv_cache_scheme": None}
    if odd := {*found} - KEYS | {key for key, one in usual.items() if found.get(key, one) != one}:
        raise Refused(f"{path}: quantization_config says {min(odd)}, expected none or the usual")
    for part in ("weights", "input_activations", "output_activations", "targets", "format"):
        mine, its = (_said(getattr(one, part)) for one in (group, wanted))
        if mine != its:
            raise Refused(
                f"{path}: quantization_config says {part} {mine!s:.150}, expected {its!s:.150}"
            )
    if (asked.format, asked.quantization_status) != (wanted.format, "compressed"):
        raise Refused(
            f"{path}: quantization_config says format {asked.format} {asked.quantization_status}, "
            f"expected {wanted.format} compressed"
        )
    for name in {*kept, "lm_head"}:
        if not any(_ignored(name, one) for one in asked.ignore):
            raise Refused(f"{path}: ignore names no {name}, expected all layers left whole")
    for one in asked.ignore:
        if not any(_ignored(name, one) for name in {*kept, "lm_head"}):
            raise Refused(f"{path}: ignore names {one}, which is not left whole")


def _ignored(name: str, said: str) -> bool:
    """By a name, or an expression that it begins with."""
    if said.startswith("re:"):
        return bool(re.match(said.removeprefix("re:"), name))
    return name == said
