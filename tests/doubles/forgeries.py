"""Wrong makers: one edit each of scripts/.  forging.py runs them.

Of a table, a permutation or a number that maker and verification might share.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

ALL = ("gguf", "ranks", "trtllm-ckpt", "onnx")


@dataclass(frozen=True)
class Forgery:
    """`changes` are (old, new) in `file`, below scripts/ingot/; `kinds` those that it makes wrong."""

    name: str
    kinds: tuple[str, ...]
    file: str
    changes: tuple[tuple[str, str], ...]
    of: str = "demo"  # the checkpoint that is read: the demo, as it is or in float32, or of families.SHAPES


def _list() -> Iterator[Forgery]:
    def of(kinds, file, name, *changes):
        return Forgery(name, kinds, file, changes)

    config, rope, tables = "model/config.py", "model/rope.py", "model/families/llama.py"
    numbers, ranks = "formats/gguf/metadata.py", "formats/iree/tensor_parallel.py"
    checkpoint = "formats/tensorrt/trtllm.py"
    graph, archive = "formats/onnx/decoder.py", "formats/iree/irpa.py"
    attention = "formats/onnx/attention.py"
    both = ("gguf", "ranks")
    tokens, special = "formats/gguf/vocabulary.py", "formats/gguf/special.py"
    folder = "formats/onnx/folder.py"
    yield of(
        ALL, config, "the base of rope is doubled", ("rope_theta=theta,", "rope_theta=2 * theta,")
    )
    yield of(
        ALL,
        config,
        "epsilon is ten times as large",
        ('rms_eps=config["rms_norm_eps"],', 'rms_eps=10 * config["rms_norm_eps"],'),
    )
    yield of(
        ALL,
        config,
        "half of the context is read",
        ("_context(path, config, family),", "_context(path, config, family) // 2,"),
    )
    yield of(
        ("gguf", "trtllm-ckpt", "onnx"),  # of a set it is the program that scales
        rope,
        "the factor of Llama 3.1's rope is doubled",
        (
            "Llama3Rope(*(float(scaling[key])",
            'Llama3Rope(*(float(scaling[key]) * (1 + (key == "factor"))',
        ),
    )
    yield of(
        ("gguf", "trtllm-ckpt", "onnx"),  # of a set it is the program that scales
        rope,
        "the scaling of rope is dropped",
        ("    return theta, rope\n", "    return theta, None\n"),
    )
    yield of(
        both,
        tables,
        "gate and up are exchanged",
        ('gate_proj": Weight("ffn_gate"', 'gate_proj": Weight("ffn_up"'),
        ('up_proj": Weight("ffn_up"', 'up_proj": Weight("ffn_gate"'),
    )
    yield of(
        both,
        tables,
        "the norms of a layer are exchanged",
        ('"input_layernorm": Weight("attn_norm"', '"input_layernorm": Weight("ffn_norm"'),
        ('attention_layernorm": Weight("ffn_norm"', 'attention_layernorm": Weight("attn_norm"'),
    )
    yield of(
        both,
        tables,
        "k is not put in the order of pairs",
        ('("kv", "hidden"), "kv_heads", ', '("kv", "hidden"), "", '),
    )
    yield of(
        both,
        tables,
        "q is not put in the order of pairs",
        ('("q", "hidden"), "heads", ', '("q", "hidden"), "", '),
    )
    yield of(
        both,
        tables,
        "v is put in the order of pairs too",
        ('"attn_v", ("kv", "hidden"), bias', '"attn_v", ("kv", "hidden"), "kv_heads", bias'),
    )
    yield of(
        ("gguf",),
        "model/specs.py",
        "long wavelengths are not divided",
        ("factors.append(rope.factor)", "factors.append(1.0)"),
    )
    yield of(
        both,
        "model/tensors/cast.py",
        "the order of pairs is that of one head of all",
        (
            "bits.reshape(-1, 2, head_dim // 2, bits.shape[-1])",
            "bits.reshape(1, 2, -1, bits.shape[-1])",
        ),
    )
    yield of(
        both,
        numbers,
        "the base of rope is written as 10000",
        (
            '"rope.freq_base": c.rope_theta,',
            '"rope.freq_base": 10000.0,',
        ),
    )
    yield of(
        both,
        numbers,
        "twice the context is written",
        (
            '"context_length": c.context,',
            '"context_length": 2 * c.context,',
        ),
    )
    yield of(
        both,
        numbers,
        "another epsilon is written",
        ('_epsilon": c.rms_eps,', '_epsilon": 1e-3,'),
    )
    yield of(
        both,
        numbers,
        "as many KV heads as heads are written",
        (
            '"attention.head_count_kv": c.kv_heads,',
            '"attention.head_count_kv": c.heads,',
        ),
    )
    yield of(
        ("gguf",),
        tokens,
        "two tokens are exchanged",
        (
            "    text_of, added = _texts(path, tokenizer, config)\n    tokens, types",
            "    text_of, added = _texts(path, tokenizer, config)\n"
            "    text_of[5], text_of[50] = text_of[50], text_of[5]\n    tokens, types",
        ),
    )
    yield of(
        ("gguf",),
        special,
        "an answer ends elsewhere",
        ('_token_id", "u32", n) for', '_token_id", "u32", n - 5 * (kind == "eos")) for'),
    )
    yield of(
        ("gguf",),
        tokens,
        "special tokens are the user's",
        ("return text, CONTROL", "return text, 4"),
    )
    yield of(
        ("onnx",),
        folder,
        "an answer ends elsewhere",
        ('"eos_token_id": ends,', '"eos_token_id": [3],'),
    )
    yield of(
        ("onnx",),
        folder,
        "twice the context is said",
        ('"context_length": config.context,', '"context_length": 2 * config.context,'),
    )
    yield of(
        ("ranks",), ranks, "o is cut along its outputs", ('"attn_output": 1', '"attn_output": 0')
    )
    yield of(("ranks",), ranks, "down is cut along its outputs", ('"ffn_down": 1', '"ffn_down": 0'))
    yield of(("ranks",), ranks, "the head is whole", ('    "output": 1,\n', ""))
    yield of(
        ("ranks",),
        ranks,
        "the root says another base of rope",
        ('float(of("rope.freq_base", 500000.0))', "10000.0"),
    )
    yield of(
        ("ranks",),
        ranks,
        "the root says another length of a page",
        ('"block_seq_stride": 32', '"block_seq_stride": 16'),
    )
    yield of(
        ("ranks", "irpa"),
        archive,
        "the header says version 1.0",
        ('b"IRPA", 0, 0,', 'b"IRPA", 1, 0,'),
    )
    yield of(
        ("ranks", "irpa"),
        archive,
        "the header says no size",
        ("0, 0, HEADER.size, 0, 0,", "0, 0, 0, 0, 0,"),
    )
    yield of(
        ("ranks", "irpa"),
        archive,
        "torch would read another dtype",
        ('{"type": "Tensor", "dtype": word,', '{"type": "Tensor", "dtype": "int8",'),
    )
    yield of(
        ("irpa",),
        archive,
        "tensors are of a type that sharktank does not know",
        ('{"type_name": "PrimitiveTensor"}', '{"type_name": "RawTensor"}'),
    )
    yield of(
        ("trtllm-ckpt",),
        checkpoint,
        "fc and gate are exchanged",
        ('f"{here}.mlp.fc", stage, 0)  # sic', 'f"{here}.mlp.x", stage, 0)'),
        ('f"{here}.mlp.gate", stage, 0)', 'f"{here}.mlp.fc", stage, 0)'),
        ('f"{here}.mlp.x", stage, 0)', 'f"{here}.mlp.gate", stage, 0)'),
    )
    yield of(
        ("trtllm-ckpt",),
        checkpoint,
        "the norms of a layer are exchanged",
        (
            'add(f"{there}.input_layernorm", (c.hidden,), f"{here}.input_layernorm", stage)',
            'add(f"{there}.post_attention_layernorm", (c.hidden,), f"{here}.input_layernorm", stage)',
        ),
        (
            'f"{there}.post_attention_layernorm", (c.hidden,), f"{here}.post_layernorm", stage',
            'f"{there}.input_layernorm", (c.hidden,), f"{here}.post_layernorm", stage',
        ),
    )
    yield of(
        ("trtllm-ckpt",),
        checkpoint,
        "k and v are exchanged",
        ('f"{attention}.k_proj"', 'f"{attention}.z_proj"'),
        ('f"{attention}.v_proj"', 'f"{attention}.k_proj"'),
        ('f"{attention}.z_proj"', 'f"{attention}.v_proj"'),
    )
    yield of(
        ("trtllm-ckpt",),
        checkpoint,
        "another base of rope is written",
        ('"rotary_base": c.rope_theta', '"rotary_base": 10000.0'),
    )
    yield of(
        ("trtllm-ckpt",),
        checkpoint,
        "no scaling of rope is written",
        ('"rotary_scaling": rope', '"rotary_scaling": None'),
    )
    yield of(
        ("trtllm-ckpt",),
        checkpoint,
        "half of the context is written",
        ('"max_position_embeddings": c.context', '"max_position_embeddings": c.context // 2'),
    )
    yield of(
        ("trtllm-ckpt",),
        checkpoint,
        "another epsilon is written",
        ('"norm_epsilon": c.rms_eps', '"norm_epsilon": 1e-3'),
    )
    yield of(
        ("onnx",),
        graph,
        "gate and up are exchanged",
        ("gate, up = _parts", "up, gate = _parts"),
    )
    yield of(
        ("onnx",),
        graph,
        "the norms of a layer are exchanged",
        ('"before_attention": "input_layernorm"', '"before_attention": "z"'),
        ('else "post_attention_layernorm",', 'else "input_layernorm",'),
        ('"before_attention": "z"', '"before_attention": "post_attention_layernorm"'),
    )
    yield of(
        ("onnx",),
        attention,
        "another base of rope is computed",
        ("(local or c.rope_theta) **", "10000.0 **"),
    )
    yield of(
        ("onnx",),
        graph,
        "epsilon is ten times as large",
        ("epsilon=c.rms_eps", "epsilon=1000 * c.rms_eps"),
    )


def _of_families() -> Iterator[Forgery]:
    """What a Llama has not: biases of q, k and v, norms of each head, rows that are not in pairs."""
    graph, ranks = "formats/onnx/decoder.py", "formats/tensorrt/trtllm.py"
    qwen2, qwen3 = "model/families/qwen2.py", "model/families/qwen3.py"

    def of(checkpoint, kinds, file, name, *changes):
        return Forgery(f"{checkpoint}: {name}", kinds, file, changes, checkpoint)

    paired = ('heads="", bias=', "bias=")
    yield of("Qwen2", ("gguf",), qwen2, "q and k are put in the order of pairs", paired)
    yield of("Qwen3", ("gguf",), qwen2, "q and k are put in the order of pairs", paired)
    yield of(
        "Qwen3", ("gguf",), qwen3, "the norms of q and k are exchanged",
        ("attn_q_norm", "attn_z_norm"), ("attn_k_norm", "attn_q_norm"), ("attn_z_norm", "attn_k_norm"),
    )  # fmt: skip
    yield of(
        "Qwen3", ("onnx",), graph, "the norms of q and k are exchanged",
        ("{at}.self_attn.q_norm", "{at}.self_attn.z_norm"),
        ("{at}.self_attn.k_norm", "{at}.self_attn.q_norm"),
        ("{at}.self_attn.z_norm", "{at}.self_attn.k_norm"),
    )  # fmt: skip
    yield of(
        "Qwen3", ("onnx",), graph, "q goes on as it was before its norm",
        ("            q = by_head(", "            _ = by_head("),
    )  # fmt: skip
    yield of(
        "Qwen3", ("trtllm-ckpt",), ranks, "the norms of q and k are exchanged",
        ("attention.{name[0]}_layernorm", "attention.{'kq'[name[0] == 'k']}_layernorm"),
    )  # fmt: skip
    yield of(
        "Qwen3", ("trtllm-ckpt",), qwen3, "it is called a Qwen2",
        ('"qwen_type": "qwen3"', '"qwen_type": "qwen2"'),
    )  # fmt: skip
    yield of(
        "Qwen2", ("onnx",), "formats/onnx/weights.py", "the biases are stored, and not added",
        ('graph.node("Add", y, self.vector(bias)) if', "(self.vector(bias), y)[1] if"),
    )  # fmt: skip
    yield of(
        "Qwen2", ("trtllm-ckpt",), ranks, "the biases of k and v are exchanged",
        ("{attention}.k_proj", "{attention}.{'k' if inputs else 'v'}_proj"),
        ("{attention}.v_proj", "{attention}.{'v' if inputs else 'k'}_proj"),
    )  # fmt: skip


GPT_OSS = "gpt-oss, bfloat16 experts, transformers 5"


DEEPSEEK = "DeepSeek-V3, FP8"


def _of_latents(of: Callable, family: str, numbers: str) -> Iterator[Forgery]:
    """What DeepSeek's alone have: latents, a router's own numbers, FP8 with scales of blocks."""
    lite, scales = "DeepSeek-V2-Lite", "model/checkpoint/scales.py"
    yield of(
        "DeepSeek-V3",
        family,
        "the values of a head are its keys' rows",
        ('first=("plain",)', "first=()"),
    )
    yield of(
        "DeepSeek-V3", "model/checkpoint/head_rows.py", "keys are not turned",
        ("np.ascontiguousarray(bits.T)", "bits.reshape(bits.shape[::-1])"),
    )  # fmt: skip
    yield of(
        lite, family, "gate and up of shared experts are exchanged",
        ("ffn_gate_shexp", "zzz"), ("ffn_up_shexp", "ffn_gate_shexp"), ("zzz", "ffn_up_shexp"),
    )  # fmt: skip
    for name, old, new in (
        ("the weights of experts are not scaled", '("f32", router.scale)', '("f32", 1.0)'),
        ("the weights of experts have not the sum 1", "router.normed or None", "None"),
        ("scores do not grow with YaRN's factor", "0.1 * c.rope.scores", "0.01 * c.rope.scores"),
        (
            "one group more is looked at",
            '("u32", router.groups_used)',
            '("u32", router.groups_used + 1)',
        ),
        ("a router takes softmax", "SCORES[router.scores]", 'SCORES["softmax"]'),
        (
            "its values are as long as its keys",
            'value_length_mla": m.value',
            'value_length_mla": m.plain',
        ),
    ):
        yield of("DeepSeek-V3", numbers, name, (old, new))
    yield of(lite, numbers, "scores grow as another model's", ("0.1 * c.rope.scores", "0.1"))
    yield of(
        DEEPSEEK,
        scales,
        "rows have the scale of the block before",
        ("scales[which]", "scales[which - 1]"),
    )
    yield of(DEEPSEEK, scales, "columns have one scale", (".repeat(block[1])[:columns]", "[0]"))
    yield of(
        DEEPSEEK, "model/tensors/few_bits.py", "the smallest codes are 0",
        ("np.concatenate([_E4M3, [np.nan]", "np.concatenate([_E4M3 * (_E4M3 > 0.01), [np.nan]"),
    )  # fmt: skip


def _of_experts_in_ranks() -> Iterator[Forgery]:
    """Mixtral's, as TensorRT-LLM has them."""
    ranks = "formats/tensorrt/trtllm.py"
    for name, old, new in (
        ("gate lies before up in a rank", "enumerate((up, gate))", "enumerate((gate, up))"),
        (
            "each expert stands in the place of the next",
            "Cut(name.format(expert)",
            "Cut(name.format((expert + 1) % count)",
        ),
        (
            "experts are the second side",
            "(cut.experts, rows // cut.experts)",
            "(rows // cut.experts, cut.experts)",
        ),
        ("routers are float16", 'return "F32" if name.endswith(ROUTER) else', "return"),
        ("a token goes through one expert more", '"top_k": one.used', '"top_k": one.used + 1'),
        (
            "weights of experts have not the sum 1",
            '"normalization_mode": 1',
            '"normalization_mode": 0',
        ),
    ):
        yield Forgery(f"Mixtral: {name}", ("trtllm-ckpt",), ranks, ((old, new),), "Mixtral")


