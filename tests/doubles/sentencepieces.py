"""Write a folder with a SentencePiece tokenizer, as a hub's model has it.  Runs in envs/llamacpp-hf.

    python sentencepieces.py OUT CORPUS [--plain]

tokenizer.model, the tokenizer.json that says the same, tokenizer_config.json, generation_config.json.  With
--plain no blank is put before a text, as Gemma's.
"""

import io
import sys
from pathlib import Path

import sentencepiece

import checkpoints
import tokenizers_of

PIECES = 1000


def write(out: Path, corpus: Path, prefixed: bool) -> None:
    out.mkdir(parents=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus.read_text().splitlines()), model_writer=model,
        vocab_size=PIECES, model_type="bpe", byte_fallback=True, minloglevel=2,
        hard_vocab_limit=False, normalization_rule_name="identity", add_dummy_prefix=prefixed,
        remove_extra_whitespaces=False,
    )  # fmt: skip
    known = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(known.IdToPiece(n), known.GetScore(n)) for n in range(known.vocab_size())]
    for name in ("tokenizer.model", "added_tokens.json"):
        (out / name).write_bytes(b"")
    tokenizers_of.rewritten(out, pieces, prefixed)
    (out / "tokenizer.model").write_bytes(model.getvalue())
    checkpoints.write_json(out / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2]})


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), "--plain" not in sys.argv)
