"""Compare a quantised checkpoint with its source, and run it in transformers.  Runs in envs/transformers.

Each code and scale must be what compressed-tensors makes of the weights, all else as it was; of what
llm-compressor wrote, parity/calibrated_weights.py says how far.  Then transformers runs it with that
library: distributions over a corpus, greedy tokens.
"""

from pathlib import Path
from typing import Annotated

from ingot.base.console import stderr_to_log
from ingot.base.options import (
    Limits,
    RecordFile,
    ReferenceFile,
    ScoresFile,
    TextsFile,
    TokenizerFiles,
    step,
)
from ingot.model.checkpoint.files import Checkpoint
from ingot.parity import (
    checkpoint_folder,
    divergence,
    limits,
    quantised_model,
    tokenizer_folder,
    transformers_model,
    verification,
)
from ingot.parity import texts as texts_of
from ingot.parity.adapted import sources as sources_of
from ingot.parity.calibrated_weights import CalibratedComparison, linear_names
from ingot.parity.greedy import GreedyCheck
from ingot.parity.quantised_weights import PRESETS, QuantisedComparison, hold_config
from ingot.parity.reference import read

ADVICE = "take a scheme of more bits, or set `limits` of the catalogue"


def verify_safetensors(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    safetensors: Annotated[Path, "artifacts/M.fp8.safetensors"],
    scheme: Annotated[str, "that was asked for", tuple(PRESETS)],
    reference: ReferenceFile,
    texts: TextsFile,
    scores: ScoresFile,
    record: RecordFile,
    limit: Limits = (),
    compressed: Annotated[bool, "by llm-compressor"] = False,
) -> None:
    sha256, source = verification.digest(safetensors), checkpoint["config.json"]
    plain, sources = transformers_model.without_weights(source), sources_of(checkpoint)
    asked = (safetensors, scheme, sources, getattr(plain.config, "tie_word_embeddings", False))
    compared = (
        CalibratedComparison(*asked, linear_names(plain))
        if compressed
        else QuantisedComparison(*asked)
    )
    checkpoint_folder.hold_files(safetensors, tokenizer, compared.stored.tensors.shards)
    checks = compared.run()
    hold_config(safetensors, scheme, source, compared.kept_whole())
    corpus, answers = texts_of.read(texts), read(reference)
    checks |= corpus.checks(
        safetensors, tokenizer_folder.ids_of(safetensors), tokenizer_folder.chat_of(safetensors)
    )
    with stderr_to_log(f"{safetensors}: running by transformers"):
        model, rounds = quantised_model.load(safetensors)
        logits = quantised_model.logits_of(model)
        check = GreedyCheck(answers, "float32", rough=True)
        for answer in answers:
            check.rows(answer, answer.forced(logits))
        checks |= check.checks(safetensors) | check.logits(safetensors, None)
        numbers = divergence.measure(safetensors, corpus, scores, logits)
    own = limits.numbers(scheme, limits.pairs(limit))
    verification.write(
        record,
        safetensors,
        sha256,
        f"{compared.compared_with}; transformers in float32: "
        "tokens and distributions, by transformers with compressed-tensors",
        {
            **checks,
            "activations": "rounded" if rounds else "as they are",
            "numbers": divergence.held(safetensors, numbers, own, ADVICE),
        },
        versions=verification.versions("compressed-tensors", "transformers", "torch"),
    )


if __name__ == "__main__":
    step(verify_safetensors)
