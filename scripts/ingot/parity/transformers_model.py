"""A checkpoint in the newest transformers, as its users load it: AutoConfig, AutoModelForCausalLM, float32.

Nothing here reads config.json: what transformers makes of it is what records compare with.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingot.base.refused import Refused
from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.outline import ENDLESS
from ingot.parity import multiplied
from ingot.parity.reading import Reading

# or transformers asks at a terminal, and would run the checkpoint's code
OURS = {"trust_remote_code": False}


def load(checkpoint: Checkpoint):
    """The model, for inference.  Refused where a tensor is missing, of another shape, or one too many."""
    import torch
    from transformers import AutoConfig

    base, adapter = checkpoint.apart()
    with base.as_folder() as folder, understood(checkpoint["config.json"]):
        config = AutoConfig.from_pretrained(folder, **OURS)
        kind, place, more = kind_of(config), str(folder), {}
        if block := multiplied.block_of(folder):
            del config.quantization_config
            with torch.device("meta"):
                kind = type(kind.from_config(config))
            place, more = None, {"config": config, "state_dict": multiplied.state_of(folder, block)}
        # as it is stored: an adapter is merged into it by the rounding that its users have
        dtype = _stored(folder) if adapter else torch.float32
        model, found = kind.from_pretrained(
            place, dtype=dtype, use_safetensors=True, output_loading_info=True, **OURS, **more
        )
    hold_whole(checkpoint, found)
    return _merged(model, adapter).float().eval() if adapter else model.eval()


def hold_whole(what: Checkpoint | Path, found: dict) -> None:
    """Refuse what transformers' own loader found odd."""
    for fault in ("missing", "mismatched", "unexpected"):
        if names := sorted(str(name) for name in found[f"{fault}_keys"]):
            raise Refused(f"{what}: tensor {names[0]} is {fault}, by transformers' own loader")


def _stored(folder: Path):
    """The dtype of most weights of a checkpoint."""
    from collections import Counter

    import torch
    from safetensors import safe_open

    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("model*.safetensors")):
        with safe_open(path, "pt") as shard:
            counts.update(shard.get_slice(name).get_dtype() for name in shard.keys())  # noqa: SIM118
    names = {"BF16": torch.bfloat16, "F16": torch.float16}
    return names.get(counts.most_common(1)[0][0], torch.float32)


def _merged(model, adapter: Checkpoint):
    """The model with an adapter, by PEFT.  Refused where it leaves a part of it out."""
    import warnings

    from peft import PeftModel

    with adapter.as_folder() as folder, understood(adapter[ADAPTER]), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*adapter keys")
        return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()


def without_weights(config: Path):
    """The model that config.json describes; its weights take no memory."""
    import torch
    from transformers import AutoConfig

    with understood(config):
        found = AutoConfig.from_pretrained(config, **OURS)
        with torch.device("meta"):
            return kind_of(found).from_config(found)


