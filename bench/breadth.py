"""Build GGUF, ONNX and OpenVINO of a tiny checkpoint of each family of transformers, and serve it by vLLM.

    python bench/breadth.py [FAMILY ...] [--most N [--seed N]] [--page docs/breadth.md] [--json]
    python bench/breadth.py [FAMILY ...] --schemes fp8 w8a8_gptq

Each goes through the rules' own scripts: transformers' reading, reference, texts and scores; llama.cpp's
converter, onnxruntime-genai's builder and optimum-intel at float32; libllama, onnxruntime-genai, OpenVINO
and vLLM beside transformers, vLLM's cache beside the plan.
What is refused is named with its line; a traceback, or a wrong file that passes, is a fault of ours.
--page writes the table; docs/breadth.md is that of all.  With --schemes each is quantised by llm-compressor
instead, and transformers runs it with compressed-tensors.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]

from forking import Forking  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402
from ingot.formats.gguf.converter import ARCHITECTURES  # noqa: E402
from ingot.formats.onnx.builder import ARCHITECTURES as BUILT  # noqa: E402
from ingot.formats.onnx.openvino.exporter import ARCHITECTURES as EXPORTED  # noqa: E402
from ingot.serving.vllm.registry import ARCHITECTURES as SERVED  # noqa: E402

DEMO, CORPUS, TEXT = ROOT / "models/demo", ROOT / "models/corpus.txt", ROOT / "LICENSE"
SMALL = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
)  # fmt: skip
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
SERVE, NOT_KNOWN = "not served", "not in its list"
STOPS = "vLLM stops"  # its tracebacks are its own
PASSED, SAME = "verified", "the same tokens"
NAME = "A model"  # libllama goes by a name that holds phi3
HEAD = (
    "| family | architecture | GGUF | mean KL, or what stops it | ONNX | the same | OpenVINO | the same "
    "| vLLM | its cache in tokens, or why not |",
    f"|{' --- |' * 10}",
)
COUNTED = ((2, PASSED), (4, PASSED), (6, PASSED), (8, SAME))  # columns
BEGIN, END = "<!-- by bench/breadth.py -->\n", "<!-- end -->\n"  # of the table in the page
PIECES = {  # families whose converter asks for a tokenizer.model: with a blank before each text, or none
    "plain": ("gemma", "ernie4_5"),
    "prefixed": ("phi3", "nemotron", "minicpm3", "internlm3"),
}  # fmt: skip


class Toolchains:
    """An interpreter of each that was asked for, which forks per step."""

    def __init__(self) -> None:
        self.begun: dict[str, Forking] = {}
        self.beginning = threading.Lock()

    def of(self, name: str) -> Forking:
        with self.beginning:
            if name not in self.begun:
                python = toolchains.build(ROOT, name) / "bin/python"
                self.begun[name] = Forking(python, SLOW_IMPORTS[name])
            return self.begun[name]

    def run(self, name: str, script: str | Path, *words) -> tuple[str | None, str]:
        """Why the step failed, or None; and what it printed."""
        done = self.of(name).run(ROOT / "scripts" / script, *words, seconds=SLOW)
        if done.returncode == 0:
            return None, done.stdout
        if done.returncode < 0:
            return f"ended by signal {-done.returncode}", ""
        said = " ".join(done.stderr.splitlines()[-1:])
        ours = "Traceback (most recent" in done.stderr and not said.startswith(STOPS)
        return f"TRACEBACK {said}" if ours else said, ""

    def close(self) -> None:
        for one in self.begun.values():
            one.close()


SLOW_IMPORTS = {
    "transformers": (
        "numpy", "torch", "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto", "transformers.modeling_utils",
    ),
    "llamacpp": ("numpy", "gguf.quants"),
    "llamacpp-hf": ("numpy", "torch", "transformers.models.auto.tokenization_auto"),
    "genai": ("numpy", "torch", "onnxruntime_genai.models.builder"),
    "onnx": ("numpy", "onnx"),
    "llmcompressor": ("numpy", "torch", "llmcompressor", "llmcompressor.modifiers.gptq"),
    "optimum-intel": ("numpy", "torch", "openvino", "transformers.modeling_utils"),
    "openvino": ("numpy", "openvino"),
    "vllm": ("numpy", "torch", "vllm", "vllm.entrypoints.llm"),
}  # fmt: skip


def known() -> dict[str, str]:
    """Model type -> architecture, of all that transformers has a class with a language head for."""
    python = toolchains.build(ROOT, "transformers") / "bin/python"
    said = subprocess.run([python, "-c", KNOWN], capture_output=True, text=True, check=True).stdout
    return dict(sorted(json.loads(said).items()))


def quantised(kind: str, folder: Path, run, schemes: list[str]) -> dict[str, dict]:
    """One family by each scheme: how far it came, and the line that stopped it."""
    checkpoint, place = folder / kind, folder / f"{kind}.made"
    place.mkdir()
    told = {name: place / name for name in ("reading", "reference", "texts", "scores")}

    def option(*names: str) -> list:
        return [word for name in names for word in (f"--{name}", told[name])]

    def through(steps: list) -> dict:
        for what, toolchain, script, *words in steps:
            why, _ = run(toolchain, script, *words)
            if why:
                return {
                    "end": what,
                    "why": why.replace(f"{checkpoint}: ", "").replace(f"{place}/", ""),
                }
        return {"end": PASSED}

    base, small = ("--checkpoint", checkpoint), [checkpoint / name for name in SMALL]
    small = [path for path in small if path.exists()]
    first = [
        (READ, "transformers", "read_config.py", "--config", checkpoint / "config.json",
         "--way=upstream", *option("reading")),
        (COMPUTE, "transformers", "generate_reference.py", *base, *option("reading", "reference"),
         "--prompts"),
        (COMPUTE, "transformers", "encode_texts.py", *base, *option("reading", "texts"), "--corpus",
         CORPUS, "--tokens", 1024),
        (COMPUTE, "transformers", "score_corpus.py", *base, *option("texts", "scores")),
    ]  # fmt: skip
    found = {}
    try:
        begun = through(first)
        for scheme in schemes:
            made = [
                *base,
                "--tokenizer",
                *small,
                "--scheme",
                scheme,
                "--safetensors",
                place / scheme,
            ]
            record = place / f"{scheme}.json"
            found[scheme] = begun if begun["end"] != PASSED else through([
                (CONVERT, "llmcompressor", "compress_safetensors.py", *made, "--text", TEXT),
                (VERIFY, "transformers", "verify_safetensors.py", *made, "--compressed", "--record",
                 record, *option("reference", "texts", "scores"), "--limit", "mean_kl=1"),
            ])  # fmt: skip
            if found[scheme]["end"] == PASSED:
                found[scheme]["kl"] = json.loads(record.read_bytes())["checks"]["numbers"][
                    "mean_kl"
                ]
        return found
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
        shutil.rmtree(place)


def tried(kind: str, architecture: str, folder: Path, run) -> dict:
    """One family through the steps; how far it came each way, and the line that stopped it."""
    checkpoint, place = folder / kind, folder / f"{kind}.made"
    place.mkdir()
    base = ("--checkpoint", checkpoint)
    told = {name: place / name for name in ("reading", "reference", "texts", "scores")}

    def option(*names: str) -> list:
        return [word for name in names for word in (f"--{name}", told[name])]

    gguf, record = place / "m.f32.gguf", place / "m.f32.gguf.verified.json"
    converter = toolchains.place(ROOT, "llamacpp") / "llama.cpp"
    corpus = ("--corpus", CORPUS, "--tokens", 1024)
    first = [
        (READ, "transformers", "read_config.py", "--config", checkpoint / "config.json",
         "--way=upstream", *option("reading")),
        (COMPUTE, "transformers", "generate_reference.py", *base, *option("reading", "reference"),
         "--prompts"),
    ]  # fmt: skip
    scored = [
        (COMPUTE, "transformers", "encode_texts.py", *base, *option("reading", "texts"), *corpus),
        (COMPUTE, "transformers", "score_corpus.py", *base, *option("texts", "scores")),
    ]
    to_gguf = [
        (CONVERT, "llamacpp-hf", "convert_gguf.py", *base, "--converter", converter, "--gguf", gguf,
         "--dtype=f32", "--name", NAME, "--pre-tokenizer=llama-bpe"),
        (VERIFY, "llamacpp", "verify_converted.py", "--gguf", gguf, "--dtype=f32", "--record", record,
         *option("reading", "reference", "texts", "scores")),
    ]  # fmt: skip
    onnx, built = place / "m.onnx", place / "m.onnx.verified.json"
    to_onnx = [
        (CONVERT, "genai", "build_onnx.py", *base, "--onnx", onnx),
        (VERIFY, "onnx", "verify_built_onnx.py", "--onnx", onnx, "--record", built,
         *option("reading", "reference", "texts", "scores")),
    ]  # fmt: skip
    openvino, exported = place / "m.openvino", place / "m.openvino.verified.json"
    to_openvino = [
        (CONVERT, "optimum-intel", "build_openvino.py", *base, "--openvino", openvino),
        (VERIFY, "openvino", "verify_built_openvino.py", "--openvino", openvino, "--record", exported,
         *option("reading", "reference", "texts", "scores")),
    ]  # fmt: skip
    to_vllm = [
        (SERVE, "vllm", ROOT / "tests/doubles/vllm_answers.py", checkpoint, told["reading"],
         told["reference"]),
    ]  # fmt: skip

    def through(steps: list) -> dict:
        said = ""
        for what, toolchain, script, *words in steps:
            why, said = run(toolchain, script, *words)
            if why:
                for path in (f"{checkpoint}/", f"{place}/", f"{checkpoint}: "):
                    why = why.replace(path, "")
                return {"end": what, "why": why}
        return {"end": PASSED, "said": said}

    try:
        asked = first + scored * (architecture in ARCHITECTURES | BUILT | EXPORTED)
        if (found := through(asked))["end"] != PASSED:
            return found
        found, in_onnx, in_openvino, served = ({"end": NOT_KNOWN, "why": ""} for _ in range(4))
        if architecture in ARCHITECTURES:
            found = through(to_gguf)
        if architecture in BUILT:
            in_onnx = through(to_onnx)
        if architecture in EXPORTED:
            in_openvino = through(to_openvino)
        if architecture in SERVED:
            served = through(to_vllm)
        for one, path in ((found, record), (in_onnx, built), (in_openvino, exported)):
            if one["end"] == PASSED:
                one["kl"] = json.loads(path.read_bytes())["checks"]["numbers"]["mean_kl"]
        if served["end"] == PASSED:
            said = json.loads(served["said"])
            had, planned = said["cache"], said["planned"]
            cache = f"{had:,}" if had == planned else f"{had:,}, planned {planned:,}"
            why = said.get("why", "").replace(f"{checkpoint}: ", "")
            served = {"end": SERVE if why else SAME, "cache": cache, "why": f"{why}; cache {cache}"}
        return {**found, "onnx": in_onnx, "openvino": in_openvino, "vllm": served}
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
    parser.add_argument("--schemes", nargs="+", help="of quantised checkpoints, by llm-compressor")
    options = parser.parse_args()
    tools = Toolchains()
    with tempfile.TemporaryDirectory(dir=os.environ.get("INGOT_BENCH_DIR")) as scratch:
        folder = Path(scratch)
        architectures = known()
        kinds = options.family or [
            one
            for one, name in architectures.items()
            if name in (SERVED if options.schemes else ARCHITECTURES | EXPORTED)
        ]
        if options.most:
            kinds = sorted(random.Random(options.seed).sample(kinds, min(options.most, len(kinds))))
        found = {}

        needed = {name for name, of in PIECES.items() if any(kind.startswith(of) for kind in kinds)}
        for name in sorted(needed):
            words = [folder / name, CORPUS, *(["--plain"] if name == "plain" else [])]
            script = ROOT / "tests/doubles/sentencepieces.py"
            if why := tools.run("llamacpp-hf", script, *words)[0]:
                sys.exit(why)

        def one(kind: str) -> None:
            tokenizer = next(
                (folder / name for name, of in PIECES.items() if kind.startswith(of)), DEMO
            )
            made = tools.of("transformers").run(
                ROOT / "tests/doubles/tiny_models.py", folder, tokenizer, kind, seconds=SLOW
            )
            said = json.loads(made.stdout or "{}").get(kind) or {"why": "no word"}
            if options.schemes:
                ends = {one: {"end": MAKE, "why": said.get("why")} for one in options.schemes}
                if not said.get("why"):
                    ends = quantised(kind, folder, tools.run, options.schemes)
                found[kind] = ends
                for scheme, end in ends.items():
                    print(
                        f"{kind:24} {scheme:12} {end['end']}  {end.get('why') or end['kl']}",
                        flush=True,
                    )
                return
            if why := said.get("why"):
                found[kind] = {"end": MAKE, "why": why}
            else:
                found[kind] = tried(kind, said["architecture"], folder, tools.run)
            found[kind]["architecture"] = architectures.get(kind, "")
            if not options.json:
                said = found[kind]
                print(f"{kind:24} " + "  ".join(cells(said)), flush=True)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(one, kinds))
    tools.close()
    if options.schemes:
        counts = {
            scheme: sum(one[scheme]["end"] == PASSED for one in found.values())
            for scheme in options.schemes
        }
        print(f"{len(found)} tried, verified: {counts}")
        ends = (end.get("why") or "" for one in found.values() for end in one.values())
        sys.exit(any("TRACEBACK" in why for why in ends))
    if options.json:
        print(json.dumps(dict(sorted(found.items())), indent=1))
    if options.page:
        options.page.write_text(rewritten(options.page, found))
    ends = [one["end"] for one in found.values()]
    of = {
        way: [one[way]["end"] for one in found.values() if way in one]
        for way in ("onnx", "openvino", "vllm")
    }
    odd = [kind for kind, one in found.items() if any("TRACEBACK" in cell for cell in cells(one))]
    print(
        f"{len(ends)} tried, {ends.count(PASSED)} verified, {of['onnx'].count(PASSED)} as ONNX, "
        f"{of['openvino'].count(PASSED)} as OpenVINO, {of['vllm'].count(SAME)} served alike, "
        f"{len(odd)} tracebacks"
    )
    sys.exit(bool(odd))


def cells(one: dict) -> list[str]:
    """Of a row: how each format ended, its number or why; how vLLM ended, its cache or why."""
    nothing = {"end": "", "why": ""}
    found = []
    for each in (one, one.get("onnx", nothing), one.get("openvino", nothing)):
        found += [each["end"], f"{each['kl']:.1e}" if each["end"] == PASSED else each["why"]]
    served = one.get("vllm", nothing)
    return [*found, served["end"], served["cache"] if served["end"] == SAME else served["why"]]


def row(kind: str, one: dict) -> str:
    said = [cell.replace("|", "\\|") for cell in cells(one)]
    return f"| {kind} | {one['architecture']} | {' | '.join(said)} |"


def rewritten(page: Path, found: dict) -> str:
    """The page with these rows; those of families that were not tried stay."""
    before, _, rest = page.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {line.split("|")[1].strip(): line for line in old.splitlines() if line.startswith("| ")}
    rows = {kind: line for kind, line in rows.items() if kind not in ("family", "---")}
    rows |= {kind: row(kind, one) for kind, one in found.items()}
    ends = [[cell.strip() for cell in line.split(" | ")] for line in rows.values()]
    gguf, onnx, openvino, vllm = (sum(one[n] == end for one in ends) for n, end in COUNTED)
    said = (
        f"{len(rows)} families tried: {gguf} verified as GGUF, {onnx} as ONNX, {openvino} as OpenVINO, "
        f"{vllm} served alike by vLLM."
    )
    lines = [said, "", *HEAD, *(rows[kind] for kind in sorted(rows))]
    return before + BEGIN + "\n".join(lines) + "\n" + END + after


if __name__ == "__main__":
    main()
