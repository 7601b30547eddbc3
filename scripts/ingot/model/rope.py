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
        "truncate?": (bool, None),
        "attention_factor?": (Number(above=0), None),
        "mscale?": (Number(above=0), None),
        "mscale_all_dim?": (Number(above=0), None),
        "short_factor?": ([Number(above=0)], None),
        "long_factor?": ([Number(above=0)], None),
        "partial_rotary_factor?": (Number(above=0), None),
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
    truncate: bool = True  # are the bounds between which it goes by frequency whole numbers?
    # by which attention's scores grow with the factor's logarithm, of latent attention
    scores: float | None = None


@dataclass(frozen=True)
class LongRope:
    """Each frequency is divided by one of `short`, of texts beyond `original_context` of `long`."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int  # tokens
    attention_factor: float  # of sines and cosines


Rope = Llama3Rope | LinearRope | YarnRope | LongRope
KINDS = {Llama3Rope: "llama3", LinearRope: "linear", YarnRope: "yarn", LongRope: "longrope"}
SAID = ("rope_parameters", "rope_scaling")  # where config.json says it
ORIGINAL = "original_max_position_embeddings"
MSCALES = ("mscale", "mscale_all_dim")
FACTORS = ("short_factor", "long_factor")


def part(path: Path, config: dict, family: Family) -> float:
    """The part of each head's values that rope turns, the first ones."""
    key = "partial_rotary_factor"
    said = {f"{one}.{key}": (config.get(one) or {}).get(key) for one in SAID} | {
        key: config.get(key)
    }
    found = agree(path, {name: float(one) for name, one in said.items() if one is not None})
    found = 1.0 if found is None else found
    if found != 1 and (found > 1 or not family.turns_part):
        raise Beyond(f"{path}: {key} is {found}, expected 1.0; it would be left out")
    return found


def original_context(path: Path, config: dict, family: Family) -> int | None:
    """Tokens that it was trained on, before its context was made longer; None where nobody says it."""
    said = {ORIGINAL: config.get(ORIGINAL)}
    said |= {f"{one}.{ORIGINAL}": (config.get(one) or {}).get(ORIGINAL) for one in SAID}
    return agree(path, {key: one for key, one in said.items() if one}) or family.long_rope


def read(path: Path, config: dict, family: Family) -> tuple[float, Rope | None]:
    """Its base, the family's usual one where none is said, and its scaling if it has one."""
    named = {key: dict(config[key]) for key in SAID if config.get(key)}
    for one in named.values():
        one.pop("partial_rotary_factor", None)
    for key, one in named.items():
        agree(path, {f"{key}.{word}": one[word] for word in ("rope_type", "type") if word in one})
        if "type" in one:
            one["rope_type"] = one.pop("type")
    thetas = {f"{key}.rope_theta": one.pop("rope_theta", None) for key, one in named.items()}
    thetas = {"rope_theta": config.get("rope_theta"), **thetas}
    theta = agree(path, {key: float(value) for key, value in thetas.items() if value})
    theta = theta or family.default_theta
    scaling = agree(path, named) or {}
    kind = scaling.get("rope_type", "default")
    known = {key.rstrip("?") for key in SCALING[0]} - (set() if family.latent else {*MSCALES})
    if unknown := sorted(set(scaling) - known):
        raise Beyond(
            f"{path}: {unknown[0]} in rope_scaling, expected no such field; it would be left out"
        )
    if kind == "default":
        if odd := [key for key in ("factor", *FACTORS, *MSCALES) if scaling.get(key)]:
            raise Refused(
                f"{path}: rope_scaling has a {odd[0]} and no rope_type, expected both; add it"
            )
        return theta, None
    if kind == "su":  # as which transformers 5 loads it where rope_scaling says all
        raise Refused(
            f"{path}: rope_type is su, expected longrope, as newer revisions of such models name it"
        )
    if kind not in ("llama3", "linear", "yarn", "longrope"):
        raise Beyond(
            f"{path}: rope_type is {kind}, expected llama3, linear, yarn, longrope or default; it would be "
            "dropped"
        )
    if family.latent and kind != "yarn":
        raise Beyond(
            f"{path}: rope_type is {kind}, expected yarn or default: llama.cpp knows no other {family.gguf}"
        )
    if kind != "longrope" and (odd := [key for key in FACTORS if scaling.get(key)]):
        raise Beyond(
            f"{path}: {odd[0]} in rope_scaling of type {kind}, expected no such field; it would be left out"
        )
    original = original_context(path, config, family)
    try:
        if kind == "longrope":
            return theta, _long(
                path, config, scaling, original or config["max_position_embeddings"]
            )
        if kind == "linear":
            rope = LinearRope(float(scaling["factor"]))
        elif kind == "yarn":
            more = (scaling.get(key) for key in ("attention_factor", "beta_fast", "beta_slow"))
            original = original or config["max_position_embeddings"]
            whole = scaling.get("truncate")
            rope = YarnRope(
                float(scaling["factor"]), original, *more, truncate=whole is None or whole,
                scores=_scores(path, scaling) if family.latent else None,
            )  # fmt: skip
        else:
            numbers = ("factor", "low_freq_factor", "high_freq_factor")
            rope = Llama3Rope(*(float(scaling[key]) for key in numbers), scaling[ORIGINAL])
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