def kind_of(config):
    """The class that loads it: of a model that also sees or hears, the one with all of its parts."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    named = (config.architectures or [""])[0]
    whole = named.endswith("ForConditionalGeneration")
    return AutoModelForImageTextToText if whole else AutoModelForCausalLM


def outline(model) -> Reading:
    """What transformers knows of any model; `context` is in tokens, `epsilon` that of its RMS norms.

    `longest` is the context that its configuration says, if any.
    """
    import transformers

    said, embedding = model.config.get_text_config(), model.get_input_embeddings()
    return {
        "transformers": transformers.__version__,
        "architecture": type(model).__name__,
        "vocab": embedding.num_embeddings,
        "hidden": embedding.embedding_dim,
        "context": getattr(said, "max_position_embeddings", None) or ENDLESS,
        "longest": getattr(said, "max_position_embeddings", None),
        "epsilon": getattr(said, "rms_norm_eps", None),
        **_cached(said),
    }


def outline_of(config: Path) -> Reading:
    """The same by config.json alone."""
    with understood(config):
        return outline(without_weights(config))


def reads_padded(model) -> bool:
    """Does a prompt that is padded to the length of another's give what it gives alone?

    Not where a state runs through the padding, where a layer counts in blocks from its beginning, or where
    the longest prompt decides the rope of all.
    """
    said = model.config.get_text_config()
    rope = getattr(said, "rope_parameters", None) or {}
    ropes = {one.get("rope_type") for one in (rope, *rope.values()) if isinstance(one, dict)}
    return {*_kinds(said)} <= {*MASKED} and not ropes & {"longrope", "dynamic"}


SLIDING = "sliding_attention"
FULL = "full_attention"
FIELDS = (  # that no module has as its own
    "sliding_window", "layer_types", "logits_scaling", "attn_logit_softcapping", "final_logit_softcapping",
    "hidden_activation",
)  # fmt: skip
# layer types of transformers' configurations that keep no keys and values: a state, or nothing
MASKED = (FULL, SLIDING, "chunked_attention")  # of whose attention masks keep padding out
STATES = ("linear_attention", "mamba", "conv", "recurrent")
NEITHER = ("moe", "mlp")


def _cached(said) -> Reading:
    """What decides how much memory a token takes; `latent`: its values in a layer where they are joined."""
    layers, heads = said.num_hidden_layers, _largest(said, "num_attention_heads")
    kinds, window = _kinds(said), getattr(said, "sliding_window", None)
    longest = getattr(said, "max_position_embeddings", None)
    heads = heads or 1
    latent = getattr(said, "kv_lora_rank", None)
    return {
        "layers": layers,
        "heads": heads,
        "kv_heads": _largest(said, "num_key_value_heads") or heads,
        "head_dim": _largest(said, "head_dim") or said.hidden_size // heads,
        "attention_layers": sum(kind not in (*STATES, *NEITHER) for kind in kinds),
        "state_layers": sum(kind in STATES for kind in kinds),
        "sliding_layers": kinds.count(SLIDING),
        "window": window if window and SLIDING in kinds and window < (longest or ENDLESS) else None,
        "latent": latent + said.qk_rope_head_dim if latent else 0,
    }


def _kinds(said) -> list[str]:
    """The kind of each layer."""
    if kinds := getattr(said, "layer_types", None):
        return kinds
    usual = FULL if _largest(said, "num_attention_heads") else "mamba"
    if getattr(said, "sliding_window", None) and usual == FULL:
        usual = SLIDING  # of a family without kinds of layers, such as Mixtral, each has it
    return [usual] * said.num_hidden_layers


def _largest(said, name: str) -> int | None:
    """A number of a configuration; where it differs between layers, as Gemma 4's, the largest of them."""
    try:
        return getattr(said, name, None)
    except Exception:  # transformers' own, of no public name
        layers = range(said.num_hidden_layers)
        return max(getattr(said.per_layer_config[n], name) for n in layers)


def reading(config: Path) -> Reading:
    """Every number of the model that Ingot uses, as transformers' modules have it.

    `context` is in tokens: where a window ends it, the window.  `frequencies` are rope's, in radians by
    token; `rope_scale` is what its sines and cosines are multiplied by.
    """
    import transformers

    model = without_weights(config)
    with understood(config):
        inner, theirs = model.get_decoder(), model.config.get_text_config()
        layer = inner.layers[0]
        attention, rope = layer.self_attn, _rotary(inner, theirs)
        biases = {name for name, _ in layer.named_parameters() if name.endswith(".bias")}
        # a field of its family, or else a key of the file that no module reads
        known = {key: getattr(theirs, key) for key in FIELDS if hasattr(type(theirs), key)}
        kinds = known.get("layer_types") or []
        slide = [n for n, kind in enumerate(kinds) if kind == SLIDING]
        window = known.get("sliding_window")
        spans = [theirs.max_position_embeddings]
        spans += [window] if window is not None and not kinds else []
        activation = known.get("hidden_activation") or theirs.hidden_act
        return {
            "transformers": transformers.__version__,
            "architecture": type(model).__name__,
            "vocab": inner.embed_tokens.num_embeddings,
            "hidden": inner.embed_tokens.embedding_dim,
            "layers": len(inner.layers),
            "ffn": theirs.intermediate_size,
            **_heads(attention),
            **_latent(attention),
            "context": min(spans),
            "rms_eps": _epsilon(inner.norm),
            "epsilon": _epsilon(inner.norm),
            "longest": min(spans),
            "activation": {"swish": "silu"}.get(activation, activation),
            "tied": model.config.tie_word_embeddings,
            "attention_bias": "self_attn.q_proj.bias" in biases,
            "mlp_bias": any(name.startswith("mlp.") for name in biases - {"mlp.router.bias"}),
            "attention_scale": attention.scaling,
            "embedding_scale": getattr(inner, "embedding_multiplier", 1.0),
            "residual_scale": getattr(layer, "residual_multiplier", 1.0),
            "logit_scale": known.get("logits_scaling") or 1.0,
            "attention_cap": known.get("attn_logit_softcapping") or 0,
            "logit_cap": known.get("final_logit_softcapping") or 0,
            "without_rope": [n for n, one in enumerate(inner.layers) if not _turns(one)],
            "slide": slide,
            "window": window if slide else None,
            "every_window": 0 if kinds else window or 0,
            **_experts(inner.layers[-1].mlp),
            "dense_layers": _dense(inner.layers),
            **_rope(theirs.rope_parameters, rope, slide),
        }


def _epsilon(norm) -> float:
    found = getattr(norm, "variance_epsilon", None)
    return norm.eps if found is None else found