def _of_gguf_alone() -> Iterator[Forgery]:
    """Experts, layers without rope, numbers that scale, norms behind: what GGUF alone says of ours."""

    def of(checkpoint, file, name, *changes):
        return Forgery(f"{checkpoint}: {name}", ("gguf",), file, changes, checkpoint)

    def exchanged(one, other):
        return (one, "zzz"), (other, one), ("zzz", other)

    families, numbers = "model/families/{}.py", "formats/gguf/metadata.py"
    tokens = "formats/gguf/vocabulary.py"
    for checkpoint, file in (("Qwen3-MoE", "qwen3_moe"), ("Mixtral", "mixtral")):
        swap = exchanged("ffn_gate_exps", "ffn_up_exps")
        yield of(checkpoint, families.format(file), "gate and up of experts are exchanged", *swap)
    yield of(
        "Qwen3-MoE", "model/specs.py", "experts lie in the order of their names",
        ("for n in range(self.shape[0])", "for n in sorted(range(self.shape[0]), key=str)"),
    )  # fmt: skip
    yield of(
        "Qwen3-MoE", numbers, "a token goes through one expert more",
        ('_used_count": c.experts.used', '_used_count": c.experts.used + 1'),
    )  # fmt: skip
    gpt_oss, stacked = families.format("gpt_oss"), "model/checkpoint/stacked.py"
    swap = exchanged("ffn_gate_exps", "ffn_up_exps")
    yield of("gpt-oss", gpt_oss, "gate and up of experts are exchanged", *swap)
    yield of(
        "gpt-oss", "model/tensors/few_bits.py", "each byte's two codes are exchanged",
        ("(front & 0x0F) | (back << 4)", "(front >> 4) | (back & 0xF0)"),
        ("2::2] = (front >> 4) | (back & 0xF0)", "2::2] = (front & 0x0F) | (back << 4)"),
    )  # fmt: skip
    yield of(
        "gpt-oss", stacked, "a block has the scale of the next output",
        ("mine = powers[spec", "mine = np.roll(powers, -1, 0)[spec"),
    )  # fmt: skip
    yield of(
        "gpt-oss", numbers, "YaRN ends where it begins",
        ('"yarn_beta_slow": rope.beta_slow', '"yarn_beta_slow": rope.beta_fast'),
    )  # fmt: skip
    yield of(
        GPT_OSS, stacked, "experts are not turned",
        ("np.ascontiguousarray(lying.T)", "lying.reshape(some, -1)"),
    )  # fmt: skip
    yield of(
        GPT_OSS, stacked, "the biases of gate and up are joined, not every second",
        ("mine = bits[:, stack.first :: stack.step]",
         "mine = np.split(bits, stack.step, axis=1)[stack.first]"),
    )  # fmt: skip
    yield from _of_latents(of, families.format("deepseek"), numbers)
    yield of(
        "SmolLM3", families.format("smollm3"), "it is called a Llama, so each layer has rope",
        ('gguf="smollm3"', 'gguf="llama"'),
    )  # fmt: skip
    swap = exchanged('"embedding_multiplier"', '"residual_multiplier"')
    yield of("Granite", families.format("granite"), "two of its numbers are exchanged", *swap)
    yield of(
        "Granite", numbers, "its logits are not scaled",
        ("**dict(c.scales)", '**{k: one for k, one in c.scales if k != "logit_scale"}'),
    )  # fmt: skip
    gemma = families.format("gemma2")
    for checkpoint in ("Gemma 2", "Gemma 3"):
        yield of(
            checkpoint, gemma, "norms are as they are stored", ("norm_plus=1.0", "norm_plus=0.0")
        )
        swap = exchanged('"post_attention_norm"', '"post_ffw_norm"')
        yield of(checkpoint, gemma, "the norms behind are exchanged", *swap)
    yield of(
        "Gemma 2", numbers, "twice the window is written",
        ("c.sliding.window if c.sliding", "2 * c.sliding.window if c.sliding"),
    )  # fmt: skip
    yield of(
        "Gemma 3", numbers, "layers with a window have the others' rope",
        ('"rope.freq_base_swa": c.sliding.theta', '"rope.freq_base_swa": c.rope_theta'),
    )  # fmt: skip
    yield of(
        "Gemma 3", tokens, "a space is put before each text",
        ('add_space_prefix", "bool", False)', 'add_space_prefix", "bool", True)'),
    )  # fmt: skip
    swap = exchanged("post_attention_norm", "post_ffw_norm")
    yield of("OLMo 2", families.format("olmo2"), "the norms behind are exchanged", *swap)
    swap = exchanged("attn_q_norm", "attn_k_norm")
    yield of("OLMo 2", families.format("olmo2"), "the norms of q and k are exchanged", *swap)
    yield of(
        "Seed-OSS", families.format("seed_oss"), "the norms of a layer are exchanged",
        ('"post_attention_norm"}', '"attn_norm", "input_layernorm": "post_attention_norm"}'),
    )  # fmt: skip
    yield of(
        "Seed-OSS", families.format("qwen2"), "q and k are put in the order of pairs",
        ('heads="", bias=', "bias="),
    )  # fmt: skip
    long, short = "rope_factors_long.weight", "rope_factors_short.weight"
    yield of(
        "Phi-3, LongRoPE", "model/specs.py", "the factors for long texts are those for short ones",
        (f'if name == "{long}"', f'if name == "{short}"'),
    )  # fmt: skip
    yield of(
        "Phi-3, LongRoPE", numbers, "sines and cosines are not scaled",
        ('"f32", config.rope.attention_factor', '"f32", 1.0'),
    )  # fmt: skip
    yield of(
        "Phi-3, LongRoPE", numbers, "the long factors begin later",
        ('_context_length": c.original_context', '_context_length": 2 * c.original_context'),
    )  # fmt: skip
    yield of(
        "Phi-4-mini", numbers, "rope turns whole heads",
        ('"rope.dimension_count": c.rope_dim', '"rope.dimension_count": c.head_dim'),
    )  # fmt: skip


