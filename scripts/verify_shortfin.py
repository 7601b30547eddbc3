"""Serve a bundle with the real shortfin server and compare its answers.  Runs in envs/iree.

Each file must be the part that it was assembled from.  The server gets token ids; its text must be
the text of transformers' greedy tokens.  Where float16 cannot tell the reference's two best apart,
the text must be the same up to there.
"""

import argparse
import sys
import time
from pathlib import Path

from ingot.entry import run
from ingot.fields import read_json
from ingot.files import sealed
from ingot.iree import bundle as bundle_of
from ingot.iree.shortfin import Server
from ingot.terminal.console import heartbeat, stderr_to_log
from ingot.verify import tokenizer_folder, verification


def verify_shortfin(bundle: Path, reference: Path, texts: Path, record: Path, **parts) -> None:
    sha256 = verification.digest(bundle)
    held = sealed.hold(bundle, bundle_of.contents(**parts))
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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    bundle_of.add_options(parser)
    parser.add_argument("--bundle", type=Path, required=True, help="artifacts/M_tp1.shortfin")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument("--texts", type=Path, required=True, help="by encode_texts.py")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_shortfin(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
