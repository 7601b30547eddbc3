"""What a checkpoint's config.json says of the model, in the words that every stage uses.

Reads the spelling of transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters).
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from ingot.base.fields import Number, Whole, held, read_json
from ingot.base.refused import Refused
from ingot.model import features, known_fields
from ingot.model.families.family import Family
from ingot.model.families.table import FAMILIES

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
        "beta_fast?": Number(above=0),
        "beta_slow?": Number(above=0),
        "attention_factor?": (Number(above=0), None),
    },
    None,
)
SIZE = Whole(high=1 << 24)
FIELDS = {  # what is read of a config.json; shapes are those of `fields.held`
    "architectures?": ([str], None),
    "model_type?": (str, None),
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
    "sliding_window?": (Whole(), None),
    "tie_word_embeddings?": (bool, None),
    "attention_bias?": (bool, None),
    "mlp_bias?": (bool, None),
    "original_max_position_embeddings?": (Whole(), None),
}
HONOURED = tuple(name.rstrip("?") for name in FIELDS)


@dataclass(frozen=True)
class Llama3Rope:
    """Llama 3.1's rope scaling: frequencies of long wavelength are divided by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int  # tokens


@dataclass(frozen=True)
class LinearRope:
    """All frequencies are divided by `factor`."""

    factor: float


@dataclass(frozen=True)
class YarnRope:
    """YaRN's: by frequency, between the betas; None where config.json leaves it to the runtime."""

    factor: float
    original_context: int  # tokens
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """The numbers of a checkpoint."""

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
    rope: Llama3Rope | LinearRope | YarnRope | None
    tied: bool
    attention_bias: bool = False  # of q, k, v and o
    mlp_bias: bool = False  # of gate, up and down
    says_head_dim: bool = True  # or is it hidden / heads?
    window: int | None = None  # tokens that each layer sees, of a family whose context ends there

    @property
    def family(self) -> Family:
        return FAMILIES[self.architecture]

    @property
    def needs(self) -> tuple[str, ...]:
        """What not every format can express: words of features.FEATURES."""
        said = {
            "attention_bias": self.attention_bias and "qkv_bias" not in self.family.needs,
            "mlp_bias": self.mlp_bias,
            "linear": isinstance(self.rope, LinearRope),
            "yarn": isinstance(self.rope, YarnRope),
        }
        return (*self.family.needs, *(word for word, has in said.items() if has))