def _of_graphs() -> Iterator[Forgery]:
    """The same in our own decoder graph."""
    graph, attention = "formats/onnx/decoder.py", "formats/onnx/attention.py"

    def of(checkpoint, file, name, *changes, kind="onnx"):
        return Forgery(f"{checkpoint}: {name}", (kind,), file, changes, checkpoint)

    always = ("layer not in c.without_rope", "layer not in []")
    yield of("SmolLM3", attention, "each layer has rope", always)
    for word, name in (
        ("embedding_scale", "embeddings"), ("residual_scale", "residuals"), ("logit_scale", "logits"),
    ):  # fmt: skip
        plain = (f'c.scale("{word}"', 'c.scale("unsaid"')
        yield of("Granite", graph, f"{name} are not scaled", plain)
    usual = ("scale=c.score_scale", "scale=c.head_dim**-0.5")
    yield of("Granite", attention, "scores are scaled as usual", usual)
    for checkpoint in ("OLMo 2", "Gemma 2"):
        yield of(
            checkpoint, graph, "the norms behind are exchanged",
            ('"post_attention_layernorm" if', '"post_feedforward_layernorm" if'),
            ('"behind_mlp": "post_feedforward', '"behind_mlp": "post_attention'),
        )  # fmt: skip
    yield of(
        "Phi-3", graph, "gate and up are exchanged", ("gate, up = _parts", "up, gate = _parts")
    )
    plain = ("if c.family.norm_plus:", "if False:")
    yield of("Gemma 3", graph, "norms are as they are stored", plain)
    yield of(
        "Gemma 2", attention, "scores are not capped", ("        if cap:  #", "        if 0:  #")
    )
    yield of(
        "Gemma 2", graph, "logits are not capped", ('"final_logit_softcapping", 0)', '"unsaid", 0)')
    )
    wide = ("np.int64(c.sliding.window)", "np.int64(c.sliding.window + 1)")
    yield of("Gemma 3", attention, "a window has one token more", wide)
    wide = ('"local_window_size": c.sliding.window', '"local_window_size": c.sliding.window + 1')
    yield of("Gemma 3", attention, "a window has one token more", wide, kind="fused")
    plain = ('{"softcap": float(cap)} if cap', '{"softcap": float(cap)} if False')
    yield of("Gemma 2", attention, "scores are not capped", plain, kind="fused")
    always = ("do_rotary=int(turns)", "do_rotary=1"), ("if turns else []", "if True else []")
    yield of("SmolLM3", attention, "each layer has rope", *always, kind="fused")
    alike = ("local = c.sliding.theta if c.sliding and slid else None", "local = None")
    yield of("Gemma 3", attention, "layers with a window have the others' rope", alike)
    yield of("Gemma 3", graph, "its activation is another", ("0.044715)", "0.0)"))


