"""A decoder with its KV cache on a CPU: ONNX Runtime's, or OpenVINO's; rows of any length in one batch."""

from pathlib import Path

import numpy as np

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
Cache = list[np.ndarray]  # each [rows, KV heads, tokens, head_dim]


class OnnxRuntime:
    """A folder of M.int8.onnx.  Sessions share the weights; each has a cache of its own."""

    def __init__(self, folder: Path, threads: int, properties: dict[str, str]):
        import onnxruntime

        if properties:
            raise ValueError(f"properties: {properties}, expected none of ONNX Runtime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        path = str(folder / "model.onnx")
        self.model = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        self.inputs = {one.name: one for one in self.model.get_inputs()}
        self.past = [name for name in self.inputs if name.startswith("past_key_values.")]
        self.outputs = ["logits", *(p.replace("past_key_values", "present") for p in self.past)]

    def session(self) -> "OnnxSession":
        return OnnxSession(self)


class OnnxSession:
    def __init__(self, runtime: OnnxRuntime):
        self.runtime = runtime
        self.cache: Cache = [self._empty(name) for name in runtime.past]

    def _empty(self, name: str) -> np.ndarray:
        one = self.runtime.inputs[name]
        return np.zeros((1, one.shape[1], 0, one.shape[3]), DTYPES[one.type])

    def step(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Logits [rows, vocabulary] after `ids` [rows, n]; `mask` [rows, tokens] ends with theirs."""
        feed = {**_said(ids, mask), **dict(zip(self.runtime.past, self.cache, strict=True))}
        feed = {name: feed[name] for name in self.runtime.inputs}
        logits, *self.cache = self.runtime.model.run(self.runtime.outputs, feed)
        return logits[:, -1].astype(np.float32)

    def keep(self, rows: list[int]) -> None:
        self.cache = [one[rows] for one in self.cache]


class OpenVINO:
    """A folder of M.int8.openvino: a stateful IR.  `properties` are the CPU plugin's."""

    def __init__(self, folder: Path, threads: int, properties: dict[str, str]):
        import openvino

        path = str(folder / "openvino_model.xml")
        own = {"INFERENCE_NUM_THREADS": threads, **properties}
        self.model = openvino.Core().compile_model(path, "CPU", own)

    def session(self) -> "OpenVINOSession":
        return OpenVINOSession(self.model.create_infer_request())


class OpenVINOSession:
    def __init__(self, request):
        self.request = request
        self.rows: np.ndarray | None = None  # of the state, that the next step goes on with

    def step(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        rows = np.arange(len(ids), dtype=np.int32) if self.rows is None else self.rows
        self.rows = None
        found = self.request.infer({**_said(ids, mask), "beam_idx": rows})
        return np.array(found["logits"][:, -1], np.float32)

    def keep(self, rows: list[int]) -> None:
        self.rows = np.array(rows, np.int32)

    @property
    def cache(self) -> Cache:
        found = [np.array(one.state.data) for one in self.request.query_state()]
        return found if self.rows is None else [one[self.rows] for one in found]

    @cache.setter
    def cache(self, arrays: Cache) -> None:
        import openvino

        self.rows = None
        for one, values in zip(self.request.query_state(), arrays, strict=True):
            one.state = openvino.Tensor(np.ascontiguousarray(values))


RUNTIMES = {"onnx": OnnxRuntime, "openvino": OpenVINO}


def _said(ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Positions count the tokens of a row, not what fills it up on the left."""
    positions = np.maximum(mask.cumsum(1) - 1, 0)[:, -ids.shape[1] :]
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
