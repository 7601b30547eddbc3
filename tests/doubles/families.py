"""The families beside Llama, as config.json and checkpoints have them; no table of ours is read."""

VERSION_5 = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "rope_theta": None,
    "layer_types": ["full_attention"] * 2,
}
YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}
TIED = {"tie_word_embeddings": True}
QWEN2 = {  # as it is published: no head_dim, and what its windows would be
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "head_dim": None,
    "rope_theta": 1e6,
    "rope_scaling": None,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "max_window_layers": 1,
}
QWEN3 = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 32,
    "attention_bias": False,
    "sliding_window": None,
}
QWEN3_MOE = QWEN3 | {  # twelve: the tenth comes before the third where they lie by name
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": 96,
    "num_experts": 12, "num_experts_per_tok": 3, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "output_router_logits": False, "router_aux_loss_coef": 0.001,
}  # fmt: skip
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "rope_scaling": None,
    "rope_theta": 1e6, "sliding_window": None, "num_local_experts": 4, "num_experts_per_tok": 2,
    "router_jitter_noise": 0.0, "output_router_logits": False,
}  # fmt: skip
SMOLLM3 = {
    "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "rope_scaling": None,
    "num_hidden_layers": 5, "no_rope_layers": [1, 1, 1, 0, 1], "no_rope_layer_interval": 4,
    "layer_types": ["full_attention"] * 5, "use_sliding_window": False, "sliding_window": None,
    "pad_token_id": 1016, **TIED,
}  # fmt: skip
GRANITE = {
    "architectures": ["GraniteForCausalLM"], "model_type": "granite", "rope_scaling": None,
    "attention_multiplier": 0.0625, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
    "logits_scaling": 8.0, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
OLMO2 = {
    "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "rope_scaling": None,
    "attention_bias": False, "rms_norm_eps": 1e-6, "num_key_value_heads": 8,
}  # fmt: skip
GEMMA2 = {  # of a SentencePiece vocabulary without a blank before a text
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "vocab_size": 1000,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 10000.0,
    "rope_scaling": None, "head_dim": 32, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0, "sliding_window": 16, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "cache_implementation": "hybrid", "rms_norm_eps": 1e-6,
}  # fmt: skip
GEMMA3 = GEMMA2 | {  # as transformers 4 writes it
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 7,
    "attn_logit_softcapping": None, "final_logit_softcapping": None, "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
}  # fmt: skip
KINDS = [f"{'full' if n == 5 else 'sliding'}_attention" for n in range(7)]
GEMMA3_5 = GEMMA3 | {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
    },
    "rope_theta": None, "rope_local_base_freq": None, "sliding_window_pattern": None, "layer_types": KINDS,
}  # fmt: skip
PHI3 = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "head_dim": None, "rope_scaling": None,
    "sliding_window": None, "max_position_embeddings": 2048, "original_max_position_embeddings": 1024,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "partial_rotary_factor": 1.0, "pad_token_id": 0,
}  # fmt: skip
PHI4 = {**PHI3}  # of a byte-level vocabulary
PHI3 |= {"vocab_size": 1000, "bos_token_id": 1, "eos_token_id": 2}
SEED_OSS = {  # as it is published, whose dropouts are those of its training
    "architectures": ["SeedOssForCausalLM"], "model_type": "seed_oss", "head_dim": 32,
    "rope_scaling": {"rope_type": "default"}, "rope_theta": 1e7, "attention_bias": True,
    "attention_out_bias": False, "mlp_bias": False, "attention_dropout": 0.1, "residual_dropout": 0.1,
    "rms_norm_eps": 1e-6, "pad_token_id": 1016,
}  # fmt: skip
GPT_OSS = {  # as it is published: experts in MXFP4, and what its first readers called two numbers
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64,
    "num_hidden_layers": 4, "num_local_experts": 6, "num_experts_per_tok": 3, "experts_per_token": 3,
    "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "max_position_embeddings": 131072, "initial_context_length": 4096, "rope_theta": 150000,
    "swiglu_limit": 7.0, "pad_token_id": 1016,
    "router_aux_loss_coef": 0.9, "output_router_logits": False, "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": False,
    },
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
        ],
    },
}  # fmt: skip
DEEPSEEK_V3 = {  # as it is published, but for its weights: those are FP8 below
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "attention_bias": False,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": None,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_intermediate_size": 96, "n_routed_experts": 12,
    "n_shared_experts": 1, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "ep_size": 1,
    "q_lora_rank": 64, "kv_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 64, "num_nextn_predict_layers": 0, "rope_theta": 10000, "tie_word_embeddings": False,
    "aux_loss_alpha": 0.001, "seq_aux": True, "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "type": "yarn", "factor": 4, "original_max_position_embeddings": 128, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
DEEPSEEK_V2 = DEEPSEEK_V3 | {  # Lite, of as few layers as libllama knows of one without a latent of queries
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 26,
    "hidden_size": 128, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 4,
    "moe_intermediate_size": 32, "n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0,
    "scoring_func": "softmax", "topk_method": "greedy", "q_lora_rank": None, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "v_head_dim": 16,
    "rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.707},
}  # fmt: skip
PUBLISHED = {  # numbers of the hub's
    "DeepSeek-V3": DEEPSEEK_V3
    | {
        "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "first_k_dense_replace": 3, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8,
        "topk_group": 4, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
    },
    "DeepSeek-V2-Lite": DEEPSEEK_V2
    | {
        "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
        "n_routed_experts": 64, "num_experts_per_tok": 6, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
    },
}  # fmt: skip
NULL = ("q_lora_rank",)  # which means something else than not to say it
FP8 = {
    "quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
}  # fmt: skip
LONG = {  # of 128 values of four heads
    "type": "longrope",
    "short_factor": [1.0 + n / 64 for n in range(16)],
    "long_factor": [1.0 + n / 4 for n in range(16)],
}
OUTER = ("architectures", "bos_token_id", "eos_token_id", "torch_dtype")


def seeing(config: dict) -> dict:
    """The config.json of a Gemma 3 that sees, as published ones are: what is the default goes unsaid."""
    said = {key: value for key, value in config.items() if key not in OUTER and value is not None}
    return {
        **{key: config[key] for key in OUTER if key in config},
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "mm_tokens_per_image": 4,
        "text_config": {key: one for key, one in said.items() if key != "rms_norm_eps"},
        "vision_config": {
            "hidden_size": 32, "image_size": 56, "intermediate_size": 48, "num_attention_heads": 2,
            "num_hidden_layers": 1, "patch_size": 14, "model_type": "siglip_vision_model",
        },
    }  # fmt: skip


BASES = (QWEN2, QWEN3, QWEN3_MOE, MIXTRAL, SMOLLM3, GRANITE, OLMO2, GEMMA2, GEMMA3, PHI3,
         SEED_OSS, GPT_OSS, DEEPSEEK_V3, DEEPSEEK_V2)  # fmt: skip
SEES = ("Gemma 3 that sees",)  # names of SHAPES
SHAPES: dict[str, dict] = {
    "Qwen2": QWEN2,
    "Qwen2, tied": QWEN2 | TIED,
    "Qwen2 that says head_dim": QWEN2 | {"head_dim": 24},
    "Qwen2, seven heads of one": (
        QWEN2 | {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 224}
    ),
    "Qwen2, more rows than tokens": QWEN2 | {"vocab_size": 1088, **TIED},
    "Qwen2.5, YaRN": QWEN2 | YARN,
    "Qwen2, transformers 5": QWEN2 | VERSION_5,
    "Qwen3": QWEN3,
    "Qwen3, tied": QWEN3 | TIED,
    "Qwen3, heads of 80": QWEN3 | {"head_dim": 80, "num_key_value_heads": 8},
    "Qwen3, YaRN": QWEN3 | YARN,
    "Qwen3, transformers 5": QWEN3 | VERSION_5,
    "Qwen3-MoE": QWEN3_MOE,
    "Qwen3-MoE, tied, one KV head": QWEN3_MOE | TIED | {"num_key_value_heads": 1},
    "Qwen3-MoE, odd rows, heads of 80": (
        QWEN3_MOE | {"head_dim": 80, "moe_intermediate_size": 72, "num_experts": 5}
    ),
    "Qwen3-MoE, transformers 5": (
        QWEN3_MOE | VERSION_5 | {"num_experts": None, "num_local_experts": 12}
    ),
    "Mixtral": MIXTRAL,
    "Mixtral, tied, heads of 24": MIXTRAL | TIED | {"head_dim": 24},
    "Mixtral, eleven experts": MIXTRAL | {"num_local_experts": 11, "num_key_value_heads": 1},
    "SmolLM3": SMOLLM3,
    "SmolLM3, untied, heads of 24": SMOLLM3 | {"tie_word_embeddings": False, "head_dim": 24},
    "SmolLM3, YaRN": SMOLLM3 | YARN,
    "SmolLM3, transformers 5": SMOLLM3 | VERSION_5 | {"layer_types": ["full_attention"] * 5},
    "Granite": GRANITE,
    "Granite, tied": GRANITE | TIED | {"embedding_multiplier": 10.5, "logits_scaling": 13.0},
    "Granite, transformers 5": GRANITE | VERSION_5 | {"head_dim": 32, "num_key_value_heads": 1},
    "OLMo 2": OLMO2,
    "OLMo 2, tied": OLMO2 | TIED | {"num_hidden_layers": 1},
    "OLMo 2, grouped": OLMO2 | {"num_key_value_heads": 2},
    "OLMo 2, transformers 5": OLMO2 | VERSION_5,
    "Gemma 2": GEMMA2,
    "Gemma 2, one KV head, other caps": (
        GEMMA2 | {"num_key_value_heads": 1, "attn_logit_softcapping": 40.0, "num_hidden_layers": 2}
    ),
    "Gemma 2, heads of 24": GEMMA2 | {"head_dim": 24, "query_pre_attn_scalar": 24},
    "Gemma 3": GEMMA3,
    "Gemma 3, linear": GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "Gemma 3, transformers 5": GEMMA3_5,
    "Gemma 3 that sees": GEMMA3,
    "Phi-3": PHI3,
    "Phi-3, LongRoPE": PHI3 | {"rope_scaling": LONG, "rope_theta": 1e4},
    "Phi-4-mini": (
        PHI4
        | TIED
        | {
            "partial_rotary_factor": 0.75,
            "num_key_value_heads": 1,
            "sliding_window": 262144,
            "rope_scaling": LONG | {key: LONG[key][:12] for key in ("short_factor", "long_factor")},
        }
    ),
    "Phi-4, transformers 5": PHI4
    | VERSION_5
    | {
        "layer_types": None,
        "partial_rotary_factor": None,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 250000.0,
            "original_max_position_embeddings": 1024,
            "partial_rotary_factor": 1.0,
            **{key: LONG[key] for key in LONG if key != "type"},
        },
    },
}
SHAPES |= {
    "Seed-OSS": SEED_OSS,
    "Seed-OSS, unsaid": {key: one for key, one in SEED_OSS.items() if "bias" not in key},
    "Seed-OSS, tied, heads of 24": SEED_OSS | TIED | {"head_dim": 24, "num_key_value_heads": 1},
    "Seed-OSS, no biases": SEED_OSS | {"attention_bias": False},
    "Seed-OSS, YaRN": SEED_OSS | YARN,
    "Seed-OSS, transformers 5": SEED_OSS | VERSION_5 | {"rope_scaling": None, "layer_types": None},
    "gpt-oss": GPT_OSS,
    "gpt-oss, one KV head, odd experts": GPT_OSS
    | {"num_key_value_heads": 1, "num_local_experts": 5, "intermediate_size": 288},
    "gpt-oss, bfloat16 experts": GPT_OSS | {"quantization_config": None},
    "gpt-oss, bfloat16 experts, transformers 5": GPT_OSS
    | {
        "quantization_config": None,
        "rope_scaling": None,
        "rope_theta": None,
        "experts_per_token": None,
        "rope_parameters": {
            **GPT_OSS["rope_scaling"], "truncate": True, "rope_theta": 150000.0,
        },
    },
}  # fmt: skip


