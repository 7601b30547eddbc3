"""What Ingot knows of a family of models: one table a family, which every reader and writer goes by.

What config.json says (config.py), which tensors a checkpoint and a GGUF file hold (specs.py), GGUF's keys.
"""

from dataclasses import dataclass, field

# of a tensor [out, in]: hidden, ffn, head (head_dim), q (heads * head_dim), kv (kv_heads * head_dim)
Sizes = tuple[str, ...]


@dataclass(frozen=True)
class Weight:
    """One tensor of a layer: `.weight` of this name, and `.bias` where it has one."""

    gguf: str  # its name there, below blk.N.
    shape: Sizes
    heads: str = (
        ""  # heads or kv_heads: GGUF interleaves the two halves of each head's rows, for its rope
    )
    bias: str = ""  # the key of config.json that says whether it has one; "": it has none


@dataclass(frozen=True)
class Family:
    architecture: str  # of config.json's `architectures`
    model_type: str  # of config.json
    gguf: str  # general.architecture there, and the first word of its keys
    layer: dict[str, Weight]  # by name below model.layers.N., in the order of the computation
    gguf_lacks: tuple[
        str, ...
    ] = ()  # of metadata.hyperparameters, what llama.cpp's converter writes none of
    says_prefix_space: bool = True  # does GGUF say add_prefix_space of tokenizer_config.json?
    needs: tuple[str, ...] = ()  # of features.FEATURES, whatever config.json says
    always: tuple[
        str, ...
    ] = ()  # keys that are true whatever config.json says: its modules have them
    neutral: dict[str, tuple] = field(default_factory=dict)  # more of known_fields.NEUTRAL
    ends_at_window: bool = (
        False  # does `sliding_window` end its context, beyond which no format is right?
    )
    default_window: int | None = (
        None  # tokens, that transformers takes where config.json names none
    )
    # more of TensorRT-LLM's config.json; None where that has no class for it
    trtllm: dict[str, str] | None = None
    counts_kv_heads: bool = True  # may num_key_value_heads be left out, as many as heads?
    default_head_dim: int | None = None  # what transformers takes where config.json names none
    names_head_dim: bool = True  # does GGUF name it though config.json does not?

    @property
    def biases(self) -> tuple[str, ...]:
        """The keys that its layers go by."""
        return tuple(dict.fromkeys(one.bias for one in self.layer.values() if one.bias))
