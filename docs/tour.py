"""Write docs/tour.md: every file of code with the first line that says what it is for."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {  # in the order in which to read them: a room imports from those above it, and from itself
    "rules": "the Snakemake rules: one file per stage of the data",
    "scripts": "one verb per file; each runs by hand in its toolchain's interpreter",
    "scripts/ingot/base": "how a program begins and ends, says what it does, reads and writes bytes",
    "scripts/ingot/model": "a model: config.json, its family's table, its checkpoint, its hub, its tensors",
    "scripts/ingot/formats/gguf": "GGUF, and llama.cpp: its library, its quantised types",
    "scripts/ingot/formats/iree": "IREE: archives, programs, the shortfin server",
    "scripts/ingot/formats/onnx": "ONNX: a decoder's graph and data; OpenVINO and torchpipe, made from it",
    "scripts/ingot/formats/tensorrt": "TensorRT-LLM, TensorRT for RTX, Triton model repositories",
    "scripts/ingot/parity": "what transformers makes of a model, and how far an artifact is from it",
    "scripts/ingot/serving": "bundles for vLLM, Ray Serve and KubeRay",
    "scripts/ingot/store": "what was built, by content, and what of it may go; knows no Snakemake",
    "scripts/ingot/registry": "an artifact as a registry has it, and back: transfer, trust, images",
    "scripts/ingot/driver/toolchains": "what steps run in: each built once per machine, from its lock",
    "scripts/ingot/driver/catalogue": "what may be asked for: models, formats, the Python of the rules",
    "scripts/ingot/driver/forecast": "what a build takes",
    "scripts/ingot/driver/cache": "what runs, what is restored, and why; the shared cache",
    "scripts/ingot/driver/show": "what a person sees of a run",
    "scripts/ingot/driver/snakemake": "where Ingot meets Snakemake: all private names, its plugins' too",
    "scripts/snakemake_executor_plugin_ingot": "how Snakemake finds the plugins of a cluster",
    "scripts/ingot/driver/release": "how an artifact came to be, its page, and several as one object",
    "scripts/ingot/driver/commands": "the `ingot` command, one file per command",
    "runtime": "what runs inside somebody else's server, or beside it; imports nothing of ours",
    "models/demo": "the embedded model",
    "envs/llamacpp": "what pip cannot build",
    "bench": "speed and memory beside peers",
    "docs": "these pages",
}


def first_line(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        said = text.removeprefix('"""').partition('"""')[0]
    return said.strip().splitlines()[0] if said.strip() else ""


def tour() -> str:
    lines = [
        "# The tour",
        "",
        "A phrase per file, from its first line (`make docs` writes this page). Data go from top",
        "to bottom; a package imports only from packages listed before it, or from itself.",
        "",
        f"`Snakefile`: {first_line(ROOT / 'Snakefile')} `models.yaml`: what each model is.",
    ]
    for room, what in ROOMS.items():
        deep = "**/*.py" if room.startswith(("scripts/ingot/", "runtime")) else "*.py"
        found = [*(ROOT / room).glob(deep), *(ROOT / room).glob("*.smk")]
        files = [path for path in sorted(found) if path.name != "__init__.py"]
        lines += ["", f"## {room}/: {what}", ""]
        for path in files:
            lines.append(f"- `{path.relative_to(ROOT / room)}`: {first_line(path)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit((ROOT / "docs/tour.md").write_text(tour()) and None)