def _as_saved(said: dict) -> dict:
    """What transformers 5 writes otherwise of a DeepSeek's."""
    scaling = {key: one for key, one in said["rope_scaling"].items() if key != "type"}
    return {
        "head_dim": said["qk_rope_head_dim"],
        "qk_head_dim": said["qk_nope_head_dim"] + said["qk_rope_head_dim"],
        "rope_parameters": {**scaling, "rope_type": "yarn", "rope_theta": said["rope_theta"]},
        **dict.fromkeys(("rope_scaling", "rope_theta")),
    }


SHAPES |= {
    "DeepSeek-V3": DEEPSEEK_V3,
    # 304 and 176 rows of latents: the last block is no whole one, as of the published 576
    "DeepSeek-V3, FP8": DEEPSEEK_V3 | FP8 | {"kv_lora_rank": 288},
    "DeepSeek-V3, FP8, guesses": DEEPSEEK_V3
    | FP8
    | {"kv_lora_rank": 160, "num_nextn_predict_layers": 1},
    "DeepSeek-V3, no groups, odd sizes": DEEPSEEK_V3
    | {
        "n_group": 1, "topk_group": 1, "n_routed_experts": 5, "first_k_dense_replace": 0,
        "norm_topk_prob": False, "qk_nope_head_dim": 24, "v_head_dim": 40, "q_lora_rank": 80,
        "num_hidden_layers": 3, "rope_scaling": None, "n_shared_experts": 2, **TIED,
    },
    "DeepSeek-V3, transformers 5": DEEPSEEK_V3 | _as_saved(DEEPSEEK_V3),
    "DeepSeek-V2-Lite": DEEPSEEK_V2,
    "DeepSeek-V2-Lite, transformers 5": DEEPSEEK_V2 | _as_saved(DEEPSEEK_V2),
    "Qwen3, FP8": QWEN3 | FP8,
}  # fmt: skip
PIECED = {  # with a SentencePiece vocabulary, and which
    name: "plain" if name.startswith("Gemma") else "prefixed"
    for name in SHAPES
    if name.startswith(("Gemma", "Phi-3"))
}


