"""Time a model's forms side by side on this machine's CPU: tokens per second of a prompt and of an answer.

    ingot speed demo                                          its forms in artifacts/ that run on a CPU
    ingot speed artifacts/demo.gguf artifacts/demo.q4_k_m.gguf

GGUF in libllama, .onnx in onnxruntime-genai, .openvino in openvino_genai, in turns.  What came out is
written to artifacts/MODEL.speed.json, from which `ingot report MODEL` takes it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ingot.base import digest, machine
from ingot.base.atomic import replacing
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.rows import row_of
from ingot.driver.catalogue.targets import FOLDER, model_of
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.toolchains import toolchains

STEP = "scripts/measure_speed.py"
TOOLCHAINS = {".gguf": "llamacpp", ".onnx": "genai", ".openvino": "openvino"}
MEASURES = ("prompt", "generation")  # tokens per second
BUSY = 0.5  # processes that wait for a core, by core, from which a figure says little


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("what", nargs="+", help="a model, or artifacts of one")
    parser.add_argument("--prompt", type=int, default=512, help="tokens (default: 512)")
    parser.add_argument("--generate", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--rounds", type=int, default=3, help="of all forms (default: 3)")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="(default: all cores)")
    parser.add_argument("--json", action="store_true", help="machine-readable: the same as JSON")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    for name in ("prompt", "generate", "rounds", "threads"):
        if getattr(options, name) < 1:
            raise Refused(f"--{name}: {getattr(options, name)}, expected 1 or more")
    for word in options.what:
        if "/" not in word and not any(Path(FOLDER).glob(f"{word}.*")):
            targets.stop_on_unknown(word, schema.load(root, options.configfile))
    forms = forms_of(options.what)
    (model,) = {model_of(form.name) for form in forms}
    busy = os.getloadavg()[0] / machine.cores()
    if busy > BUSY:
        said = f"this machine is busy ({busy:.1f} processes a core): expect less than it can do"
        print(said, file=sys.stderr)
    found = {
        "machine": machine.processor(),
        "threads": options.threads,
        "busy": round(busy, 1),
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "forms": measured(root, forms, options),
    }
    place = file_of(model)
    with replacing(place) as partial:
        partial.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=2) if options.json else table(found))
    print(f"written: {place}; `ingot report {model}` shows it", file=sys.stderr)


def file_of(model: str) -> Path:
    return Path(FOLDER, f"{model}.speed.json")


def forms_of(words: list[str]) -> list[Path]:
    """The artifacts of one model that a CPU runs.  Refused: none, of several models, not there."""
    found: list[Path] = []
    for word in words:
        if "/" in word:
            found.append(Path(word.rstrip("/")))
        else:
            there = sorted(Path(FOLDER).glob(f"{word}.*"))
            found += [path for path in there if runs(path)]
    for form in found:
        if not runs(form):
            raise Refused(f"{form}: no CPU runs it here, expected {', '.join(TOOLCHAINS)}")
        if not form.exists():
            raise Refused(f"{form}: not built yet; `snakemake {form}` builds it")
    models = sorted({model_of(form.name) for form in found})
    if not found:
        raise Refused(
            f"{FOLDER}: no form of {words[0]} that a CPU runs, expected one or more; "
            f"snakemake {FOLDER}{words[0]}.gguf"
        )
    if len(models) > 1:
        raise Refused(f"{', '.join(models)}: several models, expected forms of one")
    return found


def runs(form: Path) -> bool:
    """Is it a whole model, and one that keeps a cache?  No adapter, no part for images."""
    row = row_of(str(form))
    return bool(row) and f".{row.name}" in TOOLCHAINS and not form.name.endswith(".prefill.onnx")


def measured(root: Path, forms: list[Path], options: Namespace) -> list[dict[str, Any]]:
    """Of each form: runtime, version, and of the rounds the median, least and most of each measure."""
    pythons = {
        end: toolchains.build(root, TOOLCHAINS[end]) for end in {one.suffix for one in forms}
    }
    rounds: dict[Path, list[dict[str, Any]]] = {form: [] for form in forms}
    for number in range(1, options.rounds + 1):
        for form in forms:  # in turns: what else runs here slows all of them
            said = once(root, pythons[form.suffix] / "bin/python", form, options)
            rounds[form].append(said)
            speeds = " and ".join(f"{said[name]:.4g}" for name in MEASURES)
            print(
                f"round {number} of {options.rounds}: {form.name}: {speeds} tokens/s",
                file=sys.stderr,
                flush=True,
            )
    return [
        {
            "artifact": str(form),
            "digest": digest.of(form),
            **{key: value for key, value in said[0].items() if key not in MEASURES},
            **{name: spread([one[name] for one in said]) for name in MEASURES},
        }
        for form, said in rounds.items()
    ]


def spread(values: list[float]) -> dict[str, float]:
    found = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def once(root: Path, python: Path, form: Path, options: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "speed.json")
        words = ["--artifact", form, "--result", result]
        for name in ("prompt", "generate", "threads"):
            words += [f"--{name}", getattr(options, name)]
        done = subprocess.run(
            [python, root / STEP, *map(str, words)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"{form}: its runtime stopped"]
            raise Refused(last[0].removeprefix("error: "))
        return json.loads(result.read_bytes())


def table(found: dict[str, Any]) -> str:
    """Tokens per second: the median, and how far a round was from it."""
    rows = [("tokens/s", *MEASURES, "runtime")]
    for form in sorted(found["forms"], key=lambda one: -one["generation"]["median"]):
        speeds = (shown(form[name]) for name in MEASURES)
        rows.append((Path(form["artifact"]).name, *speeds, f"{form['runtime']} {form['version']}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{name:<{widths[0]}}  {prompt:>{widths[1]}}  {generation:>{widths[2]}}  {runtime}"
        for name, prompt, generation, runtime in rows
    ]
    return "\n".join([f"{found['machine']}, {found['threads']} threads", "", *lines])


def shown(speed: dict[str, float]) -> str:
    far = max(speed["most"] - speed["median"], speed["median"] - speed["least"])
    return f"{speed['median']:.4g} ± {far:.2g}"


def of_forms(model: str) -> dict[str, Any]:
    """What was measured of a model, with those forms that are the same bytes still; empty: nothing."""
    try:
        found = json.loads(file_of(model).read_bytes())
        forms = {one["artifact"]: one for one in found["forms"]}
        kept = {
            name: {key: one[key]["median"] for key in MEASURES}
            for name, one in forms.items()
            if Path(name).exists() and digest.of(name) == one["digest"]
        }
        about = {key: found[key] for key in ("machine", "threads", "busy", "written")}
    except (OSError, ValueError, KeyError, TypeError):  # none, or one that somebody edited
        return {}
    return {**about, "forms": kept} if kept else {}
