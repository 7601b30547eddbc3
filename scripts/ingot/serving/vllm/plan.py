"""What a server of vLLM is given: layout over nodes, length, KV cache, memory, time; or why it cannot be.

tp is the tensor parallel size, pp the number of pipeline stages.  tp ranks share a node, stages lie on
nodes of their own, unless the catalogue's `nodes` says otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import Any

from ingot.base.refused import Refused
from ingot.model import features, gpu_layout
from ingot.model.config import ModelConfig
from ingot.model.gpu_layout import GIB, VLLM, GpuLayout, Shape
from ingot.serving.vllm import schemes
from ingot.serving.vllm.arguments import name_of, stop_on_wrong
from ingot.serving.vllm.kv_cache import KvCache

CAN = features.ALL  # the checkpoint goes as it is
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
BLOCK = {"cpu": 128, "gpu": 16}  # tokens of a KV block: vLLM's own defaults
JOINED = {"cpu": 16, "gpu": 64}  # of latent attention: what its kernels take
BATCHED = {
    "cpu": 2048,
    "gpu": 8192,
}  # tokens computed at once, of a rank on CPUs: its own defaults, too
BATCHED_NAME = "max-num-batched-tokens"
CPU_CACHE = GIB  # bytes per rank, where the catalogue names none
PER_GPU_CPUS, HOST_GB = 8, 16  # cores and GB of a node for each GPU, beside what is read
CPU_RANK_GB = 5  # of a rank on CPUs, beside weights and cache: 1.5 resident, 3 while it is loaded
# of weights on CPUs, nearly: as they were loaded, and as oneDNN reads them.  Of 2.36, 3.58 and 0.01 GiB
# with 1 GiB of cache vLLM 0.32.0 held 7.1, 9.2 and 2.4 GiB, after an answer too (AVX-512, no AMX).
CPU_COPIES = 2
SHM_PER_RANK = 512 << 20  # bytes; two ranks of the demo took 420 MB each
MOST_STAGES = 16


@dataclass(frozen=True)
class Plan:
    """Sizes in bytes, of one rank unless said otherwise."""

    tp: int
    pp: int
    nodes: int
    device: str  # cpu or gpu
    dtype: str
    max_model_len: int  # tokens
    weights: int
    cache: KvCache | None  # None: no layer keeps keys and values
    kv_bytes: int
    kv_exact: bool  # the server is told so many bytes, instead of the memory that it may fill
    memory: int  # of a GPU; 0: a CPU
    batched: int  # tokens computed at once
    executor: str = "mp"  # or ray: what starts the ranks
    scheme: str = ""  # of quantised weights

    @property
    def rough(self) -> str:
        """The dtype whose rounding its answers may differ by: kernels of a scheme round as they like."""
        return "bfloat16" if self.scheme else self.dtype

    @property
    def ranks_per_node(self) -> int:
        return self.tp * self.pp // self.nodes

    @property
    def kv_tokens(self) -> int:
        """What the server's own line says."""
        return self.cache.tokens(self.kv_bytes, self.max_model_len) if self.cache else 0

    @property
    def kv_needed(self) -> int:
        """Bytes that one request of the longest length takes."""
        return self.cache.bytes(self.max_model_len) if self.cache else 0


