"""Serve a bundle with the real shortfin server and compare its answers.  Runs in envs/iree.

Each file must be the part that it was assembled from.  The server gets token ids; its text must be
the text of transformers' greedy tokens.  Where float16 cannot tell the reference's two best apart,
the text must be the same up to there.
"""

import sys
import time
from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.console import heartbeat, stderr_to_log
from ingot.base.fields import read_json
from ingot.base.options import RecordFile, ReferenceFile, TextsFile, step
from ingot.formats.iree import bundle as bundle_of
from ingot.formats.iree.shortfin import Server
from ingot.parity import tokenizer_folder, verification


def verify_shortfin(
    bundle: Annotated[Path, "artifacts/M_tp1.shortfin"],
    reference: ReferenceFile,
    texts: TextsFile,
    record: RecordFile,
    parts: bundle_of.Parts,
) -> None:
    sha256 = verification.digest(bundle)
    held = sealed.hold(bundle, bundle_of.contents(**vars(parts)))
    with stderr_to_log(f"{reference}: reading"):
        from tokenizers import Tokenizer

        from ingot.parity import texts as texts_of
        from ingot.parity.greedy import GreedyCheck
        from ingot.parity.reference import read

        encoding = texts_of.read(texts).checks(
            bundle, tokenizer_folder.ids_of(bundle), tokenizer_folder.chat_of(bundle)
        )
        answers = read(reference)
        dtype = read_json(bundle / "config.json")["paged_kv_cache"]["kv_cache_dtype"]
        check = GreedyCheck(answers, dtype)
        tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    started = time.monotonic()
    with heartbeat(f"{bundle}: asking the server"), Server(bundle, Path(sys.executable)) as server:
        ready = time.monotonic() - started
        for answer in answers:
            said = server.generate(input_ids=answer.prompt, max_tokens=len(answer.tokens))
            check.text(answer, said, tokenizer.decode)
        asked = time.monotonic() - started - ready
    verification.write(
        record,
        bundle,
        sha256,
        "transformers in float32, greedy, by the shortfin server",
        {"files_equal": held, **encoding, **check.checks(bundle)},
        seconds={"to_health": round(ready, 2), "to_answer_all": round(asked, 2)},
        versions=verification.versions("shortfin", "transformers"),
    )


if __name__ == "__main__":
    step(verify_shortfin)
