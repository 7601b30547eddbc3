"""A checkpoint in MLX, as mlx-lm loads it; and what MLX itself makes of the source's weights.

Ingot's own writer is not asked: names and layers are of mlx-lm's classes, codes of mlx.core.quantize.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.adapted import Adapted, sources
from ingot.parity.values import values

GROUP = 64
DTYPES = ("bfloat16", "float16", "float32")
# in files of old, what transformers reads no more
UNREAD = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
SAID = ("quantization", "quantization_config")


@contextmanager
def understood(folder: Path) -> Iterator[None]:
    """What mlx-lm cannot load ends in one line, of its own words."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Refused | MemoryError):
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise Refused(
            f"{folder}: mlx-lm cannot load it ({words:.200}), expected a model that it runs"
        ) from None


def load(folder: Path):
    """The model, computed in float32: in bfloat16 its codes take ten times as long on a CPU."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    with understood(folder):
        model, _ = load_model(folder, lazy=True)
        model.set_dtype(mx.float32)
        return model


def logits_of(model) -> Callable[[list[int]], np.ndarray]:
    """logits(ids) are float32 [len(ids), vocabulary]."""
    import mlx.core as mx

    return lambda ids: np.array(model(mx.array([ids]))[0].astype(mx.float32))


class MlxComparison:
    """A folder's tensors against those that mlx-lm and mlx make of a checkpoint."""

    def __init__(self, folder: Path, checkpoint: Checkpoint, bits: int):
        import mlx.core as mx

        mx.set_default_device(mx.cpu)
        self.folder, self.bits, self.checkpoint = folder, bits, checkpoint
        self.errors: list[float] = []
        self.found: dict[str, Any] = {}
        self.shards: dict[str, str] = {}
        with understood(folder):
            for path in sorted(folder.glob("*.safetensors")):
                held = mx.load(str(path))
                if twice := {*held} & {*self.found}:
                    raise Refused(f"{folder}: {min(twice)} is in two shards, expected it once")
                self.found |= held
                self.shards |= dict.fromkeys(held, path.name)

    def run(self) -> dict[str, Any]:
        """What a record says."""
        import mlx.core as mx

        model, modules = self._expected()
        tensors = sources(self.checkpoint)
        tied = read_json(self.folder / "config.json").get("tie_word_embeddings")
        unread = UNREAD + (("lm_head.weight",) if tied else ())
        tensors = {name: one for name, one in tensors.items() if not name.endswith(unread)}
        with understood(self.folder):
            plain = self._arrays(tensors)
            if hasattr(model, "sanitize"):
                plain = model.sanitize(plain)
        left, kept, dtype = {*self.found}, 0, self._dtype()
        for name, array in plain.items():
            stem = name.removesuffix("weight")
            wanted = array.astype(getattr(mx, dtype)) if dtype else array
            parts = {name: wanted}
            if bits := modules.get(stem.rstrip(".")):
                codes = mx.quantize(wanted, group_size=GROUP, bits=bits)
                parts = dict(
                    zip((f"{stem}weight", f"{stem}scales", f"{stem}biases"), codes, strict=True)
                )
                back = mx.dequantize(*codes, group_size=GROUP, bits=bits)
                self.errors.append(_error(wanted, back))
            else:
                kept += 1
            for one, its in parts.items():
                self._hold(one, its)
            left -= {*parts}
        if left:
            raise Refused(f"{self.folder}: {min(left)} is no tensor that mlx-lm reads")
        errors = self.errors or [0.0]
        return {
            "layers_quantised": len(self.errors),
            "tensors_equal": kept,
            "limit": "mlx's own codes, scales and biases",
            "largest_error": float(f"{max(errors):.4g}"),
            "mean_error": float(f"{sum(errors) / len(errors):.4g}"),
        }

    def _expected(self) -> tuple[Any, dict[str, int]]:
        """A model of mlx-lm's class, without weights, and the bits of its layers that are quantised."""
        from mlx_lm.utils import _get_classes, quantize_model

        said = read_json(self.folder / "config.json")
        source = read_json(self.checkpoint["config.json"])
        source |= self._others(source)
        for key in {*said, *source} - {*SAID}:
            if said.get(key, "missing") != source.get(key, "missing"):
                raise Refused(
                    f"{self.folder / 'config.json'}: {key} is {said.get(key)!s:.60}, expected "
                    f"{source.get(key)!s:.60} as of the checkpoint"
                )
        bare = {key: value for key, value in said.items() if key not in SAID}
        with understood(self.folder):
            kind, args = _get_classes(bare)
            model = kind(args.from_dict(bare))
            if not self.bits:
                wanted: dict[str, Any] = {}
                modules = {}
            else:
                coded = kind(args.from_dict(bare))
                coded, config = quantize_model(coded, bare, GROUP, self.bits)
                wanted = config["quantization"]
                modules = {name: one.bits for name, one in coded.named_modules() if "scales" in one}
        for key in SAID:
            if (said.get(key) or {}) != wanted:
                raise Refused(
                    f"{self.folder / 'config.json'}: {key} is {said.get(key)!s:.150}, expected "
                    f"{wanted!s:.150} as of mlx-lm"
                )
        return model, modules

    def _others(self, source: dict[str, Any]) -> dict[str, Any]:
        """What config.json says besides the checkpoint's.

        By generation_config.json; and by older names what newer ones say, or what is the default, since
        mlx-lm's classes read no other.
        """
        found: dict[str, Any] = {}
        path = self.folder / "generation_config.json"
        if path.exists() and (ends := read_json(path).get("eos_token_id")):
            found["eos_token_id"] = ends
        said = _by_transformers(self.checkpoint["config.json"])
        if "tie_word_embeddings" not in source:
            found["tie_word_embeddings"] = said.tie_word_embeddings
        if "rope_theta" in source:
            return found
        both = source.get("rope_parameters") or {}
        mine, local = both.get("full_attention", both), both.get("sliding_attention") or {}
        known = said.rope_parameters
        found["rope_theta"] = known.get("full_attention", known)["rope_theta"]
        if mine.get("rope_type", "default") != "default":
            found["rope_scaling"] = {key: one for key, one in mine.items() if key != "rope_theta"}
        if "rope_theta" in local:
            found["rope_local_base_freq"] = local["rope_theta"]
        return found

    def _dtype(self) -> str | None:
        """What mlx-lm's converter casts all to; None: nothing is cast."""
        word = read_json(self.checkpoint["config.json"]).get("torch_dtype")
        return word if word in DTYPES else None

    def _arrays(self, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """The checkpoint's by mlx's own reader; what an adapter changes by our verifiers'."""
        import mlx.core as mx

        files: dict[Path, dict] = {}
        found = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, Adapted):
                found[name] = mx.array(values(tensor, 0, tensor.shape[0]).reshape(tensor.shape))
                continue
            if tensor.path not in files:
                files[tensor.path] = mx.load(str(tensor.path))
            found[name] = files[tensor.path][tensor.name]
        return found

    def _hold(self, name: str, wanted) -> None:
        import mlx.core as mx

        if name not in self.found:
            raise Refused(f"{self.folder}: has no tensor {name}, expected it")
        found = self.found[name]
        if found.dtype != wanted.dtype or found.shape != wanted.shape:
            raise Refused(
                f"{self.folder}: {name} is {found.dtype} {list(found.shape)}, expected {wanted.dtype} "
                f"{list(wanted.shape)}"
            )
        if not mx.array_equal(found.view(mx.uint8), wanted.view(mx.uint8)):
            raise Refused(f"{self.folder}: {name} is not what mlx makes of the checkpoint")


def _by_transformers(config: Path):
    """config.json, what it leaves out filled in."""
    from transformers import AutoConfig

    with understood(config):
        return AutoConfig.from_pretrained(config, trust_remote_code=False).get_text_config()


def _error(wanted, back) -> float:
    """The root mean square of the difference over that of the weights."""
    import mlx.core as mx

    a, b = wanted.astype(mx.float32), back.astype(mx.float32)
    off, total = ((a - b) ** 2).sum(), (a**2).sum()
    return float((off / total) ** 0.5) if float(total) else 0.0