def latent(config: dict, layer: int) -> dict[str, tuple[int, ...]]:
    """The weights of one layer of DeepSeek's, but for its correction of a router's scores."""
    c, h = config, config["hidden_size"]
    heads, rank, ffn = c["num_attention_heads"], c["kv_lora_rank"], c["moe_intermediate_size"]
    query = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    found = {"input_layernorm": (h,), "post_attention_layernorm": (h,)}
    if q_rank := c.get("q_lora_rank"):
        found |= {"self_attn.q_a_proj": (q_rank, h), "self_attn.q_a_layernorm": (q_rank,)}
        found["self_attn.q_b_proj"] = (query, q_rank)
    else:
        found["self_attn.q_proj"] = (query, h)
    found |= {
        "self_attn.kv_a_proj_with_mqa": (rank + c["qk_rope_head_dim"], h),
        "self_attn.kv_a_layernorm": (rank,),
        "self_attn.kv_b_proj": (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), rank),
        "self_attn.o_proj": (h, heads * c["v_head_dim"]),
    }
    mlps = {"mlp.shared_experts.": c["n_shared_experts"] * ffn}
    mlps |= {f"mlp.experts.{n}.": ffn for n in range(c["n_routed_experts"])}
    if layer < c["first_k_dense_replace"]:
        mlps = {"mlp.": c["intermediate_size"]}
    else:
        found["mlp.gate"] = (c["n_routed_experts"], h)
    for at, rows in mlps.items():
        found |= {f"{at}{one}_proj": (rows, h) for one in ("gate", "up")}
        found[f"{at}down_proj"] = (h, rows)
    return found


