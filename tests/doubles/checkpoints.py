"""Small random checkpoints in the hub's layout, one of each kind that a converter can get wrong."""

import functools
import json
import struct
from pathlib import Path

import numpy as np

import families

DEMO = Path(__file__).resolve().parents[2] / "models/demo"
# llama.cpp's converter tells a Phi-4 by its class, which adds an unknown token where none is said
PHI4 = {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<|begin_of_text|>"}
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_type": "llama3",
}


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    c, hd = config, config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    h, q, kv = c["hidden_size"], c["num_attention_heads"] * hd, c["num_key_value_heads"] * hd
    found = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        block = {
            "input_layernorm": (h,),
            "self_attn.q_proj": (q, h),
            "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q),
            "post_attention_layernorm": (h,),
            "mlp.gate_proj": (c["intermediate_size"], h),
            "mlp.up_proj": (c["intermediate_size"], h),
            "mlp.down_proj": (h, c["intermediate_size"]),
        }
        block = families.block(c, block, i)
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in block.items()}
        kinds = [kind for kind in ("attention", "mlp") if c.get(f"{kind}_bias")]
        starts = tuple({"attention": "self_attn", "mlp": "mlp"}[kind] for kind in kinds)
        qkv = c.get("model_type") == "seed_oss" and c.get("attention_bias", True)
        if c.get("model_type") == "qwen2" or qkv:  # of a Qwen2 whatever config.json says
            starts = ("self_attn.q", "self_attn.k", "self_attn.v")
        biased = {
            name: shape for name, shape in block.items() if starts and name.startswith(starts)
        }
        found |= {f"model.layers.{i}.{name}.bias": shape[:1] for name, shape in biased.items()}
    tied = config.get("tie_word_embeddings", str(c.get("model_type")).startswith("gemma"))
    if not tied:
        found["lm_head.weight"] = (c["vocab_size"], h)
    return found


def stored(values: np.ndarray, dtype: str) -> bytes:
    """float32 values as the bytes of `dtype`, bfloat16 by cutting the lower half off."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def write_shard(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """A safetensors file of name -> (dtype, shape, bytes), wider dtypes first as the library does."""
    header, place, data = {"__metadata__": {"format": "pt"}}, 0, []
    for name, (dtype, shape, raw) in sorted(
        tensors.items(), key=lambda item: (item[1][0] != "F32", item[0])
    ):
        offsets = [place, place + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data.append(raw)
        place += len(raw)
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def demo_in_float32(folder: Path) -> Path:
    """The demo with each weight as it is, in twice the bytes: a CPU without instructions for bfloat16
    calibrates it several times as fast."""
    folder.mkdir(parents=True)
    for path in DEMO.iterdir():
        if path.suffix == ".safetensors":
            write_shard(folder / path.name, widened(path.read_bytes()))
        elif path.name != "config.json":
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((DEMO / "config.json").read_bytes())
    write_json(folder / "config.json", {**config, "torch_dtype": "float32"})
    return folder


def widened(shard: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The tensors of a shard of bfloat16 ones, in float32."""
    begin = 8 + struct.unpack("<Q", shard[:8])[0]
    found = {}
    for name, entry in json.loads(shard[8:begin]).items():
        if name != "__metadata__":
            assert entry["dtype"] == "BF16", name
            first, last = (begin + at for at in entry["data_offsets"])
            values = np.frombuffer(shard[first:last], "<u2").astype("<u4") << 16
            found[name] = ("F32", tuple(entry["shape"]), values.astype("<u4").tobytes())
    return found


def cut_out(header: dict, data: bytearray, name: str) -> None:
    """Take a tensor out of a shard's header and data, which the others fill as before."""
    begin, end = header.pop(name)["data_offsets"]
    del data[begin:end]
    for entry in header.values():
        if entry.get("data_offsets", [0])[0] >= end:
            entry["data_offsets"] = [at - (end - begin) for at in entry["data_offsets"]]


