"""Add a model of your own to the catalogue: `ingot add ORGANISATION/NAME`, or a folder.

Reads the hub's list of files, config.json and the tokenizer, pins the commit, and writes an entry to
models.local.yaml, which every command here reads without a flag.  A model that no format could be right of
is refused before anything is written.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ingot.base.atomic import replacing
from ingot.base.refused import Refused
from ingot.driver.catalogue import found as found_of
from ingot.driver.catalogue import machine, schema, targets
from ingot.driver.catalogue.formats.rows import OFFERED
from ingot.driver.catalogue.model import planned
from ingot.driver.toolchains import toolchains
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.model.config import ModelConfig
from ingot.model.families.table import FAMILIES
from ingot.model.hub.listing import read_listing
from ingot.model.specs import parameters
from ingot.model.tensors.dtypes import FLOATS, STORED

HEADER = (
    "# Models of your own, by `ingot add`; edit it as you like.  It is read over models.yaml.\n"
)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="organisation/name on the hub, its address there, or a folder in the hub's layout",
    )
    parser.add_argument("--name", help="in targets (default: by the model's own)")
    parser.add_argument("--revision", default="", help="the commit to pin (default: main's)")


def run(root: Path, options: Namespace) -> None:
    folder = found_of.local(options.model)
    hub, revision = ("", "") if folder else found_of.on_hub(options.model)
    title = folder.resolve().name if folder else hub.partition("/")[2]
    name = options.name or re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    catalogue = schema.load(root, None)
    if name in catalogue["models"]:
        raise Refused(f"{name}: in the catalogue already, expected a new name; give it --name")
    title = re.sub("[-_]+", " ", title)
    if folder:
        entry, size = of_folder(folder, title)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            revision = options.revision or revision
            entry, size = of_hub(root, hub, revision, Path(scratch), title)
    if not machine.has_gpu():  # else a plain M_tp1.vmfb would be for a GPU that is not here
        entry["hardware"] = "cpu"
    text = yaml_of(name, entry)
    write(root, name, text)
    catalogue = schema.load(root, None)
    print(f"{Path(schema.LOCAL).resolve()}: {name}, {where(entry)}")
    for line in about(root, name, entry, size, catalogue):
        print(line)


def of_folder(folder: Path, title: str) -> tuple[dict[str, Any], int]:
    names = {path.name for path in folder.iterdir() if path.is_file()}
    found_of.stop_on_another_kind(str(folder), names)
    path = folder.resolve()
    inside = path.is_relative_to(Path.cwd())
    source = {"path": os.path.relpath(path) if inside else str(path)}
    size = sum(one.stat().st_size for one in folder.glob("model*.safetensors"))
    entry = with_weights(found_of.entry(str(folder), names, folder, source, title), folder, size)
    expected = FLOATS if entry["architecture"] in FAMILIES else STORED
    read_checkpoint(Checkpoint([path for path in folder.iterdir() if path.is_file()]), expected)
    return entry, size


def of_hub(
    root: Path, hub: str, revision: str, folder: Path, title: str
) -> tuple[dict[str, Any], int]:
    listing = folder / "listing.json"
    words = ["--model", "model", "--hub", hub, f"--revision={revision}"]
    step(
        root, "fetch_listing.py", *words, "--revisions", folder / "revisions", "--listing", listing
    )
    found = read_listing(listing)
    found_of.stop_on_another_kind(hub, found["files"])
    for name in found_of.wanted(found["files"]):
        step(root, "fetch_file.py", "--listing", listing, "--name", name, "--file", folder / name)
    source = {"hub": hub, "revision": found["revision"]}
    sizes = [one["size"] for name, one in found["files"].items() if found_of.is_weights(name)]
    try:
        entry = found_of.entry(hub, found["files"], folder, source, title)
        return with_weights(entry, folder, sum(sizes)), sum(sizes)
    except Refused as reason:  # of a file that nobody finds in the folder that it was fetched into
        raise Refused(str(reason).replace(f"{folder}/", f"{hub}/")) from reason


def with_weights(entry: dict[str, Any], folder: Path, size: int) -> dict[str, Any]:
    """The entry of a model without a table with the number of its weights, by their bytes."""
    if entry["architecture"] not in FAMILIES:
        entry["dimensions"] |= found_of.counted(folder / "config.json", size)
    return entry


def step(root: Path, script: str, *words: Any) -> None:
    """Run one of the hub's steps; what it says of a refusal is what we say."""
    python = toolchains.build(root, "hub") / "bin/python"
    command = [python, root / "scripts" / script, *words]
    words = [str(word) for word in command]
    heard, reason = f"{script}: no reason given", ""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stderr or ():
            heard = line.rstrip("\n")
            if heard.startswith("error: "):
                reason = heard.removeprefix("error: ")
            elif "; trying again in " in heard:
                print(heard, file=sys.stderr, flush=True)
    if process.returncode:
        raise Refused(reason or heard)


