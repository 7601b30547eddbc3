"""How far a lossy format may be from its source: mean KL divergence per token, in nats.

Of libllama's types: what Llama 3 8B loses (formats/gguf/quantisations.py), times FOUR: smaller models lose
more.  q8_0's is of the same scoreboard.  Floats: fifteen and more times what the demo has, whose weights
are bfloat16.  ONNX's int8: three times; fp8: four times, and int8_sq as that.  int4_awq and OpenVINO's int4
as q4_k_m, which has as many bits.  Quantised checkpoints: as these; mxfp4, whose scales are powers of two,
and nvfp4_a4, which rounds activations too, twice that; MLX's 8bit as q8_0.
"""

from ingot.base.refused import Refused
from ingot.formats.gguf.quantisations import ROWS

NAMES = (
    "mean_kl", "median_kl", "kl_99", "kl_99_9", "largest_kl", "same_top", "rms_dp", "perplexity",
)  # fmt: skip
FOUR, Q8_0 = 4, 0.001355
INT8_TOP = 0.97  # the share of equal best tokens of ONNX's and OpenVINO's int8
MEAN_KL = {
    "int8": 3e-3, "int4": 0.125,
    "f32": 1e-5, "f16": 1e-4, "bf16": 1e-3,
    "fp8_block": 0.05, "w8a8": 0.05, "w4a16": 0.125, "nvfp4": 0.125, "mxfp4": 0.25,
    "fp8_static": 0.05, "w8a8_gptq": 0.05, "w4a16_gptq": 0.125, "nvfp4_a4": 0.25,
    "4bit": 0.125, "8bit": round(FOUR * Q8_0, 6),
    "fp8": 0.05, "w8a8_sq_per_channel": 0.05, "w4a16_awq": 0.125,
    "q8_0": round(FOUR * Q8_0, 6),
    **{name: round(FOUR * row.mean_kl, 6) for name, row in ROWS.items()},
}  # fmt: skip

# What the demo's forms lose, by docs/measurements.md and docs/quantised.md: of a form that nobody measured,
# what to expect
EXPECTED = {
    "f32": 8.8e-8, "f16": 6.3e-7, "bf16": 4e-5, "fp16": 6.9e-6, "int8": 0.00096, "int8_dynamic": 0.0052,
    "q8_0": 0.00092,
    "q6_k": 0.0052, "q5_k_m": 0.011, "q4_k_m": 0.032, "q4_0": 0.048, "iq4_xs": 0.04, "q3_k_m": 0.1,
    "q2_k": 0.36, "8bit": 0.00035, "4bit": 0.056, "w8a8": 0.0039, "w8a8_gptq": 0.0026,
    "fp8_block": 0.0092, "fp8": 0.01, "fp8_static": 0.012, "w4a16_gptq": 0.042, "nvfp4": 0.051,
    "w4a16_awq": 0.072, "w4a16": 0.073, "mxfp4": 0.07, "nvfp4_a4": 0.14,
}  # fmt: skip

# The root mean square of the error over that of the weights, per tensor: twice what a normal
# distribution of weights gives
ERROR = {
    "Q4_0": 0.20, "Q4_1": 0.18, "Q5_0": 0.10, "Q5_1": 0.09, "Q8_0": 0.012, "Q2_K": 0.6, "Q3_K": 0.32,
    "Q4_K": 0.15, "Q5_K": 0.075, "Q6_K": 0.038, "IQ4_NL": 0.16, "IQ4_XS": 0.16, "IQ3_S": 0.3,
    "IQ3_XXS": 0.4, "IQ2_S": 0.6, "IQ2_XS": 0.65, "IQ2_XXS": 0.75, "IQ1_S": 0.95, "IQ1_M": 0.95,
}  # fmt: skip


def pairs(words: list[str]) -> dict[str, float]:
    """name=value each, of `limits` of the catalogue."""
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            name = ""
        if name not in NAMES:
            raise Refused(f"--limit: {word}, expected name=value of one of {', '.join(NAMES)}")
    return found


def numbers(kind: str, own: dict[str, float]) -> dict[str, float]:
    """The limits of a format, a user's `own` over them."""
    top = {"same_top": INT8_TOP} if kind == "int8" else {}
    return {"mean_kl": MEAN_KL[kind], **top, **own}
