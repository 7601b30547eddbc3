"""What Ingot knows of a family of models: one table a family, which every reader and writer goes by.

What config.json says (config.py), which tensors a checkpoint and a GGUF file hold (specs.py), GGUF's keys.
"""

from dataclasses import dataclass, field

# of a tensor [out, in]: hidden, ffn, head (head_dim), q (heads * head_dim), kv (kv_heads * head_dim),
# heads and experts (how many), expert (channels of each); qkv and gate_up are the rows of joined weights.
# Of latent attention: q_rank and kv_rank (values of a latent), qk (of all heads' queries; q_whole where
# they have no latent), plain (of a head's key, those without rope), value (of a head's), attended (of all
# heads' values), kv_a (the latent of keys and values, and what rope turns).
# dense: the channels of a layer without experts; shared: those of experts that each token goes through.
# A weight of which a size is 0 is not there.
Sizes = tuple[str, ...]

# the keys of GGUF that its converter writes, below the architecture's name or whole, in their order
KEYS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "rope.scaling", "rope.freq_base", "attention.layer_norm_rms_epsilon",
    "expert_count", "expert_used_count", "attention.key_length", "attention.value_length",
    "general.file_type", "vocab_size", "rope.dimension_count", "expert_feed_forward_length",
    "attention.scale", "embedding_scale", "residual_scale", "logit_scale", "general.quantization_version",
)  # fmt: skip

# what config.json says of a router, and of latent attention
ROUTED = (
    "n_shared_experts", "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor",
    "norm_topk_prob", "scoring_func",
)  # fmt: skip
LATENT = (
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "num_nextn_predict_layers",
)  # fmt: skip
OF_ALL = ("attention_bias", "tie_word_embeddings")  # which config.py reads of every family


def without(*words: str) -> tuple[str, ...]:
    """KEYS without these."""
    return tuple(key for key in KEYS if key not in words)


@dataclass(frozen=True)
class Weight:
    """One tensor of a layer: `.weight` of this name, and `.bias` where it has one.

    {} in the name stands for each expert: GGUF has one tensor of them all, [expert, out, in].
    """

    gguf: str  # its name there, below blk.N.
    shape: Sizes  # of one expert's, of those
    # heads or kv_heads: GGUF interleaves the two halves of each head's rows, for its rope; empty: its rope
    # turns halves, as the writers of other formats suppose
    heads: str = ""
    bias: str = ""  # the key of config.json that says whether it has one; "": it has none
    float32: bool = False  # in GGUF, at any dtype of the file
    whole: bool = False  # are both its names whole, without `.weight` behind them?


@dataclass(frozen=True)
class Stack:
    """All experts of a layer as one tensor [expert, in, out], or as MXFP4 of [expert, out, in].

    Behind its name stands `_bias`, `_blocks` or `_scales`, never `.weight`.
    """

    gguf: str  # its name there, below blk.N.
    shape: Sizes  # of one expert's there: [out, in]
    first: int = 0  # of each `step` outputs in the checkpoint, the one that this is
    step: int = 1


@dataclass(frozen=True)
class Part:
    """Of each head's rows of a weight some: GGUF has them as a tensor of its own, [head, out, in]."""

    gguf: str  # its name there, below blk.N.
    shape: Sizes  # of one head's there: [out, in]
    every: Sizes  # whose sum are the rows of each head in the checkpoint
    first: Sizes = ()  # and those of them in front of these
    turned: bool = False  # are its rows in the checkpoint the columns there?