def _of_quantised() -> Iterator[Forgery]:
    """Codes, scales, what is left whole, what config.json says."""
    place = "model/checkpoint/quantised/{}.py"
    codes, schemes, mlx = (place.format(name) for name in ("codes", "schemes", "mlx"))
    write, few = place.format("write"), "model/tensors/few_bits.py"

    def of(kinds, file, name, *changes, checkpoint="demo"):
        return Forgery(name, kinds, file, changes, checkpoint)

    yield of(
        ("fp8", "fp8_block", "w8a8", "w4a16"), codes, "quotients are rounded to bfloat16",
        ('found if to == "F32" else', "found if not to else"),
        ("rounded(found, to)", 'rounded(found, "BF16")'),
    )  # fmt: skip
    yield of(
        ("fp8",),
        codes,
        "a scale is a power of two",
        ("largest / np.float32(most)", "np.exp2(np.floor(np.log2(largest / np.float32(most))))"),
    )
    yield of(
        ("fp8", "w8a8"),
        codes,
        "a row has the scale of the row beside",
        (
            "as_stored(scales, stored)\n\n    return codes",
            "as_stored(np.roll(scales, 1), stored)\n\n    return codes",
        ),
    )
    yield of(
        ("w8a8",),
        schemes,
        "its largest value is 127",
        ("codes.of_rows(codes.int8, 127.5)", "codes.of_rows(codes.int8, 127)"),
    )
    yield of(
        ("fp8",),
        few,
        "codes are cut off, not rounded",
        ("middles = (values[1:] + values[:-1]) / 2", "middles = values[1:]"),
    )
    yield of(
        ("w4a16",),
        few,
        "the first column is in the highest bits",
        ("return halves.view", "return halves[:, ::-1].copy().view"),
    )
    yield of(
        ("w4a16",),
        codes,
        "a zero is 7",
        (
            "numbers = few_bits.whole(_quotients(groups, scales, to), 4)",
            "numbers = np.minimum(few_bits.whole(_quotients(groups, scales, to), 4), 6) + np.int8(1)",
        ),
    )
    yield of(
        ("mxfp4", "nvfp4"),
        few,
        "columns of a pair are exchanged",
        ("both | both >> 4", "both << 4 | both >> 8"),
    )
    yield of(
        ("mxfp4",), codes, "exponents are one too large", ("np.int32) - 2, 0)", "np.int32) - 1, 0)")
    )
    yield of(
        ("nvfp4",), write, "each layer has a scale of its own", ("JOINED.get(last, last)", "last")
    )
    yield of(
        ("fp8",),
        write,
        "the head is quantised",
        ("not in (EMBEDDING, HEAD)", "not in (EMBEDDING,)"),
    )
    yield of(
        ("fp8",),
        schemes,
        "activations are said to stay",
        ('activations=_said("float", 8, "token", dynamic=True)', "activations=None"),
    )
    yield of(
        ("w8a8",),
        schemes,
        "it is said to be of floats",
        ('weights=_said("int", 8, "channel")', 'weights=_said("float", 8, "channel")'),
    )
    yield of(
        ("w4a16",),
        schemes,
        "groups of 64 are said",
        ("group_size=128),\n        activations=None", "group_size=64),\n        activations=None"),
    )
    yield of(
        ("w8a8",), write, "Qwen3-MoE: routers are quantised", ('spec.type.name == "F16"', "True"),
        checkpoint="Qwen3-MoE",
    )  # fmt: skip
    yield of(
        ("4bit", "8bit"),
        mlx,
        "the edge is the other end",
        ("edge = np.where(low, least, most)", "edge = np.where(low, most, least)"),
    )
    yield of(
        ("4bit",),
        mlx,
        "a group has the bias of the group beside",
        ("as_stored(biases, dtype)", "as_stored(np.roll(biases, 1), dtype)"),
    )
    yield of(
        ("4bit",),
        mlx,
        "columns of a pair are exchanged",
        ("few_bits.pairs(numbers)", "few_bits.pairs(numbers[:, ::-1].copy())[:, ::-1].copy()"),
    )
    yield of(
        ("8bit",),
        mlx,
        "embeddings stay whole",
        ("if matrix and spec.shape[-1] % GROUP == 0", 'if matrix and "embed" not in name'),
    )
    yield of(
        ("mlx",), mlx, "Qwen3-MoE: gate and up of experts are exchanged",
        ('STACKED = {', 'STACKED = {"gate_proj": "up_proj", "up_proj": "gate_proj", '),
        checkpoint="Qwen3-MoE",
    )  # fmt: skip
    yield of(
        ("4bit",), mlx, "Qwen3-MoE: routers are in four bits",
        ("            mine = 8\n", "            pass\n"),
        checkpoint="Qwen3-MoE",
    )  # fmt: skip
    folder = place.format("mlx_folder")
    yield of(
        ("mlx",), folder, "Qwen2: its embeddings are said to be tied",
        ('"tie_word_embeddings", config.tied', '"tie_word_embeddings", True'), checkpoint="Qwen2",
    )  # fmt: skip
    yield of(
        ("8bit",), folder, "SmolLM3 of transformers 5: the base of rope is another",
        ('said["rope_theta"] = config.rope_theta', 'said["rope_theta"] = 1.01 * config.rope_theta'),
        checkpoint="SmolLM3, transformers 5",
    )  # fmt: skip


