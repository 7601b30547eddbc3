"""What a config.json says of layers that are no Llama's: experts, windows, layers without rope."""

from dataclasses import dataclass
from pathlib import Path

from ingot.base.refused import Refused
from ingot.model.families.family import Family
from ingot.model.known_fields import Beyond
from ingot.model.rope import agree

MXFP4_BLOCK = 32  # values of a row that share a scale
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Experts:
    """Of each layer: how many, how many of them a token goes through, and the channels of each."""

    count: int
    used: int
    ffn: int


@dataclass(frozen=True)
class Sliding:
    """Each `every`th layer sees all tokens, the others `window`; `theta` is the base of their rope."""

    window: int
    every: int
    theta: float | None  # None: that of the others

    def layers(self, count: int) -> list[int]:
        """Those of `count` layers that slide."""
        full = {*lasts(count, self.every)}
        return [n for n in range(count) if n not in full]


def lasts(count: int, every: int) -> list[int]:
    """The last of each `every` of `count` layers; 0: none."""
    return list(range(every - 1, count, every)) if every else []


def score_size(family: Family, hidden: int, layers: int, heads: int, head_dim: int) -> int:
    """Attention's scores are divided by this number's root, where no scale is said."""
    return hidden // heads if layers == family.wide_at else head_dim


def given(path: Path, config: dict, key: str):
    """A number that the family cannot be without."""
    if config.get(key) is None:
        found = "null" if key in config else "missing"
        raise Beyond(f"{path}: {key} is {found}, expected a number")
    return config[key]


def experts(path: Path, config: dict, family: Family) -> Experts | None:
    if not family.experts:
        return None
    counts = ("num_experts", "num_local_experts")
    count = agree(path, {key: config[key] for key in counts if config.get(key)})
    if not count:
        raise Beyond(f"{path}: {' and '.join(counts)} are missing, expected a number of one")
    used = given(path, config, "num_experts_per_tok")
    if used > count:
        raise Refused(f"{path}: num_experts_per_tok is {used}, expected at most {count} experts")
    return Experts(count, used, given(path, config, family.experts))


def packed(path: Path, config: dict, family: Family) -> bool:
    """Are the experts MXFP4?  Refused: any other way of quantising, and rows that are no whole blocks."""
    said = config.get("quantization_config")
    if not family.stacks or not said:
        return False
    kind = said.get("quant_method") if isinstance(said, dict) else said
    if kind != "mxfp4":
        raise Beyond(
            f"{path}: quant_method is {kind!s:.60}, expected mxfp4; start from the original"
        )
    for key in ("hidden_size", family.experts):
        if config[key] % MXFP4_BLOCK:
            raise Refused(
                f"{path}: {key} is {config[key]}, expected a multiple of {MXFP4_BLOCK}, a block of MXFP4"
            )
    return True


def hold_rope_skips(path: Path, config: dict, family: Family) -> None:
    """Refused: other layers without rope than the family's."""
    if not (every := family.rope_skips):
        return
    count, said = config["num_hidden_layers"], config.get("no_rope_layers")
    if said is None:
        said = _turning(count, config.get("no_rope_layer_interval") or every)
    if said != _turning(count, every):
        raise Beyond(
            f"{path}: no_rope_layers says others than that of {every} layers the last has no rope, "
            f"expected that: llama.cpp knows no other {family.gguf}"
        )


def _turning(count: int, every: int) -> list[int]:
    skipped = {*lasts(count, every)}
    return [int(n not in skipped) for n in range(count)]


def sliding(path: Path, config: dict, family: Family) -> Sliding | None:
    """Refused: other layers that slide than the family's."""
    if not (every := family.sliding_every):
        return None
    window = given(path, config, "sliding_window")
    found = Sliding(window, every, config.get("rope_local_base_freq"))
    count = config["num_hidden_layers"]
    slide = found.layers(count)
    expected = [SLIDING if n in slide else FULL for n in range(count)]
    patterns = ("sliding_window_pattern", "_sliding_window_pattern")
    by = agree(path, {key: config[key] for key in patterns if config.get(key)}) or every
    said = config.get("layer_types")
    if (said is not None and said != expected) or by != every:
        raise Beyond(
            f"{path}: layer_types says others than that of {every} layers the last sees all tokens, "
            f"expected that: llama.cpp knows no other {family.gguf}"
        )
    return found


def one_rope(path: Path, config: dict) -> dict:
    """The same of one whose rope_parameters are by kinds of layers: as transformers 4 writes it."""
    both = config.get("rope_parameters")
    if not isinstance(both, dict) or FULL not in both:
        return config
    local = both.get(SLIDING) or {}
    plain = isinstance(local, dict) and local.get("rope_type", "default") == "default"
    if not plain or set(local) - {"rope_type", "rope_theta"}:
        raise Beyond(
            f"{path}: rope_parameters.{SLIDING} is {local!s:.60}, expected a base alone: llama.cpp knows "
            "no scaling of layers with a window"
        )
    keys = ("rope_local_base_freq", f"rope_parameters.{SLIDING}.rope_theta")
    named = dict(zip(keys, (config.get(keys[0]), local.get("rope_theta")), strict=True))
    found = {**config, "rope_parameters": both[FULL]}
    if any(named.values()):
        found[keys[0]] = agree(path, {key: one for key, one in named.items() if one})
    return found


def hold_scores(path: Path, config: dict, family: Family, head_dim: int) -> None:
    """Refused: attention's scores divided by another number than libllama's."""
    if not family.wide_at:
        return
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    size = score_size(family, config["hidden_size"], layers, heads, head_dim)
    if config.get("query_pre_attn_scalar") != size:
        raise Beyond(
            f"{path}: query_pre_attn_scalar is {config.get('query_pre_attn_scalar')}, expected {size}: "
            f"llama.cpp knows no other {family.gguf} of {layers} layers"
        )