def block(
    config: dict, plain: dict[str, tuple[int, ...]], layer: int
) -> dict[str, tuple[int, ...]]:
    """The weights of one layer, by their names in it; `plain` are a Llama's."""
    kind, hidden = config.get("model_type"), config["hidden_size"]
    if "kv_lora_rank" in config:
        return latent(config, layer)
    head, kv = (plain[f"self_attn.{one}_proj"][0] for one in "qk")
    if kind in ("qwen3", "qwen3_moe"):
        size = config.get("head_dim") or hidden // config["num_attention_heads"]
        plain = plain | {f"self_attn.{one}_norm": (size,) for one in "qk"}
    if kind in ("gemma2", "gemma3_text"):
        plain = plain | {f"{at}_feedforward_layernorm": (hidden,) for at in ("pre", "post")}
    if kind == "gemma3_text":
        plain = plain | {f"self_attn.{one}_norm": (config["head_dim"],) for one in "qk"}
    if kind == "olmo2":
        plain = plain | {"self_attn.q_norm": (head,), "self_attn.k_norm": (kv,)}
        plain["post_feedforward_layernorm"] = plain.pop("input_layernorm")
    if kind == "gpt_oss":  # `more` has its experts
        plain = {name: one for name, one in plain.items() if not name.startswith("mlp.")}
        plain["mlp.router"] = (config["num_local_experts"], hidden)
    if kind == "phi3":
        ffn = plain["mlp.gate_proj"][0]
        plain = {
            "input_layernorm": (hidden,), "self_attn.qkv_proj": (head + 2 * kv, hidden),
            "self_attn.o_proj": (hidden, head), "post_attention_layernorm": (hidden,),
            "mlp.gate_up_proj": (2 * ffn, hidden), "mlp.down_proj": (hidden, ffn),
        }  # fmt: skip
    names = {
        "qwen3_moe": ("mlp.gate", "mlp.experts.{}.", ("gate_proj", "up_proj", "down_proj")),
        "mixtral": ("block_sparse_moe.gate", "block_sparse_moe.experts.{}.", ("w1", "w3", "w2")),
    }
    if kind in names:
        router, expert, (gate, up, down) = names[kind]
        count = config.get("num_experts") or config["num_local_experts"]
        ffn = config["moe_intermediate_size" if kind == "qwen3_moe" else "intermediate_size"]
        plain = {name: one for name, one in plain.items() if not name.startswith("mlp.")}
        plain[router] = (count, hidden)
        for n in range(count):
            at = expert.format(n)
            plain |= {
                f"{at}{gate}": (ffn, hidden),
                f"{at}{up}": (ffn, hidden),
                f"{at}{down}": (hidden, ffn),
            }
    return plain


