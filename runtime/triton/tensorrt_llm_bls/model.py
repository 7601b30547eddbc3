"""The ensemble's way in Python, for one request after another.  Runs in Triton's python backend.

What a stream sends is never half a character: tokens that do not make a whole text yet are held back.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

HALF = "\ufffd"  # what a decoder puts for bytes that are no character yet


class TritonPythonModel:
    def initialize(self, args: dict) -> None:
        config = json.loads(args["model_config"])
        self.engine = config["parameters"]["tensorrt_llm_model_name"]["string_value"]
        version = Path(args["model_repository"], args["model_version"])
        wiring = json.loads((version / "wiring.json").read_bytes())
        self.front_in = wiring["front_in"]  # of preprocessing -> of a request
        self.front_out = wiring["front_out"]  # of preprocessing -> of the engine
        self.sampling = wiring["sampling"]  # of a request -> of the engine
        self.numbers = wiring["numbers"]  # outputs of the engine that go through
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(config)

    def execute(self, requests: list) -> list | None:
        if not self.decoupled:
            return [self._only(request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            try:
                for response in self._responses(request):
                    sender.send(response)
            except Exception as error:  # one bad request must not stop the others
                failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
                sender.send(failed)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def _only(self, request):
        try:
            return list(self._responses(request))[-1]
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def _responses(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if len(given["text_input"]) != 1:  # a decoupled engine answers each row by itself
            raise ValueError(f"{len(given['text_input'])} texts in a request, expected one")
        front = self._ask(
            "preprocessing",
            {theirs: given[ours] for theirs, ours in self.front_in.items() if ours in given},
            list(self.front_out),
        )
        asked = {self.front_out[name]: values for name, values in front.items()}
        asked |= {
            self.sampling[name]: values for name, values in given.items() if name in self.sampling
        }
        streaming = "stream" in given and bool(given["stream"].reshape(-1)[0])
        tokens, sent = None, None
        for answer in self._stream(asked):
            new = answer["output_ids"], answer["sequence_length"]
            tokens = joined(tokens, new) if streaming else new
            texts = self._texts(tokens)
            if streaming:
                whole = [[text.rstrip(HALF) for text in row] for row in texts]
                sent = sent or [[""] * len(row) for row in texts]
                if whole != sent:
                    yield self._response(beyond(whole, sent), answer)
                    sent = whole
            else:
                yield self._response(texts, answer)
        if streaming and tokens and texts != sent:  # the end came in the middle of a character
            yield self._response(beyond(texts, sent), answer)

    def _texts(self, tokens) -> list[list[str]]:
        asked = {"TOKENS_BATCH": tokens[0], "SEQUENCE_LENGTH": tokens[1]}
        texts = self._ask("postprocessing", asked, ["OUTPUT"])["OUTPUT"]
        return [[text.decode() for text in row] for row in texts]

    def _response(self, texts, answer: dict):
        rows = np.array([[text.encode() for text in row] for row in texts], object)
        tensors = [pb_utils.Tensor("text_output", rows)]
        tensors += [pb_utils.Tensor(n, answer[n]) for n in self.numbers if n in answer]
        return pb_utils.InferenceResponse(tensors)

    def _ask(self, model: str, inputs: dict, outputs: list[str]) -> dict:
        """One request, one response: outputs by name."""
        return values(self._request(model, inputs, outputs).exec())

    def _stream(self, inputs: dict):
        outputs = ["output_ids", "sequence_length", *self.numbers]
        request = self._request(self.engine, inputs, outputs)
        for response in request.exec(decoupled=True) if self.decoupled else [request.exec()]:
            answer = values(response)
            if "output_ids" in answer:  # the last of a stream may be empty
                yield answer

    def _request(self, model: str, inputs: dict, outputs: list[str]):
        tensors = [pb_utils.Tensor(name, array) for name, array in inputs.items()]
        return pb_utils.InferenceRequest(
            model_name=model, inputs=tensors, requested_output_names=outputs
        )


def values(response) -> dict:
    if response.has_error():
        raise RuntimeError(response.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def beyond(texts: list[list[str]], sent: list[list[str]]) -> list[list[str]]:
    """What each text has that was not sent yet."""
    return [
        [text[len(old) :] for text, old in zip(row, olds, strict=True)]
        for row, olds in zip(texts, sent, strict=True)
    ]


def joined(tokens, new):
    """[batch, beams, tokens] with each beam's new tokens after its old ones."""
    if tokens is None:
        return new
    batch, beams = new[1].shape
    rows = [
        [[*tokens[0][b, k, : tokens[1][b, k]], *new[0][b, k, : new[1][b, k]]] for k in range(beams)]
        for b in range(batch)
    ]
    lengths = np.array([[len(ids) for ids in row] for row in rows], np.int32)
    found = np.zeros((batch, beams, max(1, int(lengths.max()))), np.int32)
    for b, row in enumerate(rows):
        for k, ids in enumerate(row):
            found[b, k, : len(ids)] = ids
    return found, lengths