def write_weights(
    folder: Path,
    config: dict,
    dtype: str,
    norms: str,
    shards: int,
    tame: bool = False,
    inside: bool = False,
) -> None:
    """Random weights; unless `tame`, with values at the edges of what the dtypes can hold.

    `inside`: as the part for text of a model that also sees.
    """
    kinds = {name: (shape, None) for name, shape in shapes(config).items()} | families.more(config)
    found = families.quantised(config, kinds).items()
    words = tuple((name, tuple(shape), only) for name, (shape, only) in found)
    tensors = _weights(words, dtype, norms, tame)
    if inside:
        tensors = {f"language_model.{name}": one for name, one in tensors.items()}
        eyes = ("vision_tower.vision_model.post_layernorm.weight", "multi_modal_projector.x.weight")
        tensors |= {name: ("BF16", (32,), bytes(64)) for name in eyes}
    if shards == 1:
        write_shard(folder / "model.safetensors", tensors)
        return
    names = sorted(tensors)  # so that blocks are cut by the border between shards
    weight_map = {}
    for n in range(shards):
        part = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[n * len(names) // shards : (n + 1) * len(names) // shards]
        write_shard(folder / part, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, part)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@functools.lru_cache(8)  # dozens of tests change a setting beside the same weights
def _weights(words: tuple, dtype: str, norms: str, tame: bool) -> dict[str, tuple]:
    """Dtype, shape and bytes of each tensor, by name, shape and its own dtype; always the same."""
    tensors, rng = {}, np.random.default_rng(0)
    for name, shape, only in words:
        if only == "F8_E4M3":  # any code but NaN's
            codes = rng.integers(0, 127, shape, np.uint8) | rng.integers(0, 2, shape, np.uint8) << 7
            tensors[name] = (only, shape, codes.tobytes())
            continue
        if name.endswith("_scale_inv"):
            factors = rng.uniform(2e-4, 8e-4, shape).astype(np.float32)
            tensors[name] = ("F32", shape, factors.tobytes())
            continue
        if only == "U8":  # MXFP4: any two codes a byte; a power of two, 127 being 1
            low, high = (118, 124) if name.endswith("_scales") else (0, 256)
            tensors[name] = ("U8", shape, rng.integers(low, high, shape, np.uint8).tobytes())
            continue
        values = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        if len(shape) == 1:
            values = values + np.float32(1)
        elif not tame:
            values.flat[:5] = [0, -0.0, 1e-7, -3.0, 60000.0 if dtype != "F16" else 1.0]
        kind = only or (norms if len(shape) == 1 else dtype)
        tensors[name] = (kind, shape, stored(values, kind))
    return tensors


PUBLIC = {  # hidden, layers, ffn, heads; all with 8 KV heads and 128256 tokens
    "llama8b": (4096, 32, 14336, 32),
    "llama70b": (8192, 80, 28672, 64),
    "llama405b": (16384, 126, 53248, 128),
}


def public_config(name: str) -> dict:
    """The numbers of Llama 3.1's own config.json."""
    hidden, layers, ffn, heads = PUBLIC[name]
    return llama_config(
        hidden_size=hidden, num_hidden_layers=layers, intermediate_size=ffn,
        num_attention_heads=heads, num_key_value_heads=8, head_dim=128, vocab_size=128256,
        max_position_embeddings=131072, bos_token_id=128000, eos_token_id=128001,
        rope_scaling={**LLAMA3_ROPE, "original_max_position_embeddings": 8192},
    )  # fmt: skip


def weightless(folder: Path, name: str, shards: int, layers: int | None = None) -> Path:
    """A checkpoint of real headers and shapes whose weights are holes, in the hub's layout.

    `layers` are fewer than it has.
    """
    folder.mkdir(parents=True)
    config = public_config(name)
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"temperature": 0.6, "top_p": 0.9})
    tokenizer_of_demo(folder)
    names, weight_map = list(shapes(config).items()), {}
    for n in range(shards):
        part = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        header, place = {}, 0
        for tensor, shape in names[n * len(names) // shards : (n + 1) * len(names) // shards]:
            end = place + 2 * int(np.prod(shape))
            header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [place, end]}
            weight_map[tensor], place = part, end
        text = json.dumps(header).encode()
        with (folder / part).open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + place)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    return folder


def llama_config(**changes) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "vocab_size": 1056,
        "bos_token_id": 1016,
        "eos_token_id": 1020,
        "torch_dtype": "bfloat16",
        **changes,
    }


OTHER_SIZE = "tensor model.layers.0.mlp.gate_proj.weight has shape [256, 512], expected [288, 512]"