def more(config: dict) -> dict[str, tuple[tuple[int, ...], str | None]]:
    """Tensors that are no layer's `.weight` or `.bias`: by name their shape, and the one dtype or None."""
    if config.get("model_type") == "deepseek_v3":
        return _behind(config)
    if config.get("model_type") != "gpt_oss":
        return {}
    hidden, ffn, count = (
        config[k] for k in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    found: dict[str, tuple[tuple[int, ...], str | None]] = {}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found[f"{at}.self_attn.sinks"] = ((config["num_attention_heads"],), None)
        found[f"{at}.mlp.router.bias"] = ((count,), None)
        for name, rows, columns in (("gate_up", 2 * ffn, hidden), ("down", hidden, ffn)):
            place = f"{at}.mlp.experts.{name}_proj"
            found[f"{place}_bias"] = ((count, rows), None)
            if config.get("quantization_config"):
                found[f"{place}_blocks"] = ((count, rows, columns // 32, 16), "U8")
                found[f"{place}_scales"] = ((count, rows, columns // 32), "U8")
            else:
                found[place] = ((count, columns, rows), None)
    return found


def _behind(config: dict) -> dict[str, tuple[tuple[int, ...], str | None]]:
    """DeepSeek V3's corrections of scores, which stay float32, and the layers that guess further tokens."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    guessing = range(layers, layers + config.get("num_nextn_predict_layers", 0))
    found: dict[str, tuple[tuple[int, ...], str | None]] = {}
    for layer in guessing:
        at, both = f"model.layers.{layer}.", {"eh_proj": (hidden, 2 * hidden), "enorm": (hidden,)}
        found |= {f"{at}{name}.weight": (shape, None) for name, shape in both.items()}
        found |= {f"{at}{name}.weight": (one, None) for name, one in latent(config, layer).items()}
    for layer in (*range(config["first_k_dense_replace"], layers), *guessing):
        name = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        found[name] = ((config["n_routed_experts"],), "F32")
    return found


Kinds = dict[str, tuple[tuple[int, ...], str | None]]


def quantised(config: dict, kinds: Kinds) -> Kinds:
    """The same tensors, of a checkpoint of FP8 the matrices of its layers as codes and scales."""
    said = config.get("quantization_config") or {}
    if said.get("quant_method") != "fp8":
        return kinds
    found: Kinds = {}
    for name, (shape, only) in kinds.items():
        found[name] = (shape, only)
        if ".layers." in name and len(shape) == 2 and not name.endswith("mlp.gate.weight"):
            found[name] = (shape, "F8_E4M3")
            blocks = tuple(
                -(-size // side)
                for size, side in zip(shape, said["weight_block_size"], strict=True)
            )
            found[f"{name}_scale_inv"] = (blocks, "F32")
    return found
