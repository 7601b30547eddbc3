"""A quantised checkpoint in transformers, by compressed-tensors, as its users load it; in float32.

Experts are one tensor in transformers, where compressed-tensors finds none: then the weights that its
codes stand for are loaded instead, and no activation is rounded.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import transformers_model
from ingot.parity.quantised_weights import Stored, read_scheme

CONFIG, KEY = "config.json", "quantization_config"
INPUT = "input_global_scale"  # of NVFP4: by which what a layer is given is rounded


def is_quantised(config: Path) -> bool:
    """By compressed-tensors; others transformers multiplies out by itself, where there is no GPU."""
    said = read_json(config).get(KEY)
    return bool(said) and said.get("quant_method") not in ("mxfp4", "fp8")


def load(folder: Path):
    """The model, and whether it rounds activations, too.

    Refused where a tensor is missing or one too many.
    """
    _, scheme = read_scheme(folder / CONFIG, read_json(folder / CONFIG).get(KEY))
    stored = Stored(folder, scheme)
    if any(".experts." in stem for stem in stored.stems()):
        with multiplied_out(stored, folder) as checkpoint:
            return transformers_model.load(checkpoint), False
    if INPUT in {name.rpartition(".")[2] for name in stored.tensors.files}:
        return _rounding_inputs(folder, scheme, stored), True
    return _by_library(folder, len(stored.stems()), bool(scheme.input_activations))


def _by_library(folder: Path, quantised: int, activations: bool):
    from transformers import CompressedTensorsConfig

    # it multiplies codes of four bits out in bfloat16, but where all are before anything is computed
    whole = {} if activations else {KEY: CompressedTensorsConfig(dequantize=True)}
    model, found = _loaded(folder, whole)
    transformers_model.hold_whole(folder, found)
    count = sum(hasattr(one, "quantization_scheme") for one in model.modules())
    if activations and count != quantised:
        raise Refused(
            f"{folder / CONFIG}: compressed-tensors quantises {count} layers, expected {quantised}"
        )
    return model.eval(), activations


def _loaded(folder: Path, more: dict) -> tuple:
    import torch
    from transformers import AutoConfig

    with transformers_model.understood(folder / CONFIG):
        config = AutoConfig.from_pretrained(folder, **transformers_model.OURS)
        model, found = transformers_model.kind_of(config).from_pretrained(
            folder,
            dtype=torch.float32,
            output_loading_info=True,
            use_safetensors=True,
            **more,
            **transformers_model.OURS,
        )
    return model, found


def _rounding_inputs(folder: Path, scheme, stored: Stored):
    """Codes of four bits multiplied out, and what each layer is given rounded by its stored scale."""
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from transformers import CompressedTensorsConfig

    model, found = _loaded(folder, {KEY: CompressedTensorsConfig(dequantize=True)})
    left = {name for name in found["unexpected_keys"] if not name.endswith(f".{INPUT}")}
    transformers_model.hold_whole(folder, {**found, "unexpected_keys": left})
    inputs = scheme.model_copy(update={"weights": None})
    said = read_json(folder / CONFIG)[KEY]
    asked = QuantizationConfig(
        config_groups={"inputs": inputs}, ignore=said["ignore"], quantization_status="frozen"
    )
    apply_quantization_config(model, asked)
    rounded = [name for name, one in model.named_modules() if hasattr(one, INPUT)]
    if {f"{name}." for name in rounded} != {*stored.stems()}:
        raise Refused(
            f"{folder / CONFIG}: compressed-tensors quantises {len(rounded)} layers, expected "
            f"{len(stored.stems())}"
        )
    for name in rounded:
        model.get_submodule(name).input_global_scale.data.copy_(stored.tensors[f"{name}.{INPUT}"])
    return model.eval()


@contextmanager
def multiplied_out(stored: Stored, folder: Path) -> Iterator[Checkpoint]:
    """The checkpoint that a folder's codes and scales stand for, in float32, beside it."""
    from safetensors.torch import save_file

    said = read_json(folder / CONFIG)
    del said[KEY]
    tensors, left = {}, {*stored.tensors.files}
    for stem in stored.stems():
        parts = stored.parts(stem)
        tensors[f"{stem}weight"] = stored.weight(parts).contiguous()
        left -= {stem + end for end in parts}
    inputs = ("input_scale", INPUT)  # which nothing is rounded by here
    left = {name for name in left if not name.endswith(inputs)}
    tensors |= {name: stored.tensors[name].float() for name in left}
    with tempfile.TemporaryDirectory(
        prefix=".", dir=folder.absolute().parent, ignore_cleanup_errors=True
    ) as place:
        save_file(tensors, Path(place, "model.safetensors"), {"format": "pt"})
        tensors.clear()
        Path(place, CONFIG).write_text(json.dumps(said))
        yield Checkpoint([Path(place)])


def logits_of(model) -> Callable[[list[int]], np.ndarray]:
    """logits(ids) are float32 [len(ids), vocabulary]."""
    import torch

    def logits(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().numpy()

    return logits