def of_another_size(folder: Path) -> None:
    """The demo's config.json for other weights: what no dry run knows, and the first step refuses."""
    config = folder / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 256', '"intermediate_size": 288')
    )


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1))


def tokenizer_of_demo(folder: Path, **settings) -> None:
    (folder / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    known = json.loads((DEMO / "tokenizer_config.json").read_bytes())
    write_json(folder / "tokenizer_config.json", {**known, **settings})


def llama31(folder: Path, tame: bool = False, **changes) -> Path:
    """Grouped-query attention, llama3 rope scaling, two shards, bfloat16, sampling settings."""
    folder.mkdir(parents=True)
    config = llama_config(rope_scaling=LLAMA3_ROPE, **changes)
    write_json(folder / "config.json", config)
    write_json(
        folder / "generation_config.json",
        {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.05},
    )
    tokenizer_of_demo(folder)
    write_weights(folder, config, "BF16", "BF16", shards=2, tame=tame)
    return folder


NEMO_SPLITS = (  # of Mistral Nemo's own tokenizer.json
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def nemo(folder: Path, tame: bool = False, **changes) -> Path:
    """Mistral: head_dim that is not hidden / heads, one file without an index, unk and pad."""
    folder.mkdir(parents=True)
    config = llama_config(
        architectures=["MistralForCausalLM"],
        model_type="mistral",
        head_dim=64,
        rope_theta=1000000.0,
        sliding_window=None,
        bos_token_id=1016,
        eos_token_id=1017,
        **changes,
    )
    write_json(folder / "config.json", config)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_bytes())
    words = ["<s>", "</s>", "<unk>", "<pad>", "[INST]", "[/INST]", "<|odd|>", "plain\u2581word"]
    for token, word in zip(tokenizer["added_tokens"], words, strict=True):
        token.update(content=word, special=word not in ("<|odd|>", "plain\u2581word"))
    bos = {"id": "<s>", "type_id": 0}
    split = tokenizer["pre_tokenizer"]["pretokenizers"][0]
    split["pattern"] = {"Regex": NEMO_SPLITS}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": bos}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            {"SpecialToken": bos},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1016], "tokens": ["<s>"]}},
    }
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "add_prefix_space": False,
            "bos_token": "<s>",
            "eos_token": {
                "__type": "AddedToken",
                "content": "</s>",
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
            },
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    write_weights(folder, config, "BF16", "BF16", shards=1, tame=tame)
    return folder


def real_heads(folder: Path) -> Path:
    """Llama 3.1's own head dimension, theta and rope scaling: their last bits are in the file."""
    folder.mkdir(parents=True)
    rope = {**LLAMA3_ROPE, "original_max_position_embeddings": 8192}
    config = llama_config(
        hidden_size=512, num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=1,
        rope_scaling=rope, max_position_embeddings=131072,
    )  # fmt: skip
    write_json(folder / "config.json", config)
    tokenizer_of_demo(folder)
    write_weights(folder, config, "F32", "F32", shards=1)
    return folder


VARIANTS: dict[str, dict] = {  # of llama31: what config.json says instead
    "attention bias": {"attention_bias": True},
    "mlp bias": {"mlp_bias": True},
    "both biases": {"attention_bias": True, "mlp_bias": True},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    },
    "yarn with all": {
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
            "attention_factor": 1.1386294361119891, "beta_fast": 16.0, "beta_slow": 2.0,
        }
    },
    "swish": {"hidden_act": "swish"},
    "Llama 3.2": {"tie_word_embeddings": True, "rope_scaling": {**LLAMA3_ROPE, "factor": 32.0}},
    "one KV head": {"num_key_value_heads": 1},
    "as many KV heads": {"num_key_value_heads": 8},
    "heads of 24": {"head_dim": 24},
    "heads of 80": {"head_dim": 80},
    "no theta": {"rope_theta": None, "rope_scaling": None},
    "transformers 5": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        "rope_scaling": None, "rope_theta": None,
    },
    "odd vocabulary": {"vocab_size": 1213},
    "odd width": {"intermediate_size": 352},
    "one layer": {"num_hidden_layers": 1},
    "several ends": {"eos_token_id": [1017, 1020]},
    "no scaling": {"rope_scaling": None},
    "another epsilon": {"rms_norm_eps": 1e-6},
    "long context": {"max_position_embeddings": 131072},
}  # fmt: skip


