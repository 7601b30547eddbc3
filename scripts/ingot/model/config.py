"""What a checkpoint's config.json says of the model, in the words that every stage uses."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from ingot.base.fields import Number, Whole, held, read_json
from ingot.base.refused import Refused
from ingot.model import features, known_fields, layers, rope
from ingot.model.families.family import LATENT, Family
from ingot.model.families.table import FAMILIES
from ingot.model.layers import Experts, Latent, Sliding
from ingot.model.rope import LinearRope, LongRope, Rope, YarnRope
from ingot.model.tensors.dtypes import FLOATS, STORED, Float

MOST_LAYERS = 10_000  # each is listed before the weights are looked at
SIZE, EXPERTS = Whole(high=1 << 24), Whole(0, 4096)  # each expert of each layer is listed
SCALE = Number(above=1e-30)  # below, float32 has none
SCALES = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
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
    "rope_scaling?": rope.SCALING,
    "rope_parameters?": rope.SCALING,
    "sliding_window?": (Whole(), None),
    "tie_word_embeddings?": (bool, None),
    "quantization_config?": ({}, None),
    "attention_bias?": (bool, None),
    "mlp_bias?": (bool, None),
    "original_max_position_embeddings?": (Whole(), None),
    "partial_rotary_factor?": (Number(above=0), None),
    "rope_local_base_freq?": (Number(above=0), None),
    "sliding_window_pattern?": (SIZE, None),
    "_sliding_window_pattern?": (SIZE, None),
    "query_pre_attn_scalar?": (Number(above=0), None),
    "swiglu_alpha?": (Number(), None),
    "swiglu_limit?": (Number(), None),
    "attn_logit_softcapping?": (SCALE, None),
    "final_logit_softcapping?": (SCALE, None),
    "num_experts?": (EXPERTS, None),
    "num_local_experts?": (EXPERTS, None),
    "num_experts_per_tok?": (EXPERTS, None),
    "moe_intermediate_size?": (SIZE, None),
    "n_routed_experts?": (EXPERTS, None),
    "n_shared_experts?": (EXPERTS, None),
    "first_k_dense_replace?": (Whole(0, MOST_LAYERS), None),
    "n_group?": (SIZE, None),
    "topk_group?": (SIZE, None),
    "routed_scaling_factor?": (SCALE, None),
    "norm_topk_prob?": (bool, None),
    "scoring_func?": (str, None),
    **dict.fromkeys((f"{name}?" for name in LATENT), (SIZE, None)),
    "num_nextn_predict_layers?": (Whole(0, MOST_LAYERS), None),
    "no_rope_layers?": ([Whole(0, 1)], None),
    "no_rope_layer_interval?": (SIZE, None),
    **dict.fromkeys((f"{name}?" for name in SCALES), (SCALE, None)),
}
OF_SOME = {name for one in FAMILIES.values() for name in one.reads}
HONOURED = tuple(  # of every family
    one.rstrip("?") for one in FIELDS if not one.endswith("?") or one.rstrip("?") not in OF_SOME
)


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
    rope: Rope | None
    tied: bool
    attention_bias: bool = False  # of q, k, v and o
    mlp_bias: bool = False  # of gate, up and down
    says_head_dim: bool = True  # or is it hidden / heads?
    window: int | None = None  # tokens that each layer sees, of a family whose context ends there
    experts: Experts | None = None
    sliding: Sliding | None = None  # where some layers have a window
    scales: tuple[tuple[str, float], ...] = ()  # by the keys of its family's `scales`
    original_context: int | None = (
        None  # tokens that it was trained on before its context was made longer
    )
    packed: bool = False  # are its experts MXFP4?
    # rows and columns that share a scale, of a checkpoint whose weights are FP8
    scaled: tuple[int, int] | None = None
    latent: Latent | None = None  # then head_dim is that of a query
    guessing: int = 0  # layers behind its last, that guess further tokens: they are left out
    turned: int = 0  # of each head's values, those that rope turns, the first; 0: all

    @property
    def family(self) -> Family:
        return FAMILIES[self.architecture]

    def scale(self, key: str, usual: float = 1.0) -> float:
        """The number of its family's `scales` by that key."""
        return dict(self.scales).get(key, usual)

    @property
    def stored(self) -> dict[str, Float]:
        """The dtypes that its checkpoint may have: floats, and of quantised weights bytes."""
        codes = {"U8": self.packed, "F8_E4M3": self.scaled is not None}
        return FLOATS | {name: STORED[name] for name, has in codes.items() if has}

    @property
    def rope_dim(self) -> int:
        """How many values of each head rope turns."""
        return self.turned or self.head_dim

    @property
    def score_scale(self) -> float:
        """What the scores of attention are multiplied by."""
        size = layers.score_size(self.family, self.hidden, self.layers, self.heads, self.head_dim)
        found = self.scale("attention.scale", size**-0.5)
        if isinstance(self.rope, YarnRope) and self.rope.scores:
            found *= (1 + 0.1 * self.rope.scores * math.log(max(self.rope.factor, 1))) ** 2
        return found

    @property
    def without_rope(self) -> list[int]:
        """The layers that have none."""
        return layers.lasts(self.layers, self.family.rope_skips)

    @property
    def with_window(self) -> list[int]:
        """The layers that see no more than `sliding.window` tokens."""
        return self.sliding.layers(self.layers) if self.sliding else []

    @property
    def needs(self) -> tuple[str, ...]:
        """What not every format can express: words of features.FEATURES."""
        said = {
            "attention_bias": self.attention_bias and "qkv_bias" not in self.family.needs,
            "mlp_bias": self.mlp_bias,
            "linear": isinstance(self.rope, LinearRope),
            "yarn": isinstance(self.rope, YarnRope),
            "longrope": isinstance(self.rope, LongRope),
            "part_rope": self.rope_dim < self.head_dim,
            "mxfp4": self.packed,
            "fp8": self.scaled is not None,
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
        # others have taken DeepSeek's classes with names of their own, such as kimi_k2
        raise (known_fields.Beyond if family.latent else Refused)(
            f"{path}: model_type is {kind!s:.60}, expected {family.model_type} of {architecture}; "
            "transformers goes by it"
        )
    config = _inner(path, config, family)
    known_fields.stop_on_other_arithmetic(path, config, family)
    held(path, config, FIELDS)
    biases = {key: bool(config.get(key)) or key in family.always for key in features.BIASES}
    if odd := [key for key, has in biases.items() if has and key not in family.biases]:
        raise known_fields.Beyond(
            f"{path}: {odd[0]} is true, expected false of a {architecture}; set `way: upstream`"
        )
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    if kv_heads is None and not family.counts_kv_heads:
        raise Refused(f"{path}: num_key_value_heads is missing, expected {SIZE}; add it")
    kv_heads = heads if kv_heads is None else kv_heads
    latent = layers.latent(path, config, family)
    head_dim = config.get("head_dim") or family.default_head_dim or config["hidden_size"] // heads
    if latent:  # whatever is said: so transformers has it
        head_dim = latent.plain + latent.turned
    if heads % kv_heads or head_dim % 2 or not head_dim:
        raise Refused(
            f"{path}: {heads} heads of {head_dim} values over {kv_heads} KV heads, expected a "
            "multiple of the KV heads, and an even number of values"
        )
    if family.divides_heads and head_dim != config["hidden_size"] // heads:
        raise known_fields.Beyond(
            f"{path}: head_dim is {head_dim}, expected {config['hidden_size'] // heads}, hidden_size over "
            f"heads: llama.cpp knows no other {family.gguf}"
        )
    layers.hold_rope_skips(path, config, family)
    layers.hold_scores(path, config, family, head_dim)
    theta, scaling = rope.read(path, config, family)
    rope.hold_own(path, config, scaling, family)
    rope.hold_said(path, theta, scaling, family)
    turned = latent.turned if latent else int(head_dim * rope.part(path, config, family))
    if turned % 2 or not turned:
        key = "qk_rope_head_dim" if latent else "partial_rotary_factor"
        raise Refused(
            f"{path}: {key} leaves {turned} of {head_dim} values, expected an even number"
        )
    rope.hold_long(path, scaling, turned)
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
        rope=scaling,
        tied=bool(config.get("tie_word_embeddings")),
        says_head_dim=bool(config.get("head_dim")),
        window=_window(config, family),
        sliding=layers.sliding(path, config, family),
        experts=layers.experts(path, config, family),
        scales=tuple(
            (key, layers.given(path, config, said)) for key, said in family.scales.items()
        ),
        original_context=rope.original_context(path, config, family) if family.long_rope else None,
        packed=layers.packed(path, config, family),
        scaled=layers.scaled(path, config, family),
        latent=latent,
        guessing=(config.get("num_nextn_predict_layers") or 0) if latent else 0,
        turned=0 if turned == head_dim else turned,
        **biases,
    )
    if lacks := features.lacking(found.needs, can):
        raise Refused(f"{path}: {lacks}, which this format cannot express; ask for GGUF")
    return found


def _inner(path: Path, config: dict, family: Family) -> dict:
    """The part for text, with what transformers takes where that says nothing."""
    found = config
    if family.inner:
        held(path, config, {family.inner: {}})
        found = {**config[family.inner], "architectures": config["architectures"]}
        found.pop("tie_word_embeddings", None)  # transformers goes by the whole's
        for key in ("tie_word_embeddings", "quantization_config"):
            if config.get(key) is not None:
                found[key] = config[key]
    found = layers.one_rope(path, found) if family.sliding_every else found
    return {**family.defaults, **found}


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


def say_unknown(path: Path, family: Family) -> None:
    """A line of the fields that neither we nor transformers' class of the family reads."""
    said = read_json(path)
    said = said[family.inner] if family.inner else said
    known = {*HONOURED, *known_fields.NAMES, *family.neutral, *family.reads}
    if unknown := sorted(set(said) - known):
        print(
            f"{path}: {', '.join(unknown)}: neither Ingot nor transformers reads this; left out",
            file=sys.stderr,
        )
