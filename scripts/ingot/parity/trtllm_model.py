"""A quantised TensorRT-LLM checkpoint in transformers: its weights multiplied out, its inputs rounded.

TensorRT-LLM itself needs a GPU.  What its kernels do with each linear layer is done in float32 instead:
activations are multiplied by prequant_scaling_factor, divided by activation_scaling_factor where the
format has one, rounded to float8 or int8, and met by the stored weights.  Runs in envs/transformers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingot.base.refused import Refused
from ingot.formats.tensorrt.checkpoint import LINEAR, TrtllmCheckpoint
from ingot.parity import transformers_model
from ingot.parity.trtllm_weights import rows_of

FULL = {"F8_E4M3": 448.0, "I8": 127.0}  # the largest step of an activation


@dataclass(frozen=True)
class Weight:
    """One tensor of the source, its values multiplied out of the checkpoint's."""

    name: str  # in the source
    layer: str  # in the ranks
    ranks: list[int]  # in the order of the input channels; one where each rank has them all
    values: np.ndarray  # float32, of the source's shape


def logits_of(
    config: Path, built: TrtllmCheckpoint, weights: Iterable[Weight]
) -> Callable[[list[int]], np.ndarray]:
    """logits(ids), float32 [len(ids), vocabulary]; `config` is the source's config.json."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with transformers_model.understood(config):
        found = AutoConfig.from_pretrained(config)
        model = AutoModelForCausalLM.from_config(found, dtype=torch.float32).eval()
    state = model.state_dict()
    for weight in weights:
        module = model.get_submodule(weight.name.rpartition(".")[0])
        if weight.name not in state:
            continue  # a further copy, on other ranks
        with torch.no_grad():
            state.pop(weight.name).copy_(torch.from_numpy(weight.values))
        if weight.layer.endswith(LINEAR):
            module.register_forward_pre_hook(rounding(built, weight))
    if left := [name for name in state if name != "lm_head.weight"]:
        raise Refused(f"{built.folder}: {left[0]} is in no rank, expected it")

    def logits(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()

    return logits


def rounding(built: TrtllmCheckpoint, weight: Weight):
    """What becomes of a linear layer's input before the product."""
    import torch

    def factors(name: str) -> torch.Tensor:
        """Of each input channel, float32."""
        found = []
        for rank in weight.ranks:
            tensors = built.ranks[rank]
            inputs = tensors[f"{weight.layer}.weight"].shape[1]
            factor = tensors[f"{weight.layer}.{name}"]
            values = rows_of(factor, 0, factor.shape[0]).reshape(-1)
            found.append(np.broadcast_to(values, inputs))
        return torch.from_numpy(np.concatenate(found))

    scales = built.quant.scales
    if "activation_scaling_factor" not in scales:
        return lambda module, args: None
    smooth = factors("prequant_scaling_factor") if "prequant_scaling_factor" in scales else 1
    step, full = factors("activation_scaling_factor"), FULL[built.quant.dtype]

    def rounded(module, args):
        steps = (args[0] * smooth / step).clamp(-full, full)
        float8 = built.quant.dtype == "F8_E4M3"
        steps = steps.to(torch.float8_e4m3fn).float() if float8 else steps.round()
        return (steps * step / smooth, *args[1:])

    return rounded
