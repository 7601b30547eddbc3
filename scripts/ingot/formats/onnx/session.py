"""A decoder with KV cache, asked for logits and tokens; and one run by ONNX Runtime on the CPU."""

from pathlib import Path

import numpy as np

from ingot.formats.onnx.attention import PAST, PRESENT
from ingot.formats.onnx.decoder import GRAPH

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
}


class Decoder:
    """Whoever runs it gives `begin`, which forgets the past, and `step`, which goes on from it."""

    def begin(self) -> None:
        raise NotImplementedError

    def step(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """ids [batch, n], all so far under mask [batch, total]: logits [batch, n, vocabulary]."""
        raise NotImplementedError

    def logits(self, ids: list[int]) -> np.ndarray:
        """Of one text, at once: [n, vocabulary]."""
        self.begin()
        row = np.array([ids])
        return self.step(row, np.ones_like(row))[0]

    def forced(self, prompt: list[int], tokens: list[int]) -> np.ndarray:
        """The logits that each of `tokens` would be taken from, by the cache: [n, vocabulary]."""
        rows = [self.logits(prompt)[-1]]
        for count, token in enumerate(tokens[:-1], len(prompt) + 1):
            rows.append(self.step(np.array([[token]]), np.ones((1, count), np.int64))[0, -1])
        return np.array(rows)

    def padded(self, prompts: list[list[int]], count: int) -> list[list[int]]:
        """Greedy tokens of a batch, padded on the left to the longest."""
        self.begin()
        longest = max(map(len, prompts))
        ids = np.array([[0] * (longest - len(one)) + one for one in prompts])
        mask = np.array([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
        said = []
        for _ in range(count):
            ids = self.step(ids, mask)[:, -1].argmax(-1)[:, None]
            said.append(ids[:, 0])
            mask = np.pad(mask, ((0, 0), (0, 1)), constant_values=1)
        return np.array(said).T.tolist()


def positions(mask: np.ndarray, count: int) -> np.ndarray:
    """Of the last `count` tokens: they count each row's real tokens, as transformers does."""
    return np.maximum(np.cumsum(mask, axis=1) - 1, 0)[:, -count:]


class Session(Decoder):
    """`folder` holds the graph."""

    def __init__(self, folder: Path):
        import onnxruntime

        self.session = onnxruntime.InferenceSession(
            str(folder / GRAPH), providers=["CPUExecutionProvider"]
        )
        self.inputs = {i.name: (DTYPES[i.type], i.shape) for i in self.session.get_inputs()}
        self.outputs = [o.name for o in self.session.get_outputs()]
        self.begin()

    def begin(self) -> None:
        self.past: dict[str, np.ndarray] = {}

    def step(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        said = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions(mask, ids.shape[1]),
        }
        feed = {}
        for name, (dtype, shape) in self.inputs.items():
            if name.startswith(PAST):
                empty = np.zeros((len(ids), shape[1], 0, shape[3]), dtype)
                feed[name] = self.past.get(name, empty)
            else:
                feed[name] = said[name].astype(dtype)
        found = dict(zip(self.outputs, self.session.run(None, feed), strict=True))
        logits = found.pop("logits").astype(np.float32)
        self.past = {name.replace(PRESENT, PAST): value for name, value in found.items()}
        return logits

    def forced(self, prompt: list[int], tokens: list[int]) -> np.ndarray:
        if "attention_mask" not in self.inputs:  # a graph without a cache
            return self.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        return super().forced(prompt, tokens)