def read_config(path: Path, expected: str | None = None, can: tuple[str, ...] = ()) -> ModelConfig:
    """`config.json` at `path`; stops with one line naming the key that is absent or unknown.

    `expected` is the architecture that the catalogue says; `can` are those of features.FEATURES that the
    format can express.  Where a family's context ends at its window, no format of ours is right beyond it.
    """
    config = read_json(path, {"architectures?": ([str], None)})
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in ([expected] if expected else FAMILIES):
        wanted = expected or " or ".join(FAMILIES)
        raise Refused(
            f"{path}: architectures is {architecture}, expected {wanted}: no other is supported"
        )
    family = FAMILIES[architecture]
    if (kind := config.get("model_type")) not in (None, family.model_type):
        raise Refused(
            f"{path}: model_type is {kind!s:.60}, expected {family.model_type} of {architecture}; "
            "transformers goes by it"
        )
    known_fields.stop_on_other_arithmetic(path, config, family.neutral)
    held(path, config, FIELDS)
    biases = {key: bool(config.get(key)) or key in family.always for key in features.BIASES}
    if odd := [key for key, has in biases.items() if has and key not in family.biases]:
        raise Refused(
            f"{path}: {odd[0]} is true, expected false of a {architecture}; set `way: upstream`"
        )
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    if kv_heads is None and not family.counts_kv_heads:
        raise Refused(f"{path}: num_key_value_heads is missing, expected {SIZE}; add it")
    kv_heads = heads if kv_heads is None else kv_heads
    head_dim = config.get("head_dim") or family.default_head_dim or config["hidden_size"] // heads
    if heads % kv_heads or head_dim % 2 or not head_dim:
        raise Refused(
            f"{path}: {heads} heads of {head_dim} values over {kv_heads} KV heads, expected a "
            "multiple of the KV heads, and an even number of values"
        )
    theta, rope = _rope(path, config)
    found = ModelConfig(
        architecture=architecture,
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        ffn=config["intermediate_size"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=_context(path, config, family),
        rms_eps=config["rms_norm_eps"],
        rope_theta=theta,
        rope=rope,
        tied=bool(config.get("tie_word_embeddings")),
        says_head_dim=bool(config.get("head_dim")),
        window=_window(config, family),
        **biases,
    )
    if lacks := features.lacking(found.needs, can):
        raise Refused(f"{path}: {lacks}, which this format cannot express; ask for GGUF")
    return found


def _window(config: dict, family: Family) -> int | None:
    return config.get("sliding_window", family.default_window) if family.ends_at_window else None


def _context(path: Path, config: dict, family: Family) -> int:
    """Tokens; up to the window, of a family whose context ends there."""
    context = config["max_position_embeddings"]
    window = _window(config, family)
    if window is None:
        return context
    if "sliding_window" not in config and context > window:
        raise Refused(
            f"{path}: sliding_window is missing, expected null or a number: transformers takes {window}, "
            "llama.cpp none"
        )
    return min(context, window)


def _rope(path: Path, config: dict):
    named = {
        key: dict(config[key]) for key in ("rope_parameters", "rope_scaling") if config.get(key)
    }
    for key, one in named.items():
        _agree(path, {f"{key}.{word}": one[word] for word in ("rope_type", "type") if word in one})
        if "type" in one:
            one["rope_type"] = one.pop("type")
    thetas = {f"{key}.rope_theta": one.pop("rope_theta", None) for key, one in named.items()}
    thetas = {"rope_theta": config.get("rope_theta"), **thetas}
    theta = _agree(path, {key: float(value) for key, value in thetas.items() if value}) or 10000.0
    scaling = _agree(path, named) or {}
    kind = scaling.get("rope_type", "default")
    if unknown := sorted(set(scaling) - {key.rstrip("?") for key in SCALING[0]}):
        raise Refused(
            f"{path}: {unknown[0]} in rope_scaling, expected no such field; it would be left out"
        )
    if kind == "default":
        if "factor" in scaling:
            raise Refused(
                f"{path}: rope_scaling has a factor and no rope_type, expected both; add it"
            )
        return theta, None
    if kind not in ("llama3", "linear", "yarn"):
        raise Refused(
            f"{path}: rope_type is {kind}, expected llama3, linear, yarn or default; it would be dropped"
        )
    name = "original_max_position_embeddings"
    originals = {name: config.get(name), f"rope_scaling.{name}": scaling.get(name)}
    original = _agree(path, {key: value for key, value in originals.items() if value})
    try:
        if kind == "linear":
            rope = LinearRope(float(scaling["factor"]))
        elif kind == "yarn":
            more = (scaling.get(key) for key in ("attention_factor", "beta_fast", "beta_slow"))
            original = original or config["max_position_embeddings"]
            rope = YarnRope(float(scaling["factor"]), original, *more)
        else:
            numbers = ("factor", "low_freq_factor", "high_freq_factor")
            rope = Llama3Rope(*(float(scaling[key]) for key in numbers), scaling[name])
    except KeyError as key:
        raise Refused(f"{path}: rope_scaling lacks {key}, expected a number; add it") from None
    if kind == "yarn" and rope.attention_factor:
        own = 0.1 * math.log(max(rope.factor, 1)) + 1
        if abs(rope.attention_factor - own) > 1e-6:
            raise Refused(
                f"{path}: attention_factor is {rope.attention_factor}, expected {own:.6g}: libllama "
                "computes its own"
            )
    blend = kind != "llama3" or 0 < rope.low_freq_factor < rope.high_freq_factor
    if rope.factor <= 0 or not blend:
        raise Refused(
            f"{path}: rope_scaling {scaling}, expected 0 < low < high and a factor above 0"
        )
    return theta, rope


def _agree(path: Path, said: dict):
    """The one value of what config.json says in several places, or None; refused where two differ."""
    (first, value), *others = said.items() if said else [("", None)]
    for other, found in others:
        if found != value:
            raise Refused(
                f"{path}: {first} is {value} and {other} is {found}, expected one value; transformers' "
                "versions differ in which they read"
            )
    return value


def say_unknown(path: Path) -> None:
    """A line of the fields that neither we nor transformers' classes of our families read."""
    known = {*HONOURED, *known_fields.NAMES}
    if unknown := sorted(set(read_json(path)) - known):
        print(
            f"{path}: {', '.join(unknown)}: neither Ingot nor transformers reads this; left out",
            file=sys.stderr,
        )
