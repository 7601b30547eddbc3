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


def is_quantised(config: Path) -> bool:
    return bool(read_json(config).get(KEY))


def load(folder: Path):
    """The model, and whether it rounds activations, too.

    Refused where a tensor is missing or one too many.
    """
    _, scheme = read_scheme(folder / CONFIG, read_json(folder / CONFIG).get(KEY))
    stored = Stored(folder, scheme)
    if any(".experts." in stem for stem in stored.stems()):
        with multiplied_out(stored, folder) as checkpoint:
            return transformers_model.load(checkpoint), False
    return _by_library(folder, len(stored.stems()), bool(scheme.input_activations))


def _by_library(folder: Path, quantised: int, activations: bool):
    import torch
    from transformers import AutoConfig, CompressedTensorsConfig

    # it multiplies codes of four bits out in bfloat16, but where all are before anything is computed
    whole = {} if activations else {KEY: CompressedTensorsConfig(dequantize=True)}
    with transformers_model.understood(folder / CONFIG):
        config = AutoConfig.from_pretrained(folder, **transformers_model.OURS)
        model, found = transformers_model.kind_of(config).from_pretrained(
            folder,
            dtype=torch.float32,
            output_loading_info=True,
            use_safetensors=True,
            **whole,
            **transformers_model.OURS,
        )
    transformers_model.hold_whole(folder, found)
    count = sum(hasattr(one, "quantization_scheme") for one in model.modules())
    if activations and count != quantised:
        raise Refused(
            f"{folder / CONFIG}: compressed-tensors quantises {count} layers, expected {quantised}"
        )
    return model.eval(), activations


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
