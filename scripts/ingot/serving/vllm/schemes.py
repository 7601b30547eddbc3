"""What vLLM needs of a quantised checkpoint: a kernel on the device, and whole groups on each rank.

Source: vLLM 0.32.0, model_executor/kernels/linear, and the get_min_capability of its schemes for
compressed-tensors; on a CPU without AMX each was tried.
"""

from ingot.model.checkpoint.quantised import sizes
from ingot.model.checkpoint.quantised.schemes import ALL
from ingot.model.config import ModelConfig
from ingot.model.specs import sizes_of

ON_CPU = ("fp8", "w8a8", "w4a16", "w8a8_gptq", "w4a16_gptq", "w4a16_awq")
IN_FLOAT32 = ("fp8", "w8a8")  # on a CPU
LEAST = {"mxfp4": 8.0}  # compute capability of a GPU
USUAL = 7.5
MOST = {"w8a8": 9.9}  # its CUTLASS kernel stops at the first token on newer ones
WIDE_SCALES = ("fp8", "fp8_block", "w8a8")  # whose scales it widens, as it holds them
COLUMNS = ("q", "ffn", "expert")  # of a layer's weight, that ranks share among them
ROWS = (*COLUMNS, "kv")
# rows of one weight, each kind of which ranks share
JOINED = {"qkv": ("q", "kv"), "gate_up": ("ffn",)}


def no_kernel(scheme: str, capability: str | None, experts: bool = False) -> str | None:
    """Why it cannot be served on GPUs of a compute capability such as 9.0, or on CPUs (None)."""
    if capability is None:
        if experts:
            return "vLLM has no kernels for quantised experts on CPUs, expected a GPU"
        if scheme in ON_CPU:
            return None
        return f"vLLM has no kernel for {scheme} on CPUs, expected one of {', '.join(ON_CPU)}, or a GPU"
    like = ALL[scheme].like or scheme
    least = LEAST.get(like, USUAL)
    if float(capability) < least:
        return (
            f"vLLM serves {scheme} on GPUs of compute capability {least} or more, not {capability}"
        )
    if float(capability) > MOST.get(like, 99):
        return (
            f"vLLM has no kernel for {scheme} on GPUs of compute capability {capability}; take fp8"
        )
    return None


def not_in(dtype: str, scheme: str, device: str) -> str | None:
    """Why its kernels do not compute in a dtype, or None."""
    scheme = ALL[scheme].like or scheme
    if dtype != "float32" or (device == "cpu" and scheme in IN_FLOAT32):
        return None
    return f"float32, expected bfloat16 or float16: vLLM's kernels for {scheme} compute in no other"


def per_weight(config: ModelConfig, scheme: str) -> float:
    """Bytes that it holds of one weight of those that are quantised, scales counted, on average."""
    wide = (ALL[scheme].like or scheme) in WIDE_SCALES
    return sizes.per_weight(config, scheme, "f32" if wide else "bf16")


def cut_group(config: ModelConfig, scheme: str, tp: int) -> str | None:
    """Why `tp` ranks cannot share its layers' groups, or None."""
    found, own = ALL[scheme], sizes_of(config)
    for name, one in config.family.layer.items():
        if len(one.shape) < 2 or one.float32:
            continue
        columns = (one.shape[1], COLUMNS, found.divides)
        rows = [(word, ROWS, found.rows) for word in JOINED.get(one.shape[0], one.shape[:1])]
        for word, shared, group in (columns, *rows):
            part = own[word] // tp
            if word == "kv":  # heads too few for the ranks are repeated
                part = max(part, config.head_dim)
            if word in shared and part % group:
                return (
                    f"a rank of {tp} would hold {part} channels of {name}, expected a multiple of {group} "
                    f"for {scheme}; choose a smaller size, or fp8"
                )
    return None
