"""Build GGUF of a tiny random checkpoint of each family that transformers knows, and verify it.

    python bench/breadth.py [FAMILY ...] [--most N [--seed N]] [--page docs/breadth.md] [--json]

Each goes through the rules' own scripts: transformers' reading, reference, texts and scores; llama.cpp's
converter at float32; libllama beside transformers.  What is refused is named with its line; a traceback, or
a wrong file that passes, is a fault of ours.  --page writes the table; docs/breadth.md is that of all.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]

from forking import Forking  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402
from ingot.formats.gguf.converter import ARCHITECTURES  # noqa: E402

DEMO, CORPUS = ROOT / "models/demo", ROOT / "models/corpus.txt"
SLOW = 300  # seconds that a step may take
KNOWN = """
import json
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as names
print(json.dumps({kind: name if isinstance(name, str) else name[0] for kind, name in names.items()}))
"""
MAKE, READ, COMPUTE, CONVERT, VERIFY = (
    "no checkpoint made", "not read by transformers", "not run by transformers", "not converted",
    "not verified",
)  # fmt: skip
PASSED = "verified"
NAME = "A model"  # libllama goes by a name that holds phi3
HEAD = ("| family | architecture | GGUF | mean KL, or what stops it |", "| --- | --- | --- | --- |")
BEGIN, END = "<!-- by bench/breadth.py -->\n", "<!-- end -->\n"  # of the table in the page
PIECES = {  # families whose converter asks for a tokenizer.model: with a blank before each text, or none
    "plain": ("gemma", "ernie4_5"),
    "prefixed": ("phi3", "nemotron", "minicpm3", "internlm3"),
}  # fmt: skip


class Toolchains:
    """An interpreter of each, which forks per step."""

    def __init__(self) -> None:
        names = ("transformers", "llamacpp", "llamacpp-hf")
        self.of = {
            name: Forking(toolchains.build(ROOT, name) / "bin/python", SLOW_IMPORTS[name])
            for name in names
        }

    def run(self, name: str, script: str | Path, *words) -> str | None:
        """Why the step failed, or None."""
        with self.of[name].free:
            done = self.of[name].run(ROOT / "scripts" / script, *words, seconds=SLOW)
        if done.returncode == 0:
            return None
        if done.returncode < 0:
            return f"ended by signal {-done.returncode}"
        said = " ".join(done.stderr.splitlines()[-1:])
        return f"TRACEBACK {said}" if "Traceback (most recent" in done.stderr else said

    def close(self) -> None:
        for one in self.of.values():
            one.close()


SLOW_IMPORTS = {
    "transformers": (
        "numpy", "torch", "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto", "transformers.modeling_utils",
    ),
    "llamacpp": ("numpy", "gguf.quants"),
    "llamacpp-hf": ("numpy", "torch", "transformers.models.auto.tokenization_auto"),
}  # fmt: skip


def known(place: Path) -> dict[str, str]:
    """Model type -> architecture, of all that transformers has a class with a language head for."""
    python = toolchains.build(ROOT, "transformers") / "bin/python"
    said = subprocess.run([python, "-c", KNOWN], capture_output=True, text=True, check=True).stdout
    return dict(sorted(json.loads(said).items()))


def tried(kind: str, folder: Path, run) -> dict:
    """One family through the steps; how far it came, and the line that stopped it."""
    checkpoint, place = folder / kind, folder / f"{kind}.made"
    place.mkdir()
    base = ("--checkpoint", checkpoint)
    told = {name: place / name for name in ("reading", "reference", "texts", "scores")}

    def option(*names: str) -> list:
        return [word for name in names for word in (f"--{name}", told[name])]

    gguf, record = place / "m.f32.gguf", place / "m.f32.gguf.verified.json"
    converter = toolchains.place(ROOT, "llamacpp") / "llama.cpp"
    corpus = ("--corpus", CORPUS, "--tokens", 1024)
    steps = [
        (READ, "transformers", "read_config.py", "--config", checkpoint / "config.json",
         "--way=upstream", *option("reading")),
        (CONVERT, "llamacpp-hf", "convert_gguf.py", *base, "--converter", converter, "--gguf", gguf,
         "--dtype=f32", "--name", NAME, "--pre-tokenizer=llama-bpe"),
        (COMPUTE, "transformers", "generate_reference.py", *base, *option("reading", "reference"),
         "--prompts"),
        (COMPUTE, "transformers", "encode_texts.py", *base, *option("reading", "texts"), *corpus),
        (COMPUTE, "transformers", "score_corpus.py", *base, *option("texts", "scores")),
        (VERIFY, "llamacpp", "verify_converted.py", "--gguf", gguf, "--dtype=f32", "--record", record,
         *option("reading", "reference", "texts", "scores")),
    ]  # fmt: skip
    try:
        for what, toolchain, script, *words in steps:
            if why := run(toolchain, script, *words):
                for path in (f"{checkpoint}/", f"{place}/", f"{checkpoint}: "):
                    why = why.replace(path, "")
                return {"end": what, "why": why}
        numbers = json.loads(record.read_bytes())["checks"]["numbers"]
        return {"end": PASSED, "kl": numbers["mean_kl"], "same_top": numbers["same_top"]}
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.rmtree(place)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("family", nargs="*", help="transformers' model_type (default: all)")
    parser.add_argument("--most", type=int, help="a sample of so many")
    parser.add_argument("--seed", type=int, help="of the sample (default: another each time)")
    parser.add_argument("--page", type=Path, help="write the table there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tools = Toolchains()
    with tempfile.TemporaryDirectory(dir=os.environ.get("INGOT_BENCH_DIR")) as scratch:
        folder = Path(scratch)
        architectures = known(folder)
        kinds = options.family or [
            one for one, name in architectures.items() if name in ARCHITECTURES
        ]
        if options.most:
            kinds = sorted(random.Random(options.seed).sample(kinds, min(options.most, len(kinds))))
        found = {}

        for name, more in (("prefixed", []), ("plain", ["--plain"])):
            words = ("tests/doubles/sentencepieces.py", folder / name, CORPUS, *more)
            if why := tools.run("llamacpp-hf", ROOT / words[0], *words[1:]):
                sys.exit(why)

        def one(kind: str) -> None:
            tokenizer = next(
                (folder / name for name, of in PIECES.items() if kind.startswith(of)), DEMO
            )
            with tools.of["transformers"].free:
                made = tools.of["transformers"].run(
                    ROOT / "tests/doubles/tiny_models.py", folder, tokenizer, kind, seconds=SLOW
                )
            said = json.loads(made.stdout or "{}").get(kind) or {"why": "no word"}
            if why := said.get("why"):
                found[kind] = {"end": MAKE, "why": why}
            else:
                found[kind] = tried(kind, folder, tools.run)
            found[kind]["architecture"] = architectures.get(kind, "")
            if not options.json:
                said = found[kind]
                print(f"{kind:24} {said['end']}  {said.get('kl') or said['why']}", flush=True)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(one, kinds))
    tools.close()
    if options.json:
        print(json.dumps(dict(sorted(found.items())), indent=1))
    if options.page:
        options.page.write_text(rewritten(options.page, found))
    ends = [one["end"] for one in found.values()]
    odd = [kind for kind, one in found.items() if one.get("why", "").startswith("TRACEBACK")]
    print(f"{len(ends)} tried, {ends.count(PASSED)} verified, {len(odd)} tracebacks")
    sys.exit(bool(odd))


def row(kind: str, one: dict) -> str:
    said = f"{one['kl']:.1e}" if one["end"] == PASSED else one["why"].replace("|", "\\|")
    return f"| {kind} | {one['architecture']} | {one['end']} | {said} |"


def rewritten(page: Path, found: dict) -> str:
    """The page with these rows; those of families that were not tried stay."""
    before, _, rest = page.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {line.split("|")[1].strip(): line for line in old.splitlines() if line.startswith("| ")}
    rows = {kind: line for kind, line in rows.items() if kind not in ("family", "---")}
    rows |= {kind: row(kind, one) for kind, one in found.items()}
    passed = sum(f" | {PASSED} | " in line for line in rows.values())
    head = [f"{len(rows)} families tried, {passed} verified.", "", *HEAD]
    lines = [*head, *(rows[kind] for kind in sorted(rows))]
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    main()
