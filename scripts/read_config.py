"""What the newest transformers makes of a config.json, number by number.  Runs in envs/transformers.

Refused where a number is not the one that Ingot's own reader finds: one of them would make another model.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.model import config as config_of
from ingot.model import features
from ingot.model.config import ModelConfig
from ingot.model.layers import Latent
from ingot.model.outline import read_outline
from ingot.model.rope import LinearRope, Llama3Rope, LongRope, YarnRope
from ingot.model.specs import rope_freqs
from ingot.parity import transformers_model
from ingot.parity.reading import Reading

SCALES = ("embedding_scale", "residual_scale", "logit_scale")
EQUAL = 1e-5  # of rope's frequencies, which transformers computes in float32


def read_config(
    config: Annotated[Path, "the checkpoint's config.json"],
    reading: Annotated[Path, "the .json to write"],
    way: Annotated[
        str, "upstream: a model that we may have no table of", ("own", "upstream")
    ] = "own",
) -> None:
    try:
        found = ours(config_of.read_config(config, can=features.ALL))  # first: it has bounds
    except Refused:
        if way == "own":
            raise
        read_outline(config)
        found = {}
    with stderr_to_log(f"{reading}: reading by transformers"):
        theirs = (
            transformers_model.reading(config) if found else transformers_model.outline_of(config)
        )
    compare(config, found, theirs)
    with replacing(reading) as partial:
        partial.write_text(json.dumps(theirs, indent=1) + "\n")


def compare(config: Path, found: dict, theirs: Reading) -> None:
    """Refused at the first number that differs, with both."""
    for name, value in found.items():
        other = theirs[name]
        if name.endswith("frequencies"):
            near = (math.isclose(a, b, rel_tol=EQUAL) for a, b in zip(value, other, strict=False))
            at = next((n for n, same in enumerate(near) if not same), None)
            if at is None and len(value) == len(other):
                continue
            name = f"rope's frequency {at or 0} of {len(other)}"
            value, other = value[at or 0], other[at or 0]
        elif name in ("rope_scale", "attention_scale", "experts_scale"):
            if math.isclose(value, other, rel_tol=EQUAL):
                continue
        elif value == other:
            continue
        raise Refused(
            f"{config}: {name} is {other} to transformers {theirs['transformers']} and {value} to Ingot; "
            "expected one reading; if transformers saved it so, Ingot's (ingot/model) is wrong: report it"
        )


def ours(config: ModelConfig) -> dict:
    """The numbers of our reading, by the names of transformers_model.reading."""
    same = (
        "architecture", "vocab", "hidden", "layers", "ffn", "heads", "kv_heads", "head_dim", "context",
        "rms_eps", "tied", "attention_bias", "mlp_bias", "rope_theta",
    )  # fmt: skip
    scale, experts, sliding = 1.0, config.experts, config.sliding
    if isinstance(config.rope, YarnRope):
        scale = config.rope.attention_factor or 0.1 * math.log(max(config.rope.factor, 1)) + 1
        scale = 1.0 if config.rope.scores else scale
    if isinstance(config.rope, LongRope):
        scale = config.rope.attention_factor
    return {
        **{name: getattr(config, name) for name in same},
        "activation": config.family.activation,
        "attention_scale": config.score_scale,
        **{name: config.scale(name) for name in SCALES},
        "without_rope": config.without_rope,
        "attention_cap": config.scale("attn_logit_softcapping", 0),
        "logit_cap": config.scale("final_logit_softcapping", 0),
        "slide": config.with_window,
        "window": sliding.window if sliding else None,
        "sliding_theta": (sliding.theta if sliding else 0) or 0,
        "sliding_rope": "default",
        "experts": experts.count if experts else 0,
        "experts_used": experts.used if experts else 0,
        "expert_ffn": experts.ffn if experts else 0,
        **routed(config),
        **shared(config.latent),
        "rope_scale": scale,
        "frequencies": frequencies(config),
        "far_frequencies": far_frequencies(config),
    }


def routed(config: ModelConfig) -> dict:
    """What a router has beside its experts."""
    experts = config.experts
    if not experts or not (router := experts.router):
        return {"shared_ffn": 0, "dense_layers": 0, "groups": 0, "groups_used": 0}
    return {
        "dense_layers": router.dense,
        "shared_ffn": router.shared * experts.ffn,
        "groups": router.groups or 0,
        "groups_used": router.groups_used or 0,
        "experts_scale": router.scale,
        "experts_normed": router.normed,
        "experts_gate": router.scores or config.family.router,
    }


def shared(latent: Latent | None) -> dict:
    """Of heads that share a latent."""
    if not latent:
        return dict.fromkeys(("latent", "q_rank", "kv_rank", "value_dim"), 0)
    return {
        "latent": latent.kept,
        "q_rank": latent.q_rank or 0,
        "kv_rank": latent.kv_rank,
        "value_dim": latent.value,
    }


def frequencies(config: ModelConfig) -> list[float]:
    """Rope's, in radians by token, by what our formats say of it."""
    dim, theta, rope = config.rope_dim, config.rope_theta, config.rope
    plain = [theta ** (-i / dim) for i in range(0, dim, 2)]
    if isinstance(rope, Llama3Rope):
        return [f / by for f, by in zip(plain, rope_freqs(config), strict=True)]
    if isinstance(rope, LinearRope):
        return [f / rope.factor for f in plain]
    if isinstance(rope, LongRope):
        return [f / by for f, by in zip(plain, rope.short, strict=True)]
    if not isinstance(rope, YarnRope):
        return plain

    def turning(turns: float) -> float:
        """The dimension that turns so often within the original context."""
        return dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = turning(rope.beta_fast or 32), turning(rope.beta_slow or 1)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0, low), min(dim - 1, high)
    found = []
    for n, f in enumerate(plain):
        kept = 1 - min(1, max(0, (n - low) / max(0.001, high - low)))
        found.append(f / rope.factor * (1 - kept) + f * kept)
    return found


def far_frequencies(config: ModelConfig) -> list[float]:
    """Rope's of a text that is longer than the context that it was trained on, where they are others."""
    if not isinstance(config.rope, LongRope):
        return []
    turned = replace(config, rope=replace(config.rope, short=config.rope.long))
    return frequencies(turned)


if __name__ == "__main__":
    step(read_config)