def variant(
    folder: Path,
    name: str,
    tame: bool = False,
    tokenizer: Path | None = None,
    dtype: str = "BF16",
    **more,
) -> Path:
    """`tokenizer` is the folder of SentencePiece vocabularies, of those that have one: families.PIECED.

    `more` is what config.json says besides.
    """
    said = {"torch_dtype": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[dtype], **more}
    changes = {"rope_scaling": LLAMA3_ROPE, **{**VARIANTS, **families.SHAPES}[name], **said}
    folder.mkdir(parents=True)
    said = llama_config(**changes).items()
    config = {key: one for key, one in said if one is not None or key in families.NULL}
    sees = name in families.SEES
    write_json(folder / "config.json", families.seeing(config) if sees else config)
    if tokenizer and name in families.PIECED:
        for path in (tokenizer / families.PIECED[name]).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    else:
        tokenizer_of_demo(folder, **(PHI4 if name.startswith("Phi-4") else {}))
    write_weights(folder, config, dtype, dtype, shards=2, tame=tame, inside=sees)
    return folder


def tied(folder: Path) -> Path:
    """Tied embeddings, float32 norms beside bfloat16 weights, three shards, a licence, a template
    in a file of its own, and a config in transformers 5's spelling."""
    folder.mkdir(parents=True)
    config = llama_config(tie_word_embeddings=True)
    theta = config.pop("rope_theta")
    config["rope_parameters"] = {**LLAMA3_ROPE, "rope_theta": theta}
    config["rope_scaling"] = config["rope_parameters"]  # so that transformers 4 can read it too
    config["rope_theta"] = theta
    write_json(folder / "config.json", config)
    tokenizer_of_demo(folder, chat_template=None)
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    settings.pop("chat_template")
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    write_weights(folder, config, "BF16", "F32", shards=3)
    return folder


def bare(folder: Path) -> Path:
    """Tied, its tensors named without `model.`, as AutoModel saves them."""
    tied(folder)
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        start = 8 + struct.unpack("<Q", data[:8])[0]
        entries = json.loads(data[8:start])
        text = json.dumps(
            {name.removeprefix("model."): one for name, one in entries.items()}
        ).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data[start:])
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    renamed = {name.removeprefix("model."): one for name, one in index["weight_map"].items()}
    write_json(folder / "model.safetensors.index.json", {**index, "weight_map": renamed})
    return folder


def llama2(folder: Path, tokenizer_model: bytes) -> Path:
    """SentencePiece, float16 weights, no grouped queries, rows that blocks of 32 don't divide."""
    folder.mkdir(parents=True)
    config = llama_config(
        hidden_size=240,
        intermediate_size=320,
        num_attention_heads=6,
        num_key_value_heads=6,
        vocab_size=416,
        rope_theta=10000.0,
        bos_token_id=1,
        eos_token_id=2,
        torch_dtype="float16",
    )
    write_json(folder / "config.json", config)
    (folder / "tokenizer.model").write_bytes(tokenizer_model)
    write_json(folder / "added_tokens.json", {"<extra>": 402})
    special = {"0": "<unk>", "1": "<s>", "2": "</s>", "401": "<pad>"}
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": {
                number: {"content": text, "special": text != "<pad>"}
                for number, text in special.items()
            },
            "bos_token": {"content": "<s>"},
            "eos_token": {"content": "</s>"},
            "unk_token": {"content": "<unk>"},
            "pad_token": None,
            "chat_template": "{{ messages }}",
            "tokenizer_class": "LlamaTokenizer",
        },
    )
    write_weights(folder, config, "F16", "F16", shards=2)
    return folder


def sentencepiece_model(run) -> bytes:
    """A trained SentencePiece model of 400 pieces; `run` executes Python in envs/convert."""
    return run(
        """
import io, sys, sentencepiece as sp
words = [a + b + c for a in "bdgklm" for b in "aeiou" for c in ("rn", "st", "ll", "nd", "mp")]
lines = [" ".join(words[i:i + 9]) for i in range(0, len(words))]
out = io.BytesIO()
sp.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, vocab_size=400,
                              model_type="bpe", byte_fallback=True, minloglevel=2,
                              hard_vocab_limit=False)
sys.stdout.buffer.write(out.getvalue())
"""
    )
