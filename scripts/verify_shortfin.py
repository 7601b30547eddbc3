"""Serve a bundle with the real shortfin server and compare its answers.  Runs in envs/iree.

The server gets token ids; its text must be the text of transformers' greedy tokens.  Where float16
cannot tell the reference's two best apart, the text must be the same up to there.
"""

import argparse
import sys
import time
from pathlib import Path

from ingot.files.console import beating, chatter_to_stdout
from ingot.iree.shortfin import Server
from ingot.verify import record as records


def verify_shortfin(bundle: Path, reference: Path, record: Path) -> None:
    sha256 = records.digest(bundle)
    with chatter_to_stdout(f"{reference}: reading"):
        import numpy as np
        from tokenizers import Tokenizer

        from ingot.verify.reference import MOST_TIES, peak, read, summary

        answers = read(reference)
        top = peak(answers)
        tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    started, equal, ties, wrong = time.monotonic(), 0, 0, []
    with beating(f"{bundle}: asking the server"), Server(bundle, Path(sys.executable)) as server:
        ready = time.monotonic() - started
        for answer in answers:
            said = server.generate(input_ids=answer.prompt, max_tokens=len(answer.tokens))
            expected = tokenizer.decode(answer.tokens)
            first_ties = np.flatnonzero(answer.ties(top, "float16"))
            certain = (
                tokenizer.decode(answer.tokens[: first_ties[0]]) if len(first_ties) else expected
            )
            if said == expected:
                equal += 1
            elif len(first_ties) and said.startswith(certain.rstrip("\ufffd")):
                ties += 1
            else:
                wrong.append(f"{len(answer.prompt)} tokens: {said!r}, expected {expected!r}")
        asked = time.monotonic() - started - ready
    if wrong or ties > MOST_TIES * len(answers):
        sys.exit(
            f"{bundle}: {equal} of {len(answers)} prompts answered as transformers does ({ties} "
            f"ties), expected all; first wrong at {', '.join(wrong[:1]) or 'none'}"
        )
    records.write(
        record,
        bundle,
        sha256,
        "transformers in float32, greedy, by the shortfin server",
        {**summary(answers), "answers_equal": equal, "answers_ties": ties},
        seconds={"to_health": round(ready, 2), "to_answer_all": round(asked, 2)},
        versions=records.versions("shortfin", "transformers"),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, help="artifacts/M_tp1.shortfin")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_shortfin(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    main()
