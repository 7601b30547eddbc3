"""A stand-in for the little of TensorRT-LLM's LLM API that triton/llmapi calls.  See ../README.md."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from llama import Model, tensors_of

LAYER = {
    "input_layernorm": ["input_layernorm"],
    "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attention.dense": ["self_attn.o_proj"],
    "post_layernorm": ["post_attention_layernorm"],
    "mlp.fc": ["mlp.gate_proj"],
    "mlp.gate": ["mlp.up_proj"],
    "mlp.proj": ["mlp.down_proj"],
}


@dataclass
class SamplingParams:
    max_tokens: int = 32
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    best_of: int | None = None
    seed: int | None = None
    stop: list[str] | None = None


@dataclass
class Output:
    text: str
    text_diff: str
    finish_reason: str | None
    stop_reason: str | None = None
    cumulative_logprob: float = 0.0


@dataclass
class RequestOutput:
    outputs: list[Output]


class Answer:
    def __init__(self, tokens, tokenizer):
        self.tokens, self.tokenizer = tokens, tokenizer

    async def __aiter__(self):
        ids, said = [], ""
        for token in self.tokens:
            ids.append(token)
            text = self.tokenizer.decode(ids).rstrip("\ufffd")
            yield RequestOutput([Output(text, text[len(said) :], None)])
            said = text

    async def aresult(self):
        text = self.tokenizer.decode(list(self.tokens))
        return RequestOutput([Output(text, text, "length")])


class LLM:
    def __init__(self, model: str, backend: str, tensor_parallel_size: int = 1,
                 pipeline_parallel_size: int = 1, **more):  # fmt: skip
        if more:
            raise ValueError(f"TorchLlmArgs: {sorted(more)[0]}: Extra inputs are not permitted")
        folder = Path(model)
        c = json.loads((folder / "config.json").read_bytes())
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        self.end = self.tokenizer.token_to_id(settings["eos_token"])
        found = {}
        for path in folder.glob("model*.safetensors"):
            found |= tensors_of(path.read_bytes())
        rank = {
            "transformer.vocab_embedding.weight": found["model.embed_tokens.weight"],
            "transformer.ln_f.weight": found["model.norm.weight"],
            "lm_head.weight": found["lm_head.weight"],
        }
        for layer in range(c["num_hidden_layers"]):
            for name, parts in LAYER.items():
                at = [found[f"model.layers.{layer}.{part}.weight"] for part in parts]
                rank[f"transformer.layers.{layer}.{name}.weight"] = np.concatenate(at)
        config = {
            "mapping": {"tp_size": 1},
            "use_parallel_embedding": False,
            "num_hidden_layers": c["num_hidden_layers"],
            "num_attention_heads": c["num_attention_heads"],
            "num_key_value_heads": c["num_key_value_heads"],
            "head_size": c["head_dim"],
            "vocab_size": c["vocab_size"],
            "norm_epsilon": c["rms_norm_eps"],
            "rotary_base": c["rope_theta"],
            "rotary_scaling": c.get("rope_scaling"),
        }
        self.model = Model(config, [rank])

    def generate_async(self, inputs: list[int], sampling: SamplingParams, streaming: bool = False):
        tokens = self.model.generate(inputs, sampling.max_tokens, self.end)
        return Answer(tokens, self.tokenizer)

    def shutdown(self) -> None:
        pass