def _rotary(inner, theirs):
    """Its rope; of one with kinds of layers that of both, though a tiny one has no layer that sees all."""
    if hasattr(inner.rotary_emb, "layer_types"):
        theirs = copy.deepcopy(theirs)
        theirs.layer_types = [SLIDING, FULL]
    return type(inner.rotary_emb)(theirs)


def _rope(said: dict, rope, slide: list[int]) -> Reading:
    """Of the layers that see all; and the base of those that slide, where it is another."""
    apart = hasattr(rope, f"{FULL}_inv_freq")
    mine, at = (said[FULL], f"{FULL}_") if apart else (said, "")
    original = mine.get("original_max_position_embeddings") or 0
    return {
        "rope_type": mine["rope_type"],
        "rope_theta": mine["rope_theta"],
        "rope_scale": float(getattr(rope, f"{at}attention_scaling")),
        "frequencies": getattr(rope, f"{at}inv_freq").tolist(),
        "original_context": original,
        "far_frequencies": _far(rope, original) if mine["rope_type"] == "longrope" else [],
        "sliding_theta": said[SLIDING]["rope_theta"] if apart and slide else 0,
        "sliding_rope": said[SLIDING]["rope_type"] if apart and slide else "default",
    }


def _far(rope, original: int) -> list[float]:
    """Rope's frequencies of a text that is longer than the context of before, by turning one."""
    import torch

    rope(torch.zeros(1), torch.tensor([[original]]))
    return rope.inv_freq.tolist()


def _heads(attention) -> Reading:
    """How many of queries, and of keys and values, whether their weights are joined or not."""
    if hasattr(attention, "kv_lora_rank"):
        heads, size = attention.num_heads, attention.qk_head_dim
        kv_heads = heads // attention.num_key_value_groups
        return {"heads": heads, "kv_heads": kv_heads, "head_dim": size}
    size, joined = attention.head_dim, getattr(attention, "qkv_proj", None)
    if joined is None:
        rows = attention.q_proj.out_features, attention.k_proj.out_features
    else:
        queries = attention.o_proj.in_features
        rows = queries, (joined.out_features - queries) // 2
    return {"heads": rows[0] // size, "kv_heads": rows[1] // size, "head_dim": size}


def _latent(attention) -> Reading:
    """Of heads that share a latent: what they keep of a token, and how long the latents and values are."""
    if not (rank := getattr(attention, "kv_lora_rank", 0)):
        return dict.fromkeys(("latent", "q_rank", "kv_rank", "value_dim"), 0)
    return {
        "latent": rank + attention.qk_rope_head_dim,
        "q_rank": attention.q_lora_rank or 0,
        "kv_rank": rank,
        "value_dim": attention.v_head_dim,
    }


def _dense(layers) -> int:
    """How many of the first have no experts, though others have."""
    held = [hasattr(one.mlp, "experts") for one in layers]
    return held.index(True) if True in held else 0


def _turns(layer) -> bool:
    """Has its attention rope?"""
    return bool(getattr(layer.self_attn, "use_rope", True))


def _experts(mlp) -> Reading:
    """How many, how many of them a token goes through, channels of each: 0 of a dense layer."""
    plain = {"experts_scale": 1.0, "experts_normed": False, "experts_gate": ""}
    plain |= dict.fromkeys(("shared_ffn", "groups", "groups_used"), 0)
    if not (held := getattr(mlp, "experts", None)):
        return plain | dict.fromkeys(("experts", "experts_used", "expert_ffn"), 0)
    count, *sizes = held.gate_up_proj.shape
    both = sizes[-1 if held.is_transposed else 0]
    router = getattr(mlp, "gate", None) or mlp.router
    found = {"experts": count, "experts_used": router.top_k, "expert_ffn": both // 2}
    if shared := getattr(mlp, "shared_experts", None):
        groups = router.num_group or 0
        plain |= {
            "shared_ffn": shared.intermediate_size,
            "groups": groups,
            "groups_used": router.topk_group or 0,
            "experts_scale": float(router.routed_scaling_factor),
            "experts_normed": bool(getattr(router, "norm_topk_prob", False)),
            # the class that corrects scores before it chooses takes sigmoids
            "experts_gate": "sigmoid" if hasattr(router, "e_score_correction_bias") else "softmax",
        }
    return found | plain


@contextmanager
def understood(config: Path) -> Iterator[None]:
    """What transformers cannot load ends in one line, of its version and its own words."""
    try:
        yield
    except Exception as error:
        if isinstance(error, Refused | MemoryError) or getattr(error, "errno", None):
            raise
        import transformers

        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise Refused(
            f"{config}: transformers {transformers.__version__} cannot load it ({words:.300}), expected a "
            "model that it runs"
        ) from None
