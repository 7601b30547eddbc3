"""A stateful IR, run on the CPU: by the plain runtime, and by openvino_genai's LLMPipeline."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ingot.base.refused import Refused
from ingot.formats.onnx.openvino.ir import STEM, TOKENIZERS
from ingot.formats.onnx.session import Decoder, positions

# The defaults of a CPU that has bfloat16 compute in it, compress the cache and quantise activations.
EXACT = {
    "KV_CACHE_PRECISION": "f32",
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
GIVEN = ("input_ids", "attention_mask", "position_ids", "beam_idx")


class Session(Decoder):
    def __init__(self, folder: Path, settings: dict[str, str]):
        import openvino

        model = openvino.compile_model(str(folder / f"{STEM}.xml"), "CPU", settings)
        self.names = {name for one in model.inputs for name in one.names}
        if odd := sorted(self.names - {*GIVEN}):
            raise Refused(
                f"{folder}: asks for {', '.join(odd)}, expected no more than openvino_genai gives: "
                f"{', '.join(GIVEN)}"
            )
        self.request = model.create_infer_request()

    def begin(self) -> None:
        self.request.reset_state()

    def step(self, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        feed = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions(mask, ids.shape[1]),
            "beam_idx": np.arange(len(ids), dtype=np.int32),
        }
        feed = {name: value for name, value in feed.items() if name in self.names}
        return np.array(self.request.infer(feed)["logits"], np.float32)


def generated(
    folder: Path, asked: list[tuple[list[int], int]], settings: dict[str, str]
) -> Iterator[list[int]]:
    """LLMPipeline's greedy tokens for each prompt and how many."""
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(str(folder), "CPU", **settings)
    for prompt, count in asked:
        ids = openvino.Tensor(np.array([prompt], np.int64))
        inputs = openvino_genai.TokenizedInputs(ids, openvino.Tensor(np.ones_like([prompt])))
        found = pipeline.generate(inputs, max_new_tokens=count, do_sample=False)
        yield list(found.tokens[0])


def token_ids(folder: Path) -> Callable[[str], list[int]]:
    """What the folder's own tokenizer makes of a text."""
    import openvino
    import openvino_tokenizers  # noqa: F401  which gives OpenVINO its operations

    model = openvino.compile_model(str(folder / f"{TOKENIZERS[0]}.xml"), "CPU")
    return lambda text: model([text])["input_ids"][0].tolist()
