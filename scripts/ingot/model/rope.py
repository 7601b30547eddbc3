"""What a config.json says of rope: its base, and how positions beyond the trained context are scaled.

Reads the spelling of transformers 4 (rope_theta, rope_scaling) and 5 (rope_parameters).
"""

import math
from dataclasses import dataclass
from pathlib import Path

from ingot.base.fields import Number, Whole
from ingot.base.refused import Refused
from ingot.model.families.family import Family
from ingot.model.known_fields import Beyond

GGML_BASE = 10000.0  # of rope, where a file names none
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


Rope = Llama3Rope | LinearRope | YarnRope


def read(path: Path, config: dict, usual: float) -> tuple[float, Rope | None]:
    """Its base, `usual` where none is said, and its scaling if it has one."""
    named = {
        key: dict(config[key]) for key in ("rope_parameters", "rope_scaling") if config.get(key)
    }
    for key, one in named.items():
        agree(path, {f"{key}.{word}": one[word] for word in ("rope_type", "type") if word in one})
        if "type" in one:
            one["rope_type"] = one.pop("type")
    thetas = {f"{key}.rope_theta": one.pop("rope_theta", None) for key, one in named.items()}
    thetas = {"rope_theta": config.get("rope_theta"), **thetas}
    theta = agree(path, {key: float(value) for key, value in thetas.items() if value}) or usual
    scaling = agree(path, named) or {}
    kind = scaling.get("rope_type", "default")
    if unknown := sorted(set(scaling) - {key.rstrip("?") for key in SCALING[0]}):
        raise Beyond(
            f"{path}: {unknown[0]} in rope_scaling, expected no such field; it would be left out"
        )
    if kind == "default":
        if "factor" in scaling:
            raise Refused(
                f"{path}: rope_scaling has a factor and no rope_type, expected both; add it"
            )
        return theta, None
    if kind not in ("llama3", "linear", "yarn"):
        raise Beyond(
            f"{path}: rope_type is {kind}, expected llama3, linear, yarn or default; it would be dropped"
        )
    name = "original_max_position_embeddings"
    originals = {name: config.get(name), f"rope_scaling.{name}": scaling.get(name)}
    original = agree(path, {key: value for key, value in originals.items() if value})
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
            raise Beyond(
                f"{path}: attention_factor is {rope.attention_factor}, expected {own:.6g}: libllama "
                "computes its own"
            )
    blend = kind != "llama3" or 0 < rope.low_freq_factor < rope.high_freq_factor
    if rope.factor <= 0 or not blend:
        raise Refused(
            f"{path}: rope_scaling {scaling}, expected 0 < low < high and a factor above 0"
        )
    return theta, rope


def hold_said(path: Path, theta: float, scaling: Rope | None, family: Family) -> None:
    """Refused: what GGUF of the family has no place for."""
    base = "rope.freq_base" in family.gguf_keys or theta == GGML_BASE
    scaled = isinstance(scaling, LinearRope | YarnRope) and "rope.scaling" not in family.gguf_keys
    if not base or scaled or (isinstance(scaling, Llama3Rope) and not family.llama3_rope):
        found = (
            f"base {theta:g}" if not base else type(scaling).__name__.removesuffix("Rope").lower()
        )
        raise Beyond(
            f"{path}: rope's {found} has no place in GGUF of a {family.gguf}, expected none"
        )


def agree(path: Path, said: dict):
    """The one value of what config.json says in several places, or None; refused where two differ."""
    (first, value), *others = said.items() if said else [("", None)]
    for other, found in others:
        if found != value:
            raise Refused(
                f"{path}: {first} is {value} and {other} is {found}, expected one value; transformers' "
                "versions differ in which they read"
            )
    return value
