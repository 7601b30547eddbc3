"""Token ids to text.  Runs in Triton's python backend."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """TOKENS_BATCH [batch, beams, tokens] and SEQUENCE_LENGTH [batch, beams] to OUTPUT [batch, beams]."""

    def initialize(self, args: dict) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        version = Path(args["model_repository"], args["model_version"])
        folder = version / parameters["tokenizer_dir"]["string_value"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.skip = parameters["skip_special_tokens"]["string_value"] == "true"
        # A decoder strips the blank before the first word, which a token of a stream must keep:
        # decoded after a word, it does.
        self.before = self.tokenizer.encode("a", add_special_tokens=False).ids[-1:]
        self.drop = len(self._decode(self.before))

    def _decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=self.skip)

    def execute(self, requests: list) -> list:
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()
            lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()
            texts = [
                [
                    self._decode(self.before + ids[:length].tolist())[self.drop :].encode()
                    for ids, length in zip(beams, counts, strict=True)
                ]
                for beams, counts in zip(tokens, lengths, strict=True)
            ]
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", np.array(texts, object))])
        except Exception as error:  # one bad request must not stop the others
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
