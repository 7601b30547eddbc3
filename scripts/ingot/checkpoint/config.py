"""What a checkpoint's config.json says of the model, in the words that every stage uses.

Reads the spelling of transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters).
"""

from dataclasses import dataclass
from pathlib import Path

from ingot.fields import Number, Whole, held, read_json
from ingot.refused import Refused

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
MOST_LAYERS = 10_000  # each is listed before the weights are looked at
SCALING = (
    {
        "rope_theta?": (Number(above=0), None),
        "rope_type?": str,
        "type?": str,
        "factor?": Number(),
        "low_freq_factor?": Number(),
        "high_freq_factor?": Number(),
        "original_max_position_embeddings?": Whole(),
    },
    None,
)
SIZE = Whole(high=1 << 24)
FIELDS = {  # what is read of a config.json; shapes are those of `fields.held`
    "architectures?": ([str], None),
    "vocab_size": SIZE,
    "hidden_size": SIZE,
    "num_hidden_layers": Whole(high=MOST_LAYERS),
    "intermediate_size": SIZE,
    "num_attention_heads": SIZE,
    "num_key_value_heads?": (SIZE, None),
    "head_dim?": (SIZE, None),
    "max_position_embeddings": Whole(),
    "rms_norm_eps": Number(above=0),
    "rope_theta?": (Number(above=0), None),
    "rope_scaling?": SCALING,
    "rope_parameters?": SCALING,
    "sliding_window?": (Whole(low=0), None),
    "use_sliding_window?": (bool, None),
    "tie_word_embeddings?": (bool, None),
}
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
    config = read_json(path, {"architectures?": ([str], None)})
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

    held(path, config, FIELDS)
    window, context = config.get("sliding_window"), config["max_position_embeddings"]
    if window and config.get("use_sliding_window", True) and window < context:
        raise Refused(
            f"{path}: sliding_window is {window}, less than max_position_embeddings; not supported: "
            "the export would use full attention"
        )
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    if kv_heads is None:
        # transformers fills it with 8 for Mistral: too easily wrong to guess
        if architecture != "LlamaForCausalLM":
            raise Refused(f"{path}: num_key_value_heads is missing, expected {SIZE}; add it")
        kv_heads = heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    if heads % kv_heads or head_dim % 2 or not head_dim:
        raise Refused(
            f"{path}: {heads} heads of {head_dim} values over {kv_heads} KV heads, expected a "
            "multiple of the KV heads, and an even number of values; correct it"
        )
    theta, rope = _rope(path, config)
    return ModelConfig(
        architecture=architecture,
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        ffn=config["intermediate_size"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        rms_eps=config["rms_norm_eps"],
        rope_theta=theta,
        rope=rope,
        tied=bool(config.get("tie_word_embeddings")),
    )


def _rope(path: Path, config: dict) -> tuple[float, Llama3Rope | None]:
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
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
