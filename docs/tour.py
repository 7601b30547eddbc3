"""Write docs/tour.md: every file of code with the first line that says what it is for."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = {  # in the order in which to read them
    "rules": "the Snakemake rules: one file per stage of the data",
    "scripts": "one verb per file; each runs by hand in its toolchain's interpreter",
    "scripts/ingot": "what all packages share",
    "scripts/ingot/terminal": "what a person sees while a step works",
    "scripts/ingot/files": "bytes to disk, whatever they mean",
    "scripts/ingot/serve": "a server that a verification starts",
    "scripts/ingot/tensors": "dtypes, and casts between them",
    "scripts/ingot/architecture/families": "one table a family of models",
    "scripts/ingot/architecture": "what a config.json says of a model, and which tensors it then has",
    "scripts/ingot/checkpoint": "a Hugging Face checkpoint, and how it is read",
    "scripts/ingot/hub": "where it is downloaded from",
    "scripts/ingot/gguf": "the GGUF format",
    "scripts/ingot/llamacpp": "llama.cpp: its library, its quantised types",
    "scripts/ingot/iree": "IREE: archives, programs, the shortfin server",
    "scripts/ingot/onnx": "ONNX: a decoder's graph, its data files, what lies beside them",
    "scripts/ingot/openvino": "OpenVINO IR, made from the ONNX graph",
    "scripts/ingot/torchpipe": "the decoder cut at attention",
    "scripts/ingot/tensorrt": "TensorRT-LLM, TensorRT for RTX",
    "scripts/ingot/triton": "Triton model repositories",
    "scripts/ingot/verify": "an artifact's values against its source's, and what a record says",
    "scripts/ingot/parity": "what transformers makes of a model, and how far an artifact is from it",
    "scripts/ingot/vllm": "vLLM: its plan, its launch files, its bundle",
    "scripts/ingot/rayserve": "Ray Serve: its applications, their configuration, its bundle",
    "scripts/ingot/kuberay": "KubeRay: its definition, what is checked of a manifest, its bundle",
    "scripts/ingot/store": "what was built, by content; knows no Snakemake",
    "scripts/ingot/storekeeping": "who needs what of the store, and what may go",
    "scripts/ingot/registry": "an OCI registry, spoken to: names, credentials, bytes",
    "scripts/ingot/trust": "what is said of an artifact's making, and signed",
    "scripts/ingot/publishing": "an artifact as a registry has it, and back",
    "scripts/ingot/images": "images of runtimes, built without a daemon",
    "scripts/ingot/driver": "what runs beside Snakemake, in the driver's own environment",
    "scripts/ingot/driver/toolchains": "what steps run in: each built once per machine, from its lock",
    "scripts/ingot/driver/known": "what is known of a model before anything is built",
    "scripts/ingot/driver/formats": "one row per format",
    "scripts/ingot/driver/catalogue": "what may be asked for, and on this machine",
    "scripts/ingot/driver/forecast": "what a build takes",
    "scripts/ingot/driver/cluster": "what a cluster is asked, and whose jobs run there",
    "scripts/ingot/driver/health": "can a site do what a run asks of it",
    "scripts/ingot/driver/remote": "the shared cache: a registry, asked by key and by recipe",
    "scripts/ingot/driver/cache": "what runs, what is restored, and why",
    "scripts/ingot/driver/board": "what a person sees of a run",
    "scripts/ingot/driver/origin": "how a target came to be, and what is said of it elsewhere",
    "scripts/ingot/driver/release": "several cells as one object: compared, reproduced",
    "scripts/ingot/driver/pages": "the page of an artifact, for the person who decides whether to ship it",
    "scripts/ingot/driver/rules": "the Python of the rules",
    "scripts/ingot/driver/commands": "the `ingot` command, one file per command",
    "runtime/triton": "what runs inside somebody else's server; imports nothing of ours",
    "runtime/rayserve": "our application of Ray Serve, and what starts it; imports nothing of ours",
    "runtime/vllm": "what runs beside vLLM, on every node; imports nothing of ours",
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
        "A phrase per file, from its first line (`python docs/tour.py` writes this page). Data go from top",
        "to bottom; a package imports only from packages listed before it, or from itself.",
        "",
        f"`Snakefile`: {first_line(ROOT / 'Snakefile')} `models.yaml`: what each model is.",
    ]
    for room, what in ROOMS.items():
        deep = "*/*.py" if room == "runtime/triton" else "*.py"
        found = [*(ROOT / room).glob(deep), *(ROOT / room).glob("*.smk")]
        files = [path for path in sorted(found) if path.name != "__init__.py"]
        lines += ["", f"## {room}/: {what}", ""]
        for path in files:
            lines.append(f"- `{path.relative_to(ROOT / room)}`: {first_line(path)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit((ROOT / "docs/tour.md").write_text(tour()) and None)
