"""What a server of vLLM is given: layout over nodes, length, KV cache, memory, time; or why it cannot be.

tp is the tensor parallel size, pp the number of pipeline stages.  tp ranks share a node, stages lie on
nodes of their own, unless the catalogue's `nodes` says otherwise.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

from ingot.base.refused import Refused
from ingot.model import features, gpu_layout
from ingot.model.config import ModelConfig
from ingot.model.gpu_layout import GIB, VLLM, Shape
from ingot.serving.vllm.arguments import stop_on_wrong

CAN = features.ALL  # the checkpoint goes as it is
ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
BLOCK = {"cpu": 128, "gpu": 16}  # tokens of a KV block: vLLM's own defaults
CPU_CACHE = GIB  # bytes per rank, where the catalogue names none
PER_GPU_CPUS, HOST_GB = 8, 16  # cores and GB of a node for each GPU, beside what is read
CPU_RANK_GB = 5  # of a rank on CPUs, beside weights and cache: 1.8 resident, 3 while it is loaded
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
    kv_per_token: int
    kv_bytes: int
    kv_exact: bool  # the server is told so many bytes, instead of the memory that it may fill
    memory: int  # of a GPU; 0: a CPU
    executor: str = "mp"  # or ray: what starts the ranks

    @property
    def ranks_per_node(self) -> int:
        return self.tp * self.pp // self.nodes

    @property
    def kv_tokens(self) -> int:
        """What the server's own line says: whole blocks."""
        block = BLOCK[self.device]
        return self.kv_bytes // (self.kv_per_token * block) * block if self.kv_per_token else 0


def planned(
    config: ModelConfig | Shape, settings: dict[str, Any], tp: int, dtype: str, key: str
) -> Plan:
    """By the catalogue's `vllm` table, with `memory` in GiB of a GPU (0: CPUs); `key` names it in refusals.

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
    best = None
    for pp in stages:
        asked = (memory or 1 << 60, length, ITEMSIZE[dtype])
        if isinstance(config, Shape):
            found = gpu_layout.of_shape(config, tp, pp, *asked)
        else:
            found = gpu_layout.gpu_layout(config, tp, pp, VLLM, *asked)
        if found.wrong:
            if best is None:
                raise Refused(f"{key}: {found.wrong}, expected another tensor parallel size or pp")
            break
        room = int(memory * gpu_layout.UTILIZATION) - found.weights - gpu_layout.REST
        fits = not memory or kv_bytes <= room
        held = kv_bytes if kv_bytes and fits else max(0, room)
        best = Plan(
            tp, pp, settings.get("nodes", pp), "gpu" if memory else "cpu", dtype, length,
            found.weights, found.kv_per_token, held, bool(kv_bytes), memory, executor,
        )  # fmt: skip
        if fits and (best.kv_tokens >= length or not best.kv_per_token):
            return _placed(best, key)
        if kv_bytes and fits:
            break  # more stages would only make up for a cache that was asked for too small
    raise Refused(_too_long(best, key))


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
    longest = plan.kv_tokens
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
        "block-size": BLOCK[plan.device],
    }
    if plan.kv_exact:
        found["kv-cache-memory-bytes"] = plan.kv_bytes
    else:
        found["gpu-memory-utilization"] = gpu_layout.UTILIZATION
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
        held = plan.weights + plan.kv_bytes
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
