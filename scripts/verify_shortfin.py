"""Serve a bundle with the real shortfin server and compare its answers.  Runs in envs/iree.

The server gets token ids; its text must be the text of transformers' greedy tokens, unless float16
cannot tell the reference's two best apart somewhere on the way.
"""

import argparse
import sys
import time
from pathlib import Path

from ingot import record as records
from ingot.quiet import chatter_to_stdout
from ingot.shortfin import Server


def verify_shortfin(bundle: Path, reference: Path, record: Path) -> None:
    sha256 = records.digest(bundle)
    with chatter_to_stdout():
        from tokenizers import Tokenizer

        from ingot.reference import TOLERANCE, read

        answers = read(reference)
        tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    started, equal, ties, wrong = time.monotonic(), 0, 0, []
    with Server(bundle, Path(sys.executable)) as server:
        ready = time.monotonic() - started
        for answer in answers:
            said = server.generate(input_ids=answer.prompt, max_tokens=len(answer.tokens))
            expected = tokenizer.decode(answer.tokens)
            near = answer.gaps().min() < 2 * TOLERANCE["float16"] * abs(answer.logits).max()
            equal += said == expected
            ties += said != expected and bool(near)
            if said != expected and not near:
                wrong.append(f"{len(answer.prompt)} tokens: {said!r}, expected {expected!r}")
        asked = time.monotonic() - started - ready
    if wrong:
        sys.exit(
            f"{bundle}: {equal} of {len(answers)} prompts answered as transformers does, expected "
            f"all; first wrong at {wrong[0]}"
        )
    records.write(
        record,
        bundle,
        sha256,
        "transformers in float32, greedy, by the shortfin server",
        {
            "prompts": len(answers),
            "prompt_tokens": [
                min(len(a.prompt) for a in answers),
                max(len(a.prompt) for a in answers),
            ],
            "answers_equal": equal,
            "answers_ties": ties,
        },
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
