"""What a model may need of a format that not every format can express.

Each format has a constant CAN of these words.  Its steps ask it when they read config.json, and its row of
the driver's table has it for `ingot add`, `ingot targets` and a dry run: one answer, before anything is
fetched.
"""

from collections.abc import Collection

BIASES = ("attention_bias", "mlp_bias")
FEATURES = {  # word -> as config.json says it
    "attention_bias": "attention_bias is true",
    "mlp_bias": "mlp_bias is true",
    "qkv_bias": "q, k and v have biases",
    "qk_norm": "its layers norm each head of q and k",
    "experts": "its layers have experts",
    "rope_skips": "some of its layers have no rope",
    "windows": "some of its layers see a window",
    "sinks": "its attention has sinks",
    "mxfp4": "its experts are MXFP4 already",
    "fp8": "its weights are FP8 already",
    "latent": "its heads share a latent",
    "scales": "it scales what its layers add, and its logits",
    "norms_behind": "its layers norm what they add",
    "joined": "q, k and v are one weight of its layers",
    "own_gguf": "GGUF has an architecture of its own for its family",
    "linear": "rope_type is linear",
    "yarn": "rope_type is yarn",
    "longrope": "rope_type is longrope",
    "part_rope": "rope turns a part of each head",
    "no_table": "config.json is of a family that Ingot has no table of",
    "adapter": "an adapter is merged into it",  # as its catalogue's entry says
}
ADAPTER = "adapter"
ALL = tuple(word for word in FEATURES if word != ADAPTER)  # that a config.json may say


def lacking(needs: Collection[str], can: Collection[str]) -> str | None:
    """The first need that is not among `can`, in config.json's words; None where there is none."""
    return next((FEATURES[word] for word in FEATURES if word in needs and word not in can), None)