def _scores(path: Path, scaling: dict) -> float:
    """Refused: two numbers of YaRN by which transformers turns by another length than libllama."""
    one, all_of = (scaling.get(key) for key in MSCALES)
    if scaling.get("factor") is not None and scaling["factor"] < 1:
        raise Beyond(f"{path}: factor is {scaling['factor']} in rope_scaling, expected 1 at least")
    if not one or one != all_of or scaling.get("attention_factor"):
        key = "attention_factor" if scaling.get("attention_factor") else MSCALES[0]
        expected = "none" if key == "attention_factor" else f"that of {MSCALES[1]}"
        raise Beyond(
            f"{path}: {key} is {scaling.get(key)} in rope_scaling, expected {expected}: llama.cpp computes "
            "no other"
        )
    return float(one)


def hold_own(path: Path, config: dict, scaling: Rope | None, family: Family) -> None:
    """Refused: a scaling that config.json leaves to transformers, and bounds that are no whole numbers."""
    if family.says_rope and not any(config.get(one) for one in SAID):
        raise Beyond(
            f"{path}: {' and '.join(SAID)} are missing, expected one: transformers has a scaling of its "
            f"own of {family.model_type}"
        )
    if isinstance(scaling, YarnRope) and not scaling.truncate and not family.rounds_yarn:
        raise Beyond(
            f"{path}: truncate is false in rope_scaling, expected true: llama.cpp knows no other YaRN"
        )


def _long(path: Path, config: dict, scaling: dict, original: int) -> LongRope:
    """Refused: numbers by which libllama, which goes by the contexts alone, computes another."""
    times = config["max_position_embeddings"] / original
    own = math.sqrt(1 + math.log(times) / math.log(original)) if times > 1 and original > 1 else 1.0
    for key, wanted in (("factor", times), ("attention_factor", own)):
        if scaling.get(key) and abs(scaling[key] - wanted) > 1e-6 * wanted:
            raise Beyond(
                f"{path}: rope_scaling's {key} is {scaling[key]}, expected {wanted:.6g} by its contexts: "
                "llama.cpp computes its own"
            )
    short, long = (tuple(map(float, scaling[key] or ())) for key in ("short_factor", "long_factor"))
    return LongRope(short, long, original, own)


def hold_long(path: Path, scaling: Rope | None, turned: int) -> None:
    """Refused: other than one number for each of the frequencies of `turned` values."""
    if not isinstance(scaling, LongRope):
        return
    for key, found in (("short_factor", scaling.short), ("long_factor", scaling.long)):
        if len(found) != turned // 2:
            raise Refused(
                f"{path}: {key} has {len(found)} numbers, expected {turned // 2}, one for each "
                "frequency of rope"
            )


def hold_said(path: Path, theta: float, scaling: Rope | None, family: Family) -> None:
    """Refused: what GGUF of the family has no place for."""
    base = "rope.freq_base" in family.gguf_keys or theta == GGML_BASE
    scaled = isinstance(scaling, LinearRope | YarnRope) and "rope.scaling" not in family.gguf_keys
    scaled |= isinstance(scaling, LongRope) and not family.long_rope
    if not base or scaled or (isinstance(scaling, Llama3Rope) and not family.llama3_rope):
        found = f"base {theta:g}" if not base else KINDS[type(scaling)]
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
