"""Llama by numpy, from the ranks of a TensorRT-LLM checkpoint: each computes its part, sums are added."""

import json
import struct
from pathlib import Path

import numpy as np

MAGIC = b"stand-in engine\n"


def tensors_of(raw: bytes) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file's bytes, as float32."""
    (length,) = struct.unpack("<Q", raw[:8])
    found = {}
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = (8 + length + at for at in entry["data_offsets"])
        kind = {"F16": "<f2", "BF16": "<u2", "F32": "<f4"}[entry["dtype"]]
        values = np.frombuffer(raw[begin:end], kind)
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        found[name] = values.astype(np.float32).reshape(entry["shape"])
    return found


class Model:
    """`ranks` holds the tensors of each rank; `config` is the checkpoint's config.json."""

    def __init__(self, config: dict, ranks: list[dict[str, np.ndarray]]):
        self.c, self.ranks = config, ranks
        self.tp, self.pp = config["mapping"]["tp_size"], config["mapping"].get("pp_size", 1)
        embedding = [rank["transformer.vocab_embedding.weight"] for rank in ranks[: self.tp]]
        if not config["use_parallel_embedding"]:
            self.embedding = embedding[0]
        else:
            axis = config["embedding_sharding_dim"]
            self.embedding = np.concatenate(embedding, axis=axis)
        self.head = np.concatenate([rank["lm_head.weight"] for rank in ranks[-self.tp :]])
        self.angles = frequencies(config)

    @classmethod
    def of_engine(cls, folder: Path) -> "Model":
        config = json.loads((folder / "config.json").read_bytes())["pretrained_config"]
        ranks = []
        for rank in range(config["mapping"]["world_size"]):
            raw = (folder / f"rank{rank}.engine").read_bytes()
            if not raw.startswith(MAGIC):
                raise RuntimeError("Error deserializing engine: magic tag does not match")
            ranks.append(tensors_of(raw[len(MAGIC) + 16 :]))
        return cls(config, ranks)

    def generate(self, ids: list[int], count: int, end: int | None):
        """Greedy tokens one by one, the end token too."""
        caches: list = [None] * self.c["num_hidden_layers"] * self.tp
        fresh, place = list(ids), 0
        for _ in range(count):
            row = self.step(np.array(fresh), place, caches)
            place += len(fresh)
            token = int(row[: self.c["vocab_size"]].argmax())
            yield token
            if token == end:
                return
            fresh = [token]

    def step(self, ids: np.ndarray, place: int, caches: list) -> np.ndarray:
        """The logits of the last of `ids`, which stand at `place`."""
        c, x = self.c, self.embedding[ids]
        each = c["num_hidden_layers"] // self.pp
        for layer in range(c["num_hidden_layers"]):
            stage = layer // each * self.tp
            ranks = self.ranks[stage : stage + self.tp]
            at = f"transformer.layers.{layer % each}."
            y = norm(x, ranks[0][at + "input_layernorm.weight"], c["norm_epsilon"])
            part = [
                self.attention(rank, at + "attention.", y, place, caches, layer * self.tp + n)
                for n, rank in enumerate(ranks)
            ]
            x = x + sum(part)
            y = norm(x, ranks[0][at + "post_layernorm.weight"], c["norm_epsilon"])
            for rank in ranks:
                inner = y @ rank[at + "mlp.fc.weight"].T
                inner = inner / (1 + np.exp(-inner)) * (y @ rank[at + "mlp.gate.weight"].T)
                x = x + inner @ rank[at + "mlp.proj.weight"].T
        last = self.ranks[-1]["transformer.ln_f.weight"]
        return norm(x[-1:], last, c["norm_epsilon"])[0] @ self.head.T

    def attention(self, rank, at: str, y, place: int, caches: list, slot: int):
        c, size = self.c, self.c["head_size"]
        heads = c["num_attention_heads"] // self.tp
        kv = max(c["num_key_value_heads"] // self.tp, 1)
        qkv = (y @ rank[at + "qkv.weight"].T).reshape(len(y), heads + 2 * kv, size)
        q, k, v = np.split(qkv, [heads, heads + kv], axis=1)
        turns = np.outer(np.arange(place, place + len(y)), self.angles)
        q, k = rotated(q, turns), rotated(k, turns)
        if caches[slot] is not None:
            k = np.concatenate([caches[slot][0], k])
            v = np.concatenate([caches[slot][1], v])
        caches[slot] = (k, v)
        k, v = (np.repeat(t, heads // kv, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size)
        later = np.arange(len(k))[None] > np.arange(place, place + len(y))[:, None]
        scores = np.where(later, -np.inf, scores)
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weight, v).reshape(len(y), -1)
        return out @ rank[at + "dense.weight"].T


def norm(x, weight, epsilon: float):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def rotated(x, turns):
    """Rotate-half: the first half of a head is the real part, the second the imaginary."""
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(turns)[:, None], np.sin(turns)[:, None]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def frequencies(c: dict) -> np.ndarray:
    """Radians a token, [head_size / 2], with Llama 3.1's scaling."""
    size, scaling = c["head_size"], c.get("rotary_scaling")
    found = 1 / c["rotary_base"] ** (np.arange(0, size, 2) / size)
    if not scaling:
        return found
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((original * found / (2 * np.pi) - low) / (high - low), 0, 1)
    return found * (smooth + (1 - smooth) / scaling["factor"])