def yaml_of(name: str, entry: dict[str, Any]) -> str:
    """The entry's lines below `models:`; dimensions and sizes each on one."""
    lines = [f"  {name}:"]
    for key, value in entry.items():
        inner = ", ".join(f"{k}: {v}" for k, v in value.items()) if isinstance(value, dict) else ""
        flat = f"{{{inner}}}" if inner else json.dumps(value)
        lines.append(f"    {key}: {flat}")
    return "\n".join(lines) + "\n"


def write(root: Path, name: str, text: str) -> None:
    """Append the entry.  Refused before: a file of another form."""
    import yaml

    path = Path(schema.LOCAL)
    before = path.read_text() if path.is_file() else f"{HEADER}models:\n"
    if not before.endswith("\n"):
        before += "\n"
    wanted = yaml.safe_load(before) or {}
    after = before + text
    try:
        found = yaml.safe_load(after)
        right = {
            **wanted,
            "models": {
                **(wanted.get("models") or {}),
                **yaml.safe_load(f"models:\n{text}")["models"],
            },
        }
    except yaml.YAMLError:
        found, right = None, {}
    if found != right:
        raise Refused(
            f"{path}: its last part is not `models:`, expected that, since entries are appended; move it"
        )
    schema.load(root, None, found)
    with replacing(path) as partial:
        partial.write_text(after)


def where(entry: dict[str, Any]) -> str:
    return f"{entry['hub']} at {entry['revision'][:12]}" if "hub" in entry else entry["path"]


def about(root: Path, name: str, entry: dict[str, Any], size: int, catalogue: dict) -> list[str]:
    """What it is, what can be built of it, and what cannot, with the reason."""
    config = planned(entry)
    own = isinstance(config, ModelConfig)
    weights = parameters(config) if own else entry["dimensions"].get("parameters")
    counted = f"{weights / 1e9:.2f} billion parameters, " if weights else ""
    licensed = f", license {entry['license']}" if "license" in entry else ""
    context = entry["dimensions"].get("context")
    longest = f"{context:,} tokens" if context else "config.json does not say how many tokens"
    lines = [
        f"{counted}{size / 1e9:.1f} GB, {longest}{licensed}",
        f"tensor parallel sizes: {', '.join(map(str, catalogue['models'][name]['tp']))}",
    ]
    if not own or "way" in entry:
        why = f"no table of {entry['architecture']}"
        if own:
            why = f"no pre-tokenizer {entry['pre_tokenizer']} of its own"
        lines.append(
            f"Ingot has {why}: its GGUF files are written by llama.cpp's converter, ONNX by "
            "onnxruntime-genai's builder, OpenVINO by optimum-intel; their records say whether they are "
            "the model"
        )
    legal = tuple(targets.legal_of(name, catalogue))
    buildable = [row.name for row in OFFERED if any(one.endswith(f".{row.name}") for one in legal)]
    lines.append(f"can be built: {', '.join(buildable)}")
    cannot: dict[str, list[str]] = {}
    for row in OFFERED:
        if row.name in buildable:
            continue
        sizes = list(row.sizes(catalogue["models"][name]))
        tp = "" if None in sizes or not sizes else f"_tp{sizes[0]}"
        if reason := targets.why_not(f"{targets.FOLDER}{name}{tp}.{row.name}", catalogue):
            cannot.setdefault(reason.splitlines()[0].replace(f".{row.name} ", "it "), []).append(
                row.name
            )
    for reason, names in cannot.items():
        lines.append(f"cannot: {', '.join(names)}: {reason}")
    hardware = catalogue["models"][name]["hardware"]
    others = [one for one in catalogue["hardware"] if one != hardware]
    if "vmfb" in buildable:
        named = f"{name}_tp1.{others[0]}.vmfb"
        lines.append(f"hardware of its programs: {hardware}, or as named: {named}")
    # the catalogue of its own lies beside no Snakefile where this was not run in a clone
    front = "" if Path("Snakefile").exists() else f"-s {root / 'Snakefile'} -- "
    return [*lines, f"next: snakemake {front}{targets.FOLDER}{name}.gguf"]