def _of_calibrated() -> Iterator[Forgery]:
    """What llm-compressor is told, and what it has made."""
    maker, schemes = "../compress_safetensors.py", "model/checkpoint/quantised/schemes.py"

    def of(kind, name, *changes, file=maker):
        return Forgery(name, (kind,), file, changes, "demo, float32")

    saved = "    model.save_pretrained("

    def after(line: str) -> tuple[str, str]:
        """On each layer's norms and projections, once all is quantised."""
        return saved, f"    for layer in model.model.layers:\n        {line}\n{saved}"

    yield of("w4a16_gptq", "nothing is calibrated", ('endswith("_gptq")', 'endswith("_none")'))
    yield of(
        "w4a16_gptq", "scales are half of what they should be",
        after("layer.mlp.up_proj.weight_scale.data.mul_(0.5)"),
    )  # fmt: skip
    yield of(
        "fp8_static",
        "the head is quantised",
        ('ignored = ["lm_head", ', "ignored = ["),
        ('heads - {"lm_head"}', "set()"),
    )
    yield of(
        "fp8_static", "what a layer is given is cut off at a sixty-fourth",
        after("layer.mlp.down_proj.input_scale.data.div_(64)"),
    )  # fmt: skip
    yield of(
        "w8a8_gptq", "a norm is what it was before smoothing",
        after("layer.input_layernorm.weight.data.mul_(2)"),
    )  # fmt: skip
    yield of(
        "nvfp4_a4", "a scale of what a layer is given is infinite",
        after('layer.mlp.down_proj.input_global_scale.data.fill_(float("inf"))'),
    )  # fmt: skip
    yield of(
        "fp8_static", "activations are said to become integers",
        ('_said("float", 8, "tensor"),\n        parts', '_said("int", 8, "tensor"),\n        parts'),
        file=schemes,
    )  # fmt: skip


FORGERIES = [
    *_of_quantised(),
    *_of_calibrated(),
    *_list(),
    *_of_families(),
    *_of_gguf_alone(),
    *_of_experts_in_ranks(),
    *_of_graphs(),
]
