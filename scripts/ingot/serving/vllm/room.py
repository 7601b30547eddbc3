"""Whether vLLM serves a model on some devices: weights and cache of a rank, the longest request."""

from dataclasses import dataclass

from ingot.model import gpu_layout
from ingot.model.config import ModelConfig
from ingot.model.gpu_layout import REST, UTILIZATION, VLLM, Shape
from ingot.serving.vllm import plan, schemes

CPU_REST = 1_500_000_000  # bytes of a rank on CPUs beside weights and cache
BATCHES = 2  # in flight, of one stage


@dataclass(frozen=True)
class Room:
    """Bytes of one rank."""

    weights: int  # as they are held
    cache: int  # that the requests may fill
    rest: int  # what else it takes
    longest: int  # tokens of a request, that many at once; at most the model's context


def room(
    config: ModelConfig | Shape, tp: int, memory: int, context: int, requests: int, scheme: str = "",
    cpu: bool = False,
) -> Room | str:  # fmt: skip
    """On `tp` devices of `memory` bytes, `requests` of `context` tokens at once; or why it cannot be."""
    packed = 0.0
    if scheme and isinstance(config, ModelConfig):
        packed = schemes.per_weight(config, scheme)
        if reason := schemes.cut_group(config, scheme, tp):
            return reason
    if isinstance(config, Shape):
        found = gpu_layout.of_shape(config, tp, 1, memory, context)
    else:
        found = gpu_layout.gpu_layout(config, tp, 1, VLLM, memory, context, per_weight=packed)
    if found.wrong:
        return found.wrong
    device, rest = ("cpu", CPU_REST) if cpu else ("gpu", REST)
    weights = found.weights * (plan.CPU_COPIES if cpu else 1)
    free = max(0, int(memory * UTILIZATION) - weights - rest)
    cache = plan.cache_of(config, found, device, BATCHES * plan.BATCHED[device])
    if cache is None:
        return Room(weights, 0, rest, config.context)
    longest = min(cache.longest(free // requests), config.context)
    return Room(weights, cache.bytes(context) * requests, rest, longest)