@dataclass(frozen=True)
class Family:
    """What a family has is said here; what a field leaves out is as Llama's."""

    architecture: str  # of config.json's `architectures`
    model_type: str  # of config.json
    gguf: str  # general.architecture there, and the first word of its keys
    layer: dict[str, Weight]  # by name below model.layers.N., in the order of the computation
    stacks: tuple[tuple[str, Stack], ...] = ()  # by the same names, which may come more than once
    parts: tuple[tuple[str, Part], ...] = ()  # alike
    needs: tuple[str, ...] = ()  # of features.FEATURES, whatever config.json says

    # what config.json says
    inner: str = ""  # the key below which its part for text is
    always: tuple[
        str, ...
    ] = ()  # keys that are true whatever it says: the family's modules have them
    neutral: dict[str, tuple] = field(default_factory=dict)  # more of known_fields.NEUTRAL
    says: dict[str, object] = field(default_factory=dict)  # what it must say, of a default
    # what transformers takes where a key is missing; of null, `default_` is taken, too
    defaults: dict[str, object] = field(default_factory=dict)
    default_theta: float = 10000.0  # of rope
    default_head_dim: int | None = None  # None: hidden / heads
    default_window: int | None = None  # tokens
    counts_kv_heads: bool = True  # may num_key_value_heads be left out, as many as heads?
    ends_at_window: bool = (
        False  # does `sliding_window` end its context?  Beyond, no format is right
    )

    # must config.json say a scaling of rope, or `default`?  transformers has its own where it does not
    says_rope: bool = False

    # its arithmetic
    activation: str = "silu"
    experts: str = ""  # the key of config.json for the channels of each, of one that has them
    counts: tuple[str, ...] = ("num_experts", "num_local_experts")  # keys that may say how many
    # how a router weighs them, of one that says more of it than how many; "softmax" or "sigmoid"
    router: str = ""
    latent: bool = False  # are keys and values of all heads one latent, and q perhaps another?
    scales: dict[str, str] = field(default_factory=dict)  # GGUF's key -> that of config.json
    turns_part: bool = False  # may rope turn a part of each head alone?
    rope_skips: int = 0  # of so many layers the last has no rope: no_rope_layers
    sliding_every: int = (
        0  # of so many layers the last sees all, the others `sliding_window` tokens
    )
    # may YaRN's bounds be no whole numbers?  libllama rounds them: a KL of 3e-4 of one random model
    rounds_yarn: bool = False
    norm_plus: float = 0.0  # what its norms add to their weights, which GGUF holds with it
    root_embedding: bool = False  # are embeddings multiplied by the root of hidden?

    # GGUF, and libllama
    gguf_keys: tuple[str, ...] = KEYS
    names_head_dim: bool = True  # does our GGUF name it though config.json does not?
    says_prefix_space: bool = True  # does GGUF say add_prefix_space of tokenizer_config.json?
    no_prefix_space: bool = False  # does GGUF say that no space is put before a text?
    plain_added: bool = False  # is an added token of a SentencePiece vocabulary just what it says?
    llama3_rope: bool = False  # has GGUF the tensor of Llama 3.1's scaling?
    # where GGUF has the two tensors of LongRoPE: the context it was trained on, if config.json says none
    long_rope: int | None = None
    divides_heads: bool = False  # is head_dim hidden / heads to libllama, whatever is said?
    wide_at: int = (
        0  # of so many layers libllama divides scores by hidden / heads, of others by head_dim
    )

    # more of TensorRT-LLM's config.json; None where none is made
    trtllm: dict[str, str] | None = None

    @property
    def biases(self) -> tuple[str, ...]:
        """The keys that its layers go by."""
        return tuple(dict.fromkeys(one.bias for one in self.layer.values() if one.bias))

    @property
    def reads(self) -> tuple[str, ...]:
        """Keys of config.json that are other arithmetic of other families, and honoured of this."""
        ropes = ("no_rope_layers", "no_rope_layer_interval") if self.rope_skips else ()
        counts: tuple[str, ...] = ()
        if self.experts:
            counts = (*self.counts, "num_experts_per_tok", self.experts)
        if self.router:
            counts += ROUTED
        latent = LATENT if self.latent else ()
        windows: tuple[str, ...] = ()
        if self.sliding_every:
            windows = (
                "layer_types",
                "sliding_window_pattern",
                "_sliding_window_pattern",
                "rope_local_base_freq",
            )
        scores = ("query_pre_attn_scalar",) if self.wide_at else ()
        part = ("partial_rotary_factor",) if self.turns_part else ()
        said = (key for key in self.says if key not in OF_ALL)
        return (
            *said, *self.scales.values(), *counts, *ropes, *windows, *scores, *part, *latent,
        )  # fmt: skip