def planned(
    config: ModelConfig | Shape,
    settings: dict[str, Any],
    tp: int,
    dtype: str,
    key: str,
    beside: int = 0,
    scheme: str = "",
) -> Plan:
    """By the catalogue's `vllm` table, with `memory` in GiB of a GPU (0: CPUs); `key` names it in refusals.

    `beside` the weights a rank keeps so many bytes of adapters; `scheme` is that of quantised weights.

    Refused: a layout that the model's heads do not allow, stages that no number of nodes holds, a context
    that does not fit, with the longest that does.
    """
    stop_on_wrong(settings["arguments"], f"{key}.arguments")
    executor = settings.get("executor", "mp")
    if executor == "ray" and not settings["memory"]:
        raise Refused(f"{key}.executor: ray, expected mp: on CPUs vLLM does not take Ray")
    length = settings.get("max_model_len", config.context)
    if length > config.context:
        raise Refused(
            f"{key}.max_model_len: {length}, expected at most {config.context}, the model's context"
        )
    memory = int(settings["memory"] * GIB)
    kv_bytes = settings.get("kv_cache_bytes") or (0 if memory else CPU_CACHE)
    stages = [settings["pp"]] if "pp" in settings else range(1, MOST_STAGES + 1)
    best, packed = None, 0.0
    if scheme and (reason := schemes.not_in(dtype, scheme, "gpu" if memory else "cpu")):
        raise Refused(f"{key}.dtype: {reason}")
    if scheme and isinstance(config, ModelConfig):
        packed = schemes.per_weight(config, scheme)
        if reason := schemes.cut_group(config, scheme, tp):
            raise Refused(f"{key}: {reason}")
    for pp in stages:
        asked = (memory or 1 << 60, length, ITEMSIZE[dtype])
        if isinstance(config, Shape):
            found = gpu_layout.of_shape(config, tp, pp, *asked)
        else:
            found = gpu_layout.gpu_layout(config, tp, pp, VLLM, *asked, per_weight=packed)
        if found.wrong:
            if best is None:
                raise Refused(f"{key}: {found.wrong}, expected another tensor parallel size or pp")
            break
        room = int(memory * gpu_layout.UTILIZATION) - found.weights - beside - gpu_layout.REST
        fits = not memory or kv_bytes <= room
        held = kv_bytes if kv_bytes and fits else max(0, room)
        device = "gpu" if memory else "cpu"
        # on CPUs, and with Ray's executor, the next batch is not scheduled while one is computed
        batches = pp + (bool(memory) and executor != "ray")
        batched = batched_of(settings["arguments"]) or BATCHED[device] * (1 if memory else tp * pp)
        cache = cache_of(config, found, device, batches * batched)
        best = Plan(
            tp, pp, settings.get("nodes", pp), device, dtype, length, found.weights, cache, held,
            bool(kv_bytes), memory, batched, executor, scheme,
        )  # fmt: skip
        if fits and best.kv_needed <= held:
            return _placed(best, key)
        if kv_bytes and fits:
            break  # more stages would only make up for a cache that was asked for too small
    raise Refused(_too_long(best, key))


def shape_of(reading: dict[str, Any], weights: int) -> Shape:
    """What lies on GPUs of a model of `weights` bytes, by transformers' reading of its config.json."""
    same = ("context", "layers", "heads", "kv_heads", "head_dim", "latent")
    window = reading.get("window") or 0
    return Shape(
        **{name: reading[name] for name in same},
        cached=reading["attention_layers"],
        states=reading["state_layers"],
        sliding=reading["sliding_layers"] if window else 0,
        window=window,
        weights=weights,
    )


def layouts(shape: Shape, memory: int, context: int) -> Iterator[GpuLayout]:
    """Every layout that is looked at, legal or not, on GPUs of `memory` bytes, in requests of `context`."""
    for tp, pp in product(gpu_layout.SIZES, gpu_layout.STAGES):
        found = gpu_layout.of_shape(shape, tp, pp, memory, context)
        cache = None if found.wrong else cache_of(shape, found, "gpu", (pp + 1) * BATCHED["gpu"])
        if cache:
            room = max(0, int(memory * gpu_layout.UTILIZATION - found.weights - gpu_layout.REST))
            tokens = cache.tokens(room, context)
            found = replace(found, tokens=tokens, fits=cache.bytes(context) <= room)
        yield found


def batched_of(words: list[str]) -> int:
    """Tokens computed at once, where the catalogue's arguments say it; else 0."""
    for word, value in zip(words, [*words[1:], ""], strict=False):
        if word.startswith("--") and name_of(word) == BATCHED_NAME:
            said = word.partition("=")[2] or value
            return int(said) if said.isdecimal() else 0
    return 0


