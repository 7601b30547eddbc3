"""A decoder in ONNX with its KV cache, by ONNX Runtime on the CPU.  Runs in Triton's python backend.

Takes and gives what NVIDIA's backend does, or says what it cannot.  One row per request; several requests
are computed at once.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}
TAKEN = {  # the one value that a setting may have
    "beam_width": 1,
    "return_context_logits": False,
    "return_generation_logits": False,
    "exclude_input_in_output": True,
    "stop": False,
}
BOUNDS = {
    "runtime_top_k": (0, 2**31), "runtime_top_p": (0, 1), "temperature": (0, 1e9),
    "repetition_penalty": (1e-6, 1e9), "min_tokens": (0, 2**31),
}  # fmt: skip


class TritonPythonModel:
    def initialize(self, args: dict) -> None:
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"], args["model_version"], "model")
        self.longest = json.loads((folder / "graph.json").read_bytes())["max_length"]
        self.session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
        )
        self.inputs = {i.name: (DTYPES[i.type], i.shape) for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]
        self.vocabulary = self.session.get_outputs()[self.outputs.index("logits")].shape[-1]
        requests = int(config["parameters"]["requests"]["string_value"])
        self.pool = ThreadPoolExecutor(requests)

    def finalize(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def execute(self, requests: list) -> None:
        for request in requests:  # their tensors may be gone once this returns
            given = {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}
            self.pool.submit(self._answer, given, request.get_response_sender())

    def _answer(self, given: dict, sender) -> None:
        try:
            for response in self._responses(given, sender.is_cancelled):
                sender.send(response)
        except Exception as error:  # one bad request must not stop the others
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        finally:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _responses(self, given: dict, cancelled):
        if len(given["input_ids"]) != 1:
            raise ValueError(f"{len(given['input_ids'])} rows in a request, expected one")
        one = {name: values.reshape(-1)[0] for name, values in given.items() if values.size}
        prompt = given["input_ids"].reshape(-1)[: int(one["input_lengths"])].tolist()
        count = int(one["request_output_len"])
        if reason := self._why_not(one, prompt, count):
            raise ValueError(reason)
        tokens, logs = [], []
        for token, log in self._tokens(prompt, count, one, given):
            if cancelled():
                return
            tokens.append(token)
            logs.append(log)
            if one.get("streaming"):
                yield self._response([token], [log], sum(logs))
        if not one.get("streaming"):
            yield self._response(tokens, logs, sum(logs))

    def _why_not(self, one: dict, prompt: list[int], count: int) -> str | None:
        """What is wrong with a request, or what this model cannot do of it."""
        for name, taken in TAKEN.items():
            if name in one and one[name] != taken:
                return f"{name}: {one[name]}, expected {taken} of ONNX Runtime's model"
        for name, (low, high) in BOUNDS.items():
            if name in one and not low <= one[name] <= high:
                return f"{name}: {one[name]}, expected {low} to {high}"
        if not prompt or count < 1 or len(prompt) + count > self.longest:
            return (
                f"{len(prompt)} tokens and {count} more, expected 1 of each at least and {self.longest} "
                "together"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocabulary:
            return (
                f"token ids from {min(prompt)} to {max(prompt)}, expected below {self.vocabulary}"
            )
        return None

    def _tokens(self, prompt: list[int], count: int, one: dict, given: dict):
        """Each token and the logarithm of its probability."""
        stop, bad = (sequences(given.get(f"{name}_words_list")) for name in ("stop", "bad"))
        bias = (
            given["embedding_bias"].reshape(-1) if given.get("embedding_bias") is not None else []
        )
        chance = np.random.default_rng(int(one.get("seed", 0)))
        said, past, ids = [], {}, prompt
        end, least = one.get("end_id", -1), int(one.get("min_tokens", 1))
        while len(said) < count:
            logits, past = self._step(ids, len(prompt) + len(said), past)
            if len(bias):
                logits[: len(bias)] += bias
            if 0 <= end < len(logits) and len(said) + 1 < least:
                logits[end] = -np.inf
            for words in bad:
                if words[:-1] == said[len(said) - len(words) + 1 :] or len(words) == 1:
                    logits[words[-1]] = -np.inf
            token = chosen(penalised(logits, prompt, said, one), one, chance)
            shifted = logits - logits.max()
            said.append(token)
            yield token, float(shifted[token] - np.log(np.exp(shifted).sum()))
            if token == end or any(said[-len(words) :] == words for words in stop):
                return
            ids = [token]

    def _step(self, ids: list[int], total: int, past: dict):
        """The logits after the last of `ids`, which end at token `total`; and the cache with them."""
        said = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, total)),
            "position_ids": np.arange(total - len(ids), total)[None],
        }
        feed = {}
        for name, (dtype, shape) in self.inputs.items():
            if name in said:
                feed[name] = said[name].astype(dtype)
            else:
                feed[name] = past.get(name, np.zeros((1, shape[1], 0, shape[3]), dtype))
        found = dict(zip(self.outputs, self.session.run(None, feed), strict=True))
        logits = found.pop("logits")[0, -1].astype(np.float32)
        return logits, {k.replace("present", "past_key_values"): v for k, v in found.items()}

    def _response(self, tokens: list[int], logs: list[float], total: float):
        found = {
            "output_ids": np.array([[tokens]], np.int32),
            "sequence_length": np.array([[len(tokens)]], np.int32),
            "cum_log_probs": np.array([[total]], np.float32),
            "output_log_probs": np.array([[logs]], np.float32),
            "context_logits": np.zeros((1, 1, 1), np.float32),
            "generation_logits": np.zeros((1, 1, 1, 1), np.float32),
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(k, v) for k, v in found.items()])


def sequences(words) -> list[list[int]]:
    """Of a tensor [1, 2, n], ids one behind the other and where each word ends, the words."""
    if words is None:
        return []
    ids, ends = words.reshape(2, -1).astype(int).tolist()
    ends = [end for end in ends if end > 0]
    return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def penalised(logits: np.ndarray, prompt: list[int], said: list[int], one: dict) -> np.ndarray:
    found = logits.copy()
    seen = list({*prompt, *said})
    repeated = float(one.get("repetition_penalty", 1))
    if repeated != 1:
        found[seen] = np.where(found[seen] > 0, found[seen] / repeated, found[seen] * repeated)
    for token in set(said):
        found[token] -= float(one.get("presence_penalty", 0))
        found[token] -= float(one.get("frequency_penalty", 0)) * said.count(token)
    return found


def chosen(logits: np.ndarray, one: dict, chance) -> int:
    """The best token, unless top_k above 1 or top_p asks for chance."""
    top_k, top_p = int(one.get("runtime_top_k", 0)), float(one.get("runtime_top_p", 0))
    if top_k == 1 or (top_k == 0 and top_p == 0):
        return int(logits.argmax())
    order = np.argsort(-logits)[: top_k or len(logits)]
    heat = max(float(one.get("temperature", 1)), 1e-6)
    shares = np.exp((logits[order] - logits[order[0]]) / heat)
    shares /= shares.sum()
    if 0 < top_p < 1:
        kept = int((np.cumsum(shares) < top_p).sum()) + 1
        order, shares = order[:kept], shares[:kept] / shares[:kept].sum()
    return int(chance.choice(order, p=shares))
