"""Which versions of ONNX Runtime run `M.onnx`: each graph and dtype of the demo, greedy tokens compared.

    .venv/bin/python bench/onnx_versions.py [VERSION ...]

Each version is installed beside the other packages of envs/onnx; `pinned` is the toolchain's own.
Prints, of each graph, how many of the prompts have transformers' tokens, or why it is not loaded.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ingot.driver.toolchains import toolchains

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "models/demo"
VERSIONS = (
    "1.20.1",
    "1.21.1",
    "1.22.1",
    "1.23.2",
    "1.24.4",
    "1.26.0",
    "1.28.0",
    "1.30.0",
    "pinned",
)
KINDS = {
    "portable": (), "portable fp16": ("--dtype", "fp16"), "portable int8": ("--dtype", "int8"),
    "fused": ("--graph", "fused"), "fused fp16": ("--graph", "fused", "--dtype", "fp16"),
    "fused int8": ("--graph", "fused", "--dtype", "int8"),
    "fused dynamic": ("--graph", "fused", "--dtype", "int8", "--int8", "dynamic"),
}  # fmt: skip
SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
RUN = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
import onnxruntime
from ingot.formats.onnx.session import Session
from ingot.parity.greedy import GreedyCheck
from ingot.parity.reference import read
onnxruntime.set_default_logger_severity(4)
session, answers = Session(Path(sys.argv[2])), read(Path(sys.argv[3]))
check = GreedyCheck(answers, "float32", rough=True)
for answer in answers:
    check.rows(answer, session.forced(answer.prompt, answer.tokens))
print(f"{check.checks(Path('m'))['greedy_equal']} of {len(answers)}")
"""


def install(version: str, folder: Path) -> dict[str, str]:
    """What a program's environment needs, so that it imports this version."""
    if version == "pinned":
        return {}
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", folder]
    subprocess.run([*map(str, command), f"onnxruntime=={version}"], check=True)
    return {"PYTHONPATH": str(folder)}


def reference(folder: Path) -> Path:
    """The demo's greedy tokens by transformers."""
    python = toolchains.python(ROOT, "transformers")
    reading, found = folder / "reading.json", folder / "reference.npz"
    for script, *words in (
        ("read_config.py", "--config", DEMO / "config.json", "--reading", reading),
        ("generate_reference.py", "--checkpoint", DEMO, "--reading", reading, "--prompts",
         DEMO / "prompts.txt", "--reference", found),
    ):  # fmt: skip
        subprocess.run(
            [str(word) for word in (python, ROOT / "scripts" / script, *words)],
            check=True, capture_output=True,
        )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--json", action="store_true", help="one line, for programs")
    options = parser.parse_args()
    python, found = toolchains.python(ROOT, "onnx"), {}
    with tempfile.TemporaryDirectory() as place:
        answers = reference(Path(place))
        for kind in options.kind:
            command = [python, ROOT / "scripts/export_onnx.py", "--checkpoint", DEMO, *KINDS[kind]]
            command += ["--tokenizer", *(DEMO / name for name in SMALL)]
            subprocess.run(
                [str(word) for word in (*command, "--onnx", f"{place}/{kind}")], check=True
            )
        for version in options.versions:
            environment = {**os.environ, **install(version, Path(place, version))}
            found[version] = {}
            for kind in options.kind:
                done = subprocess.run(
                    [str(python), "-c", RUN, str(ROOT / "scripts"), f"{place}/{kind}", str(answers)],
                    env=environment, capture_output=True, text=True, check=False,
                )  # fmt: skip
                said = (done.stdout if not done.returncode else done.stderr).strip().splitlines()
                said = said[-1] if said else f"exit status {done.returncode}"
                found[version][kind] = said if not done.returncode else f"refused ({said[-60:]})"
            if not options.json:
                words = (f"{kind}: {said}" for kind, said in found[version].items())
                print(f"{version:8} " + "; ".join(words), flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
