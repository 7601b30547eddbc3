"""What transformers makes of a config.json, by read_config.py: the second reading of every number."""

import math
from pathlib import Path
from typing import Any

from ingot.base.fields import Number, Whole, read_json
from ingot.base.refused import Refused

Reading = dict[str, Any]
SIZES = ("vocab", "hidden", "layers", "ffn", "heads", "kv_heads", "head_dim", "context")
OUTLINE = {
    "transformers": str,
    "architecture": str,
    "vocab": Whole(),
    "hidden": Whole(),
    "context": Whole(),
    "longest?": (Whole(), None),
    "window?": (Whole(), None),
    "epsilon?": (Number(above=0), None),
}
COUNT = Whole(low=0)
CAPS = ("experts", "without_rope", "slide", "attention_cap", "logit_cap")
SERVED = {  # of a model without a table, what a server's plan goes by
    **OUTLINE,
    **dict.fromkeys(("layers", "heads", "kv_heads", "head_dim"), Whole()),
    **dict.fromkeys(("attention_layers", "sliding_layers", "state_layers", "latent"), COUNT),
}
FORM = {
    **OUTLINE,
    **dict.fromkeys(SIZES, Whole()),
    "rms_eps": Number(above=0),
    "tied": bool,
    "attention_bias": bool,
    "mlp_bias": bool,
    **dict.fromkeys(
        ("attention_scale", "embedding_scale", "residual_scale", "logit_scale"), Number(above=0)
    ),
    **dict.fromkeys(("attention_cap", "logit_cap", "sliding_theta"), Number()),
    "activation": str,
    "without_rope": [COUNT],
    "slide": [COUNT],
    **dict.fromkeys(("experts", "experts_used", "expert_ffn"), COUNT),
    **dict.fromkeys(("every_window", "original_context"), COUNT),
    # of latent attention; and of a router: layers before it, channels of shared experts
    **dict.fromkeys(("latent", "q_rank", "kv_rank", "value_dim"), COUNT),
    **dict.fromkeys(("dense_layers", "shared_ffn", "groups", "groups_used"), COUNT),
    "experts_scale": Number(),
    "experts_normed": bool,
    "experts_gate": str,
    "rope_type": str,
    "rope_theta": Number(above=0),
    "rope_scale": Number(above=0),
    "frequencies": [Number()],
    "far_frequencies": [Number()],
}


def read(path: Path) -> Reading:
    return read_json(path, FORM)


def outline(path: Path) -> Reading:
    """Of any model: what references are made by, and the few numbers that no run of the model shows."""
    return read_json(path, OUTLINE)


def served(path: Path) -> Reading:
    """Of a model without a table: heads, layers that keep keys and values, what is joined of them."""
    return read_json(path, SERVED)


def hold_plain(path: Path, model: Reading, can: tuple[str, ...] = ()) -> None:
    """Refuse, of a format that cannot say them, the record of a model with biases, experts or another rope.

    `can` are those of them that it can say.
    """
    for name in ("attention_bias", "mlp_bias"):
        if model[name] and name not in can:
            raise Refused(
                f"{path}: its source has {name}, expected none: this format cannot say it"
            )
    plain = model["head_dim"] ** -0.5
    odd = [
        name for name in ("embedding_scale", "residual_scale", "logit_scale") if model[name] != 1
    ]
    odd += ["attention_scale"] if not math.isclose(model["attention_scale"], plain) else []
    odd += [name for name in CAPS if model[name] and name not in can]
    odd += ["activation"] if model["activation"] != "silu" else []
    odd += ["frequencies"] if 2 * len(model["frequencies"]) != model["head_dim"] else []
    if odd:
        raise Refused(
            f"{path}: its source has {odd[0]} of {model[odd[0]]}, expected none: this format cannot say it"
        )
    if model["rope_type"] not in ("default", "llama3") or model["rope_scale"] != 1:
        raise Refused(
            f"{path}: its source's rope is {model['rope_type']}, expected default or llama3: this format "
            "cannot say another"
        )
