"""What a config.json says of layers that are no Llama's: experts, latents, windows, codes, no rope."""

from dataclasses import dataclass
from pathlib import Path

from ingot.base.fields import Whole
from ingot.base.refused import Refused
from ingot.model.families.family import Family
from ingot.model.known_fields import Beyond
from ingot.model.rope import agree

# by its number of layers, or that and its vocabulary, libllama tells that queries have no latent
SHORT, SHORT_OF = (26, 27), (48, 128256)
LATENT_EPS = 1e-6  # of transformers' norms of latents
MXFP4_BLOCK = 32  # values of a row that share a scale
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
SIDE = Whole(high=1 << 16)  # of a block of FP8
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Experts:
    """Of each layer: how many, how many of them a token goes through, and the channels of each."""

    count: int
    used: int
    ffn: int
    router: "Router | None" = None


@dataclass(frozen=True)
class Router:
    """How a token's experts are chosen and weighed, of a family that says so."""

    scores: str | None  # "softmax" or "sigmoid"; None: its architecture's own
    dense: int  # leading layers without experts
    shared: int  # experts more, through which each token goes, as one
    groups: int | None  # into which they are divided
    groups_used: int | None  # of which a token's experts are
    scale: float  # of their weights
    normed: bool  # is their sum 1, before that?


@dataclass(frozen=True)
class Latent:
    """Sizes of attention whose keys and values come from one latent a token: values of each."""

    q_rank: int | None  # of the latent of queries; None: there is none
    kv_rank: int  # of that of keys and values
    plain: int  # of a head's query and key, without rope
    turned: int  # and with it
    value: int  # of a head's value

    @property
    def kept(self) -> int:
        """Of a token, by a layer: what its keys and values are made of."""
        return self.kv_rank + self.turned


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
    counts = family.counts
    count = agree(path, {key: config[key] for key in counts if config.get(key)})
    if not count:
        verb = "are" if counts[1:] else "is"
        raise Beyond(f"{path}: {' and '.join(counts)} {verb} missing, expected a number of one")
    used = given(path, config, "num_experts_per_tok")
    if not 0 < used <= count:
        raise Refused(
            f"{path}: num_experts_per_tok is {used}, expected at least 1, and at most {count} experts"
        )
    channels = given(path, config, family.experts)
    return Experts(count, used, channels, _router(path, config, family, count, used))


def _router(path: Path, config: dict, family: Family, count: int, used: int) -> Router | None:
    """Refused: groups of which a token's experts cannot be."""
    if not family.router:
        return None
    groups, chosen = config.get("n_group"), config.get("topk_group")
    if family.router == "sigmoid" or str(config.get("topk_method")).startswith("group"):
        each = count // (groups or count)
        possible = 0 < (chosen or 0) <= (groups or 0) and used <= (chosen or 0) * each
        if not possible or count % (groups or 1) or each < 2:
            raise Beyond(
                f"{path}: {used} of {count} experts, of {chosen} of {groups} groups, expected groups of "
                "one size, of two experts at least, and enough of them"
            )
    dense = given(path, config, "first_k_dense_replace")
    shared = given(path, config, "n_shared_experts")
    for key, found, right in (
        ("first_k_dense_replace", dense, dense < config["num_hidden_layers"]),
        ("n_shared_experts", shared, shared > 0),
    ):
        if not right:
            raise Beyond(
                f"{path}: {key} is {found}, expected layers with experts, of which some are shared: "
                f"llama.cpp knows no other {family.gguf}"
            )
    scale = float(given(path, config, "routed_scaling_factor"))
    normed = bool(config.get("norm_topk_prob"))
    return Router(config.get("scoring_func"), dense, shared, groups, chosen, scale, normed)


def latent(path: Path, config: dict, family: Family) -> Latent | None:
    """Refused: heads of keys that are not those of queries, and what libllama guesses otherwise."""
    if not family.latent:
        return None
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    if kv_heads not in (None, heads):
        raise Beyond(
            f"{path}: num_key_value_heads is {kv_heads}, expected {heads}, one for each head, as all come "
            "from one latent"
        )
    rank, layers = config.get("q_lora_rank"), config["num_hidden_layers"]
    short = layers in SHORT or (layers, config["vocab_size"]) == SHORT_OF
    if short is not (rank is None):
        expected = "null" if short else "a number"
        raise Beyond(
            f"{path}: q_lora_rank is {rank}, expected {expected}: llama.cpp knows no other {family.gguf} "
            f"of {layers} layers"
        )
    if config["rms_norm_eps"] != LATENT_EPS:
        raise Beyond(
            f"{path}: rms_norm_eps is {config['rms_norm_eps']}, expected {LATENT_EPS}, by which "
            "transformers norms latents whatever it says: llama.cpp knows one for all norms"
        )
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return Latent(rank, *(given(path, config, name) for name in names))


def scaled(path: Path, config: dict, family: Family) -> tuple[int, int] | None:
    """Rows and columns of FP8 that share a scale.  Refused: any other way of quantising."""
    said = config.get("quantization_config")
    if family.stacks or not said:
        return None
    block = said.get("weight_block_size")
    sides = block if isinstance(block, list) and all(map(SIDE.holds, block)) else []
    others = {key: value for key, value in FP8.items() if said.get(key, value) != value}
    if len(sides) != 2 or others or "quant_method" not in said:
        raise Beyond(
            f"{path}: quantization_config is {said!s:.60}, expected none, or fp8 of blocks; it would be "
            "left out"
        )
    return sides[0], sides[1]


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
