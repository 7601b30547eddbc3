"""TensorRT-LLM's LLM API on the checkpoint in model/.  Runs in Triton's python backend.

model.yaml beside this file holds the arguments of LLM(...).  Needs tensorrt_llm and a GPU.
"""

import asyncio
import json
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
import yaml
from tokenizers import Tokenizer

SAMPLING = "sampling_param_"


class TritonPythonModel:
    def initialize(self, args: dict) -> None:
        try:
            from tensorrt_llm import LLM
        except ImportError as error:
            raise pb_utils.TritonModelException(
                f"tensorrt_llm cannot be imported ({error}); serve this where TensorRT-LLM is"
            ) from None
        version = Path(args["model_repository"], args["model_version"])
        arguments = yaml.safe_load((version / "model.yaml").read_text())
        config = json.loads(args["model_config"])
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)
        self.batched = config["max_batch_size"] > 0
        self.tokenizer = Tokenizer.from_file(str(version / "model/tokenizer.json"))
        self.llm = LLM(model=str(version / "model"), **arguments)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def finalize(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.llm.shutdown()

    def execute(self, requests: list) -> list | None:
        """All at once: the LLM API batches requests in flight itself."""
        if self.decoupled:
            for request in requests:
                sender = request.get_response_sender()
                asyncio.run_coroutine_threadsafe(self._stream(request, sender), self.loop)
            return None
        waiting = [
            asyncio.run_coroutine_threadsafe(self._only(request), self.loop) for request in requests
        ]
        return [one.result() for one in waiting]

    async def _stream(self, request, sender) -> None:
        try:
            async for response in self._responses(request):
                sender.send(response)
        except Exception as error:  # one bad request must not stop the others
            failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
            sender.send(failed)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    async def _only(self, request):
        try:
            found = [response async for response in self._responses(request)]
            return found[-1]
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    async def _responses(self, request):
        from tensorrt_llm import SamplingParams

        given = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
        if len(given["text_input"]) != 1:
            raise ValueError(f"{len(given['text_input'])} texts in a request, expected one")
        streaming = "streaming" in given and bool(given["streaming"][0])
        if streaming and not self.decoupled:
            raise ValueError("streaming needs decoupled, which config.pbtxt has switched off")
        sampling = {
            name.removeprefix(SAMPLING): values[0].item()
            for name, values in given.items()
            if name.startswith(SAMPLING) and name != f"{SAMPLING}stop"
        }
        if words := [word.decode() for word in given.get(f"{SAMPLING}stop", []) if word]:
            sampling["stop"] = words
        ids = self._encode(given["text_input"][0].decode())
        answer = self.llm.generate_async(ids, SamplingParams(**sampling), streaming=streaming)
        if not streaming:
            yield self._response((await answer.aresult()).outputs[0], "text", given)
            return
        async for part in answer:
            yield self._response(part.outputs[0], "text_diff", given)

    def _encode(self, text: str) -> list[int]:
        """A text that brings its own start token, as chat templates do, gets no second one."""
        plain = self.tokenizer.encode(text, add_special_tokens=False).ids
        full = self.tokenizer.encode(text, add_special_tokens=True).ids
        return plain if plain and full[:2] == [plain[0], plain[0]] else full

    def _response(self, output, text: str, given: dict):
        found = {"text_output": [getattr(output, text).encode()]}
        for name, value in (
            ("finish_reason", str(output.finish_reason).encode()),
            ("stop_reason", str(output.stop_reason).encode()),
            ("cumulative_logprob", output.cumulative_logprob),
        ):
            if f"return_{name}" in given and given[f"return_{name}"][0]:
                found[name] = [value]
        kinds = {"cumulative_logprob": np.float32}
        tensors = []
        for name, values in found.items():
            array = np.array(values, kinds.get(name, object))
            tensors.append(pb_utils.Tensor(name, array[None] if self.batched else array))
        return pb_utils.InferenceResponse(tensors)
