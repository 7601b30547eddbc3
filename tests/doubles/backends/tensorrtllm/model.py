"""A stand-in for Triton's C++ backend `tensorrtllm`, which needs a GPU.  See README.md two folders up."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parent))
from llama import Model

BATCHING = ("V1", "v1", "inflight_batching", "inflight_fused_batching")


class TritonPythonModel:
    def initialize(self, args: dict) -> None:
        config = json.loads(args["model_config"])
        self.parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        if self.parameter("gpt_model_type") not in BATCHING:
            raise pb_utils.TritonModelException(
                "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching."
            )
        for name in ("tokenizer_dir", "guided_decoding_backend", "xgrammar_tokenizer_info_path"):
            self.parameter(name)
        folder = Path(self.parameter("gpt_model_path"))  # as it stands: from the server's folder
        if not folder.is_dir():
            raise pb_utils.TritonModelException("Both encoder and decoder model paths are empty")
        told = json.loads((folder / "config.json").read_bytes())
        if config["max_batch_size"] > told["build_config"]["max_batch_size"]:
            raise pb_utils.TritonModelException("max_batch_size is more than the engine's")
        if told["pretrained_config"]["mapping"]["world_size"] > 1:
            self.wait_if_not_first()
        self.model = Model.of_engine(folder)
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)

    def wait_if_not_first(self) -> None:
        """A rank that is not the first never comes back from loading: it computes until it is ended."""
        import os

        while int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")):
            time.sleep(1)

    def parameter(self, name: str) -> str:
        if name not in self.parameters:
            raise pb_utils.TritonModelException(f"Cannot find parameter with name: {name}")
        return self.parameters[name]

    def execute(self, requests: list) -> list | None:
        if not self.decoupled:
            return [self.only(request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            try:
                for response in self.responses(request):
                    sender.send(response)
            except Exception as error:
                failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
                sender.send(failed)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def only(self, request):
        try:
            (response,) = self.responses(request)
            return response
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def responses(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if len(given["input_ids"]) != 1:
            raise RuntimeError("the stand-in answers one row a request")
        given = {name: values.reshape(-1) for name, values in given.items()}
        ids = given["input_ids"][: int(given["input_lengths"][0])].tolist()
        end = int(given["end_id"][0]) if "end_id" in given else None
        tokens = self.model.generate(ids, int(given["request_output_len"][0]), end)
        if "streaming" in given and given["streaming"][0]:
            if not self.decoupled:
                raise RuntimeError("Streaming is only supported in decoupled mode.")
            for token in tokens:
                yield self.response([token])
        else:
            yield self.response(list(tokens))

    def response(self, tokens: list[int]):
        count = len(tokens)
        found = {
            "output_ids": np.array([[tokens]], np.int32),
            "sequence_length": np.array([[count]], np.int32),
            "cum_log_probs": np.zeros((1, 1), np.float32),
            "output_log_probs": np.zeros((1, 1, count), np.float32),
            "context_logits": np.zeros((1, 1, 1), np.float32),
            "generation_logits": np.zeros((1, 1, 1, 1), np.float32),
        }
        return pb_utils.InferenceResponse([pb_utils.Tensor(k, v) for k, v in found.items()])
