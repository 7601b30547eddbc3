"""What a checkpoint's config.json says of the model, in the words that every stage uses.

Reads the spelling of transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters).
"""

from dataclasses import dataclass
from pathlib import Path

from ingot.checkpoint.files import read_json
from ingot.refused import Refused

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
PLAIN = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}  # else other arithmetic


@dataclass(frozen=True)
class Llama3Rope:
    """Llama 3.1's rope scaling: frequencies of long wavelength are divided by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # tokens


@dataclass(frozen=True)
class ModelConfig:
    """The numbers of a Llama or Mistral checkpoint."""

    architecture: str
    vocab: int
    hidden: int
    layers: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int  # tokens
    rms_eps: float
    rope_theta: float
    rope: Llama3Rope | None
    tied: bool


def read_config(path: Path, expected: str | None = None) -> ModelConfig:
    """`config.json` at `path`; stops with one line naming the key that is absent or unknown.

    `expected` is the architecture that the catalogue says.
    """
    config = read_json(path)
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in ([expected] if expected else ARCHITECTURES):
        wanted = expected or " or ".join(ARCHITECTURES)
        raise Refused(
            f"{path}: architectures is {architecture}, expected {wanted}; correct the entry"
        )
    if config.get("quantization_config"):
        raise Refused(f"{path}: quantization_config is set; start from an unquantised checkpoint")

    for key, plain in PLAIN.items():
        if config.get(key, plain) != plain:
            raise Refused(f"{path}: {key} is {config[key]}, expected {plain}; it would be left out")

    def need(key: str):
        number = config.get(key)
        if number is None:
            raise Refused(f"{path}: {key} is missing, expected a number; add it")
        if isinstance(number, bool) or not isinstance(number, int | float) or number <= 0:
            raise Refused(f"{path}: {key} is {number!r}, expected a number above 0; correct it")
        return number

    window = config.get("sliding_window")
    if (
        window
        and config.get("use_sliding_window", True)
        and window < need("max_position_embeddings")
    ):
        raise Refused(
            f"{path}: sliding_window is {window}, less than max_position_embeddings; not supported: "
            "the export would use full attention"
        )
    heads = need("num_attention_heads")
    # transformers fills an absent number of KV heads with 8 for Mistral: too easily wrong to guess.
    guessed = architecture == "LlamaForCausalLM" and config.get("num_key_value_heads") is None
    kv_heads = heads if guessed else need("num_key_value_heads")
    theta, rope = _rope(path, config)
    return ModelConfig(
        architecture=architecture,
        vocab=need("vocab_size"),
        hidden=need("hidden_size"),
        layers=need("num_hidden_layers"),
        ffn=need("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=need("hidden_size") // heads
        if config.get("head_dim") is None
        else need("head_dim"),
        context=need("max_position_embeddings"),
        rms_eps=need("rms_norm_eps"),
        rope_theta=theta,
        rope=rope,
        tied=bool(config.get("tie_word_embeddings")),
    )


def _rope(path: Path, config: dict) -> tuple[float, Llama3Rope | None]:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return float(theta), None
    if kind != "llama3":
        raise Refused(
            f"{path}: rope_type is {kind}, expected llama3 or default; it would be dropped"
        )
    try:
        rope = Llama3Rope(
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_context=int(scaling["original_max_position_embeddings"]),
        )
    except KeyError as key:
        raise Refused(f"{path}: rope_scaling lacks {key}, expected four numbers; add it") from None
    if rope.factor <= 0 or not 0 < rope.low_freq_factor < rope.high_freq_factor:
        raise Refused(
            f"{path}: rope_scaling {scaling}, expected 0 < low < high and a factor above 0"
        )
    return float(theta), rope
