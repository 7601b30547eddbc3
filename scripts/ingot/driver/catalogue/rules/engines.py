"""What the rules of TensorRT-LLM and Triton ask: flags, parameters, what an engine needs."""

import functools
import json
import os
import sys

from ingot.base.refused import Refused, one_line
from ingot.driver.catalogue.rules.inputs import Inputs
from ingot.formats.tensorrt import build_flags, trtllm
from ingot.formats.tensorrt.triton import schema

ENGINE_MODELS = (schema.PREPROCESSING, schema.POSTPROCESSING, schema.BLS)


@functools.cache
def say_once(text: str) -> None:
    print(text, file=sys.stderr)


class Engines:
    """`talks`: only the process that a user started says what became of a flag."""

    def __init__(self, inputs: Inputs, talks: bool):
        self.inputs, self.talks = inputs, talks

    def settings(self, wildcards) -> dict:
        return self.inputs.model(wildcards)["trtllm"]

    def dtype(self, wildcards) -> str:
        """Of a checkpoint's tensors that are not quantised."""
        named = wildcards.get("float", wildcards.get("variant", "")).lstrip(".")
        return named if named in trtllm.DTYPES else self.inputs.model(wildcards)["dtype"]

    def digests(self, wildcards) -> str:
        """Of the source's tensors in that dtype: those of the model's own serve rank sets, too."""
        dtype, own = self.dtype(wildcards), self.inputs.model(wildcards)["dtype"]
        return f"artifacts/{wildcards.model}{'' if dtype == own else f'.{dtype}'}.digests.json"

    @one_line("error: ")
    def calibration(self, wildcards) -> str:
        """Texts to calibrate on: the model's own, or its prompts for verification."""
        entry = self.inputs.model(wildcards)
        named = entry["trtllm"].get("calibration") or entry.get("prompts")
        if not named:
            raise Refused(
                f"models.{wildcards.model}.trtllm.calibration: missing, expected a file of texts to "
                "calibrate on, one per line; name one"
            )
        return self.inputs.source(named)

    def compute_capability(self, wildcards) -> str:
        gpu = wildcards.gpu.lstrip(".") or self.settings(wildcards)["gpu"]
        return self.inputs.catalogue["gpus"][gpu]["compute_capability"]

    @one_line("error: ")
    def build(self, wildcards) -> build_flags.Build:
        """The catalogue's flags, as the pinned version takes them."""
        table, key = self.settings(wildcards), f"models.{wildcards.model}.trtllm.build"
        dtype = trtllm.DTYPES[self.inputs.model(wildcards)["dtype"]]
        try:
            found = build_flags.complete(table["build"], dtype, int(wildcards.tp), table["pp"])
        except Refused as reason:
            raise Refused(f"{key}: {reason}") from None
        for note in found.notes if self.talks else ():
            say_once(f"{key}: {note}")
        return found

    def flags(self, wildcards) -> list[str]:
        return self.build(wildcards).arguments()

    # Triton

    def backend(self, wildcards) -> str:
        """What serves the model: `engine`, `llmapi` or `onnx`."""
        return self.settings(wildcards)["backend"]

    def engine(self, wildcards) -> str | list:
        """The engine's directory, with backend `engine`."""
        if self.backend(wildcards) != "engine":
            return []
        return "artifacts/{model}_tp{tp}{quant}{gpu}.trtllm"

    def reference(self, wildcards) -> str:
        """What transformers answers: of a scheme that the LLM API serves, the quantised checkpoint."""
        scheme = wildcards.quant if self.backend(wildcards) == "llmapi" else ""
        return f"artifacts/{wildcards.model}{scheme}.reference.npz"

    def onnx(self, wildcards) -> str | list:
        """The ONNX folder, with backend `onnx`."""
        if self.backend(wildcards) != "onnx":
            return []
        word = self.settings(wildcards)["onnx"]
        return "artifacts/{model}" + ("" if word == "fp32" else f".{word}") + ".onnx"

    def checkpoint(self, wildcards) -> list[str]:
        """The checkpoint's files, with backend `llmapi`; of a scheme its folder."""
        if self.backend(wildcards) != "llmapi":
            return []
        if wildcards.quant:
            return [f"artifacts/{wildcards.model}{wildcards.quant}.safetensors"]
        return [self.inputs.config_json(wildcards), *self.inputs.weights(wildcards)]

    @one_line("error: ")
    def runtime(self, wildcards) -> str:
        """Parameters as JSON: what older flags of trtllm-build have become, then the catalogue's."""
        backend = self.backend(wildcards)
        older = self.build(wildcards).runtime if backend == "engine" else {}
        found = {**older, **self.settings(wildcards)["runtime"]}
        if reason := schema.why_not(backend, found):
            raise Refused(f"models.{wildcards.model}.trtllm.runtime: {reason}")
        return json.dumps(found, sort_keys=True)

    def models(self, wildcards) -> list[str]:
        """Our model.py files that the backend has."""
        names = {"llmapi": ["llmapi"], "onnx": [*ENGINE_MODELS, "onnx"]}.get(
            self.backend(wildcards), ENGINE_MODELS
        )
        folder = self.inputs.root / "runtime/triton"
        return [os.path.relpath(folder / name / "model.py") for name in names]
