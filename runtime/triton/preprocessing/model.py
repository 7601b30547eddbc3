"""Text to token ids, and words to ban, to stop at or to favour.  Runs in Triton's python backend."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """Inputs [batch, ...] of a request; what is absent gets the tokenizer's own."""

    def initialize(self, args: dict) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        version = Path(args["model_repository"], args["model_version"])
        folder = version / parameters["tokenizer_dir"]["string_value"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.special = parameters["add_special_tokens"]["string_value"] == "true"
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        self.end = self._id(settings.get("eos_token"), -1)
        self.pad = self._id(settings.get("pad_token"), max(self.end, 0))

    def _id(self, token, default: int) -> int:
        name = token["content"] if isinstance(token, dict) else token
        found = self.tokenizer.token_to_id(name) if name else None
        return default if found is None else found

    def execute(self, requests: list) -> list:
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        try:
            return pb_utils.InferenceResponse(self._tensors(request))
        except Exception as error:  # one bad request must not stop the others
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def _tensors(self, request) -> list:
        def given(name: str):
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            return None if tensor is None else tensor.as_numpy()

        texts = given("QUERY")
        batch = len(texts)
        end = self._column(given("END_ID"), self.end, batch)
        pad = self._column(given("PAD_ID"), self.pad, batch)
        ids = [self._encode(row[0].decode()) for row in texts]
        longest = max(map(len, ids))
        padded = [
            row + [int(filler)] * (longest - len(row))
            for row, filler in zip(ids, pad[:, 0], strict=True)
        ]
        bias = self._bias(given("EMBEDDING_BIAS_WORDS"), given("EMBEDDING_BIAS_WEIGHTS"), batch)
        found = {
            "INPUT_ID": np.array(padded, np.int32).reshape(batch, longest),
            "REQUEST_INPUT_LEN": np.array([[len(row)] for row in ids], np.int32),
            "REQUEST_OUTPUT_LEN": given("REQUEST_OUTPUT_LEN").astype(np.int32),
            "BAD_WORDS_IDS": self._words(given("BAD_WORDS_DICT"), batch),
            "STOP_WORDS_IDS": self._words(given("STOP_WORDS_DICT"), batch),
            "EMBEDDING_BIAS": bias,
            "OUT_END_ID": end,
            "OUT_PAD_ID": pad,
        }
        return [pb_utils.Tensor(name, values) for name, values in found.items()]

    def _column(self, values, default: int, batch: int) -> np.ndarray:
        if values is None:
            return np.full((batch, 1), default, np.int32)
        return values.astype(np.int32).reshape(batch, 1)

    def _encode(self, text: str) -> list[int]:
        """A text that brings its own start token, as chat templates do, gets no second one."""
        plain = self.tokenizer.encode(text, add_special_tokens=False).ids
        if not self.special:
            return plain
        full = self.tokenizer.encode(text, add_special_tokens=True).ids
        return plain if plain and full[:2] == [plain[0], plain[0]] else full

    def _words(self, words, batch: int) -> np.ndarray:
        """[batch, 2, n]: the words' ids one after another, and where each ends; 0 and -1 fill up."""
        rows = []
        for row in words if words is not None else [[]] * batch:
            lists = [self.tokenizer.encode(w.decode(), add_special_tokens=False).ids for w in row]
            lists = [ids for ids in lists if ids]
            flat = [number for ids in lists for number in ids]
            rows.append((flat, list(np.cumsum([len(ids) for ids in lists], dtype=int))))
        longest = max(1, *(len(flat) for flat, _ in rows))
        found = np.zeros((batch, 2, longest), np.int32)
        found[:, 1] = -1
        for number, (flat, ends) in enumerate(rows):
            found[number, 0, : len(flat)] = flat
            found[number, 1, : len(ends)] = ends
        return found

    def _bias(self, words, weights, batch: int) -> np.ndarray:
        """[batch, vocabulary]: what is added to the logits of each token of the words; or [batch, 0]."""
        if words is None or weights is None or not any(word for row in words for word in row):
            return np.zeros((batch, 0), np.float32)
        if words.shape != weights.shape:
            raise ValueError(
                f"embedding_bias_weights has shape {list(weights.shape)}, expected "
                f"{list(words.shape)}: a weight for each of embedding_bias_words"
            )
        found = np.zeros((batch, self.tokenizer.get_vocab_size(with_added_tokens=True)), np.float32)
        for number, (row, values) in enumerate(zip(words, weights, strict=True)):
            for word, weight in zip(row, values, strict=True):
                for token in self.tokenizer.encode(word.decode(), add_special_tokens=False).ids:
                    found[number, token] += weight
        return found
