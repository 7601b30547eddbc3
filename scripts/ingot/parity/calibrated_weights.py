"""The weights of a checkpoint that llm-compressor quantised, beside those of its source.

compressed-tensors says what each scale must be.  What a method changes by design is compared as far as it
goes: GPTQ keeps the scales and moves codes; smoothing, before GPTQ or as AWQ, moves scales out of norms
into the columns of what follows.  Whether the whole still answers as its source, a run of it says.
"""

from typing import Any

from ingot.base.refused import Refused
from ingot.model.checkpoint.safetensors import Tensor
from ingot.parity.quantised_weights import QuantisedComparison
from ingot.parity.values import WIDE, chunks, values

MOVED, SCALED = "codes moved", "columns scaled"
METHODS = {"w4a16_gptq": MOVED, "w8a8_gptq": SCALED, "w4a16_awq": SCALED}
STEPS = 8  # between a weight and the code that GPTQ chose: 3.2 at most in the demo
SAID = {  # what `limit` of a record says
    "": "compressed-tensors' own codes and scales, of the float32 weights or of the stored ones",
    MOVED: f"compressed-tensors' own scales; codes at most {STEPS} steps from the weights",
    SCALED: "names, dtypes and shapes; what is no matrix of a layer as it was, but for norms and biases",
}


def linear_names(model) -> set[str]:
    """The weights of the layers that transformers computes as linear ones."""
    import torch

    found = (name for name, one in model.named_modules() if isinstance(one, torch.nn.Linear))
    return {f"{name}.weight" for name in found}


class CalibratedComparison(QuantisedComparison):
    """Counts what was compared; refuses at the first tensor that is not what it should be."""

    def __init__(self, folder, scheme: str, sources: dict[str, Tensor], tied: bool, linear: set):
        super().__init__(folder, scheme, sources, tied)
        self.method, self.linear = METHODS.get(scheme, ""), linear
        self.moved = 0  # codes that are not the nearest
        inputs = self.scheme.input_activations
        fixed = inputs is not None and inputs.dynamic is not True
        self.compared_with = SAID[self.method]
        self.input = f"input_{'global_' if inputs and inputs.dynamic else ''}scale" if fixed else ""

    def is_linear(self, name: str) -> bool:
        # experts are one tensor in transformers, and one each in a checkpoint
        known = name in self.linear or ".experts." in name
        return known and super().is_linear(name)

    def run(self) -> dict[str, Any]:
        said = super().run()
        if self.method == MOVED and not self.moved:
            raise Refused(f"{self.path}: each code is the nearest, expected some that GPTQ moved")
        if self.method == SCALED:
            del said["largest_error"], said["mean_error"]
        return said | {"limit": self.compared_with}

    def as_it_was(self, tensor: Tensor) -> None:
        if self.method != SCALED or len(tensor.shape) != 1:
            super().as_it_was(tensor)
            return
        found = self.stored.tensors[tensor.name]
        self.left.discard(tensor.name)
        if tuple(found.shape) != tensor.shape or not bool(found.isfinite().all()):
            raise Refused(f"{self.path}: {tensor.name} is of another shape, or not finite")

    def quantised(self, name: str, tensor: Tensor) -> None:
        whole = self.scheme.weights.strategy == "tensor"
        self.extent = extent(tensor) if whole else None
        super().quantised(name, tensor)
        if not self.input:
            return
        whole = f"{tensor.name.removesuffix('weight')}{self.input}"
        scale = self.stored.tensors[whole].float()
        self.left.discard(whole)
        if scale.numel() != 1 or not 0 < float(scale) < float("inf"):
            raise Refused(f"{self.path}: {whole} is no finite number above 0, expected a scale")

    def hold_rows(self, stem: str, mine: dict[str, Any], weight, dtype, global_scale) -> None:
        import torch

        extent = self.extent and tuple(torch.tensor([one], dtype=dtype) for one in self.extent)
        wanted = self.expected(weight, dtype, global_scale, extent)
        codes = next(end for end in mine if not end.endswith("_scale"))
        self.hold(stem + codes, torch.zeros_like(mine[codes]), torch.zeros_like(wanted[codes]))
        for end, one in mine.items():
            if end == codes:
                continue
            if self.method == SCALED:
                one, wanted[end] = torch.zeros_like(one), torch.zeros_like(wanted[end])
            self.hold(stem + end, one, wanted[end])
        if self.method == MOVED:
            other = self.expected(weight.to(dtype), dtype, global_scale, extent)
            self._hold_near(stem + codes, mine, (wanted, other), weight)
        elif not self.method and not torch.equal(_bytes(mine[codes]), _bytes(wanted[codes])):
            # on a CPU llm-compressor rounds quotients to the dtype of the weights
            other = self.expected(weight.to(dtype), dtype, global_scale, extent)[codes]
            same = (_bytes(mine[codes]) == _bytes(other)) | (
                _bytes(mine[codes]) == _bytes(wanted[codes])
            )
            if not bool(same.all()):
                self.hold(stem + codes, mine[codes], other)

    def _hold_near(self, name: str, mine: dict[str, Any], nearest: tuple, weight) -> None:
        import torch

        scale = mine["weight_scale"].float()
        steps = scale.repeat_interleave(weight.shape[1] // scale.shape[1], 1)
        shape = {"weight_shape": torch.tensor(weight.shape)} if "weight_packed" in mine else {}
        back, *near = (self.stored.weight(one | shape) for one in (mine, *nearest))
        if not bool(((back - weight).abs() <= STEPS * steps).all()):
            raise Refused(
                f"{self.path}: {name} has codes further than {STEPS} steps from the weights, expected "
                "what GPTQ makes of them"
            )
        self.moved += int(((back != near[0]) & (back != near[1])).sum())


def extent(tensor: Tensor) -> tuple[float, float]:
    """The smallest and the largest weight of a whole tensor, and 0."""
    least = most = 0.0
    for first, last in chunks(tensor.shape, WIDE):
        rows = values(tensor, first, last)
        least, most = min(least, float(rows.min())), max(most, float(rows.max()))
    return least, most


def _bytes(tensor):
    import torch

    return tensor.contiguous().view(torch.uint8)