def cache_of(
    config: ModelConfig | Shape, found: GpuLayout, device: str, at_once: int
) -> KvCache | None:
    """Of the model laid out so."""
    block = (JOINED if config.latent else BLOCK)[device]
    if isinstance(config, Shape):
        layers, sliding, window = config.cached, config.sliding, config.window
        states = config.states
    else:
        layers, window, states = config.layers, config.window or 0, 0
        sliding = layers if window else 0
        if config.sliding:
            window, sliding = config.sliding.window, len(config.with_window)
    if not layers:
        return None
    each = found.kv_per_token // ceil(layers / found.pp)
    return KvCache(layers, sliding, window, each, block, found.pp, at_once, states)


def _placed(plan: Plan, key: str) -> Plan:
    if plan.tp * plan.pp % plan.nodes:
        raise Refused(f"{key}.nodes: {plan.nodes}, expected a divisor of {plan.tp * plan.pp} ranks")
    return plan


def _too_long(plan: Plan, key: str) -> str:
    where = (
        f"{plan.tp} x {plan.pp} GPUs of {plan.memory / GIB:g} GiB"
        if plan.memory
        else "the KV cache"
    )
    longest = plan.cache.longest(plan.kv_bytes) if plan.cache else 0
    remedy = f"the longest that fits is {longest}" if longest else "the weights alone do not fit"
    return (
        f"{key}: {plan.max_model_len} tokens do not fit into {where} at pp {plan.pp}; {remedy}: set "
        "max_model_len, kv_cache_bytes or pp"
    )


def arguments(plan: Plan, model: str, settings: dict[str, Any]) -> list[str]:
    """vLLM's, but for what only a running job knows: addresses, ports, ranks of nodes."""
    found = {
        "served-model-name": model,
        "dtype": plan.dtype,
        "max-model-len": plan.max_model_len,
        "tensor-parallel-size": plan.tp,
        "pipeline-parallel-size": plan.pp,
        "block-size": plan.cache.block if plan.cache else BLOCK[plan.device],
    }
    if plan.kv_exact:
        found["kv-cache-memory-bytes"] = plan.kv_bytes
    else:
        found["gpu-memory-utilization"] = gpu_layout.UTILIZATION
    if plan.cache and plan.cache.sliding and not batched_of(settings["arguments"]):
        # what a window's layers keep depends on it, and vLLM's default on the GPU's name
        found[BATCHED_NAME] = plan.batched
    if "max_num_seqs" in settings:
        found["max-num-seqs"] = settings["max_num_seqs"]
    words = [word for name, value in found.items() for word in (f"--{name}", str(value))]
    if plan.tp * plan.pp > 1:
        words += ["--distributed-executor-backend", plan.executor]
    if plan.device == "cpu":
        words.append("--enforce-eager")
    return words + list(settings["arguments"])


def environment(plan: Plan) -> dict[str, str]:
    """What vLLM reads of its environment."""
    if plan.device == "gpu" or plan.ranks_per_node == 1:
        return {}
    # on one NUMA node it binds no two ranks by itself; one alone it does, and unbound that was 2 to 30
    # times slower: its threads wait for one another
    return {"VLLM_CPU_OMP_THREADS_BIND": "|".join(["nobind"] * plan.ranks_per_node)}


def asked(plan: Plan, weights: int, read_mb_s: float) -> dict[str, str | int]:
    """The head of serve.sbatch: what a job of this plan asks of each node."""
    ranks = plan.ranks_per_node
    if plan.device == "gpu":
        cores, memory = PER_GPU_CPUS * ranks, HOST_GB * ranks + ceil(weights / plan.nodes / 1e9 / 4)
    else:
        held = CPU_COPIES * plan.weights + plan.kv_bytes
        cores, memory = 2 * ranks, ceil(ranks * (CPU_RANK_GB + held / 1e9))
    found: dict[str, str | int] = {
        "nodes": plan.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": cores,
        "mem": f"{memory}G",
        "time": hours(8 * 3600 + 2 * weights / read_mb_s / 1e6),
    }
    return found | ({"gpus-per-node": ranks} if plan.device == "gpu" else {})


def hours(seconds: float) -> str:
    """SLURM's word for a time, in whole quarters of an hour."""
    minutes = ceil(seconds / 900) * 15
    return f"{minutes // 60}:{minutes % 60:02d}:00"
