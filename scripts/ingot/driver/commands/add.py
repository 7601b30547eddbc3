"""Add a model of your own to the catalogue: `ingot add ORGANISATION/NAME`, or a folder.

Reads the hub's list of files, config.json and the tokenizer, pins the commit, and writes an entry to
models.local.yaml, which every command here reads without a flag.  A model that no format could be right of
is refused before anything is written.
"""

import os
import re
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ingot.base.fields import read_json, there
from ingot.base.refused import Refused
from ingot.driver.catalogue import found as found_of
from ingot.driver.catalogue import machine, own_file, schema, targets
from ingot.driver.catalogue.formats.rows import OFFERED
from ingot.driver.catalogue.model import (  # fmt: skip
    OWN,
    REFUSED,
    VOCABULARY,
    config_of,
    folder_of,
    is_tokenizer,
    planned,
    read,
    way_of,
)
from ingot.driver.commands import at_hub
from ingot.driver.forecast import schedule
from ingot.model.checkpoint import adapter, whole
from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.model.config import ModelConfig, read_config
from ingot.model.families.table import FAMILIES
from ingot.model.features import ADAPTER as ADAPTER_KEY
from ingot.model.features import ALL
from ingot.model.specs import parameters, shapes_of
from ingot.model.tensors.dtypes import STORED

SAID = {"base_model_name_or_path?": (str, None), "revision?": (str, None)}  # by an adapter
CONFIG = "config.json"
WRITTEN = (  # keys of an entry that say what was found
    "path", "hub", "revision", "gated", "shards", "files", "name", "architecture", "pre_tokenizer", "way",
    "license", "original", "dimensions", "needs", "tp", "hardware", ADAPTER_KEY,
)  # fmt: skip
FOUND = (
    "path",
    "hub",
    "revision",
    "shards",
    "files",
    "name",
    "hardware",
)  # that change as one moves


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="organisation/name on the hub, its address there, or a folder; a LoRA adapter likewise",
    )
    parser.add_argument("--name", help="in targets (default: by the model's own)")
    parser.add_argument(
        "--base", help="of an adapter: the model of the catalogue that it was trained on"
    )
    parser.add_argument("--revision", default="", help="the commit to pin (default: main's)")
    parser.add_argument(
        "--again",
        action="store_true",
        help=f"write the entry of that name in {schema.LOCAL} again; your settings in it stay",
    )


def run(root: Path, options: Namespace) -> None:
    name, catalogue = added(root, options)
    target = f"{targets.FOLDER}{name}.gguf"
    if targets.why_not(target, catalogue):
        target = next(targets.legal_of(name, catalogue), "")
    # the catalogue of its own lies beside no Snakefile where this was not run in a clone
    front = "" if Path("Snakefile").exists() else f"-s {root / 'Snakefile'} -- "
    if target:
        print(f"next: snakemake {front}{target}")


def add(root: Path, options: Namespace) -> str:
    """Its name in the catalogue."""
    return added(root, options)[0]


def added(root: Path, options: Namespace) -> tuple[str, dict[str, Any]]:
    """Its name, and the catalogue with it."""
    folder = found_of.local(options.model)
    hub, revision = ("", "") if folder else found_of.on_hub(options.model)
    title = folder.resolve().name if folder else hub.partition("/")[2]
    name = options.name or re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    of = getattr(options, "of", "")  # of the adapter whose base it is
    known = schema.load(root, None)
    taken = {*known["models"], *known[REFUSED], of}
    if of and name in taken:
        name = f"{name}-base"
    if name in taken:
        stop_on_taken(root, name, options)
    title = title_of(title)
    with tempfile.TemporaryDirectory() as scratch:
        place, listing = folder or Path(scratch), None
        try:
            if not folder:
                listing = at_hub.Hub(root).listed(hub, options.revision or revision, place)
            names = {*listing["files"]} if listing else {one.name for one in place.iterdir()}
            what = str(folder or hub)
            if found_of.is_adapter(what, names):
                if of:
                    raise Refused("another adapter")
                found = Adapted(what, place, listing)
                files = found.files(root)
                base = found.base(root, name, options.base or "")
                entry, size = {ADAPTER_KEY: {"base": base, **files}}, 0
            elif listing:
                entry, size = of_hub(root, hub, listing, place, title)
            else:
                entry, size = of_folder(place, title)
        except Refused as reason:
            # of a file that nobody finds in the folder that it was fetched into
            raise Refused(str(reason).replace(f"{scratch}/", f"{hub}/")) from reason
    # else a plain M_tp1.vmfb would be for a GPU that is not here
    if ADAPTER_KEY not in entry and not machine.has_gpu():
        entry["hardware"] = "cpu"
    kept = settings_of(name, entry) if name in taken else {}
    catalogue = own_file.write(root, name, entry | kept)
    print(f"{Path(schema.LOCAL).resolve()}: {name}, {where(entry)}")
    if kept:
        print(f"as the entry had them: {', '.join(kept)}")
    for line in about(root, name, catalogue["models"][name], size, catalogue):
        print(line)
    return name, catalogue


def settings_of(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """What an entry that is written again keeps of the old one: what `add` does not write by itself."""
    old = (schema.of_folder().get("models") or {}).get(name)
    known = old if isinstance(old, dict) else {}
    source = str(known.get("path") or known.get("hub") or "")
    usual = {"name": title_of(Path(source).name), "hardware": "cpu", "gated": False}
    kept = {key: one for key, one in known.items() if key not in WRITTEN}
    kept |= {key: known[key] for key, one in usual.items() if known.get(key, one) != one}
    if "hub" not in entry:
        kept.pop("gated", None)
    replaced = [key for key in known if key in entry and key not in kept and key not in FOUND]
    if replaced := [key for key in replaced if known[key] != entry[key]]:
        print(f"{name}: read again, and not as the entry had them: {', '.join(replaced)}")
    return kept


def title_of(name: str) -> str:
    """What a model is called that its folder or repository calls so."""
    return re.sub("[-_]+", " ", name)


def stop_on_taken(root: Path, name: str, options: Namespace) -> None:
    """Refuse a name that the catalogue has, but for one of the user's own that is to be written again."""
    # an entry of one's own changes keys of a shipped one
    shipped = name in schema.read(root / schema.FILE)["models"]
    own = not shipped and name in (schema.of_folder().get("models") or {})
    again = getattr(options, "again", False)
    if own and again:
        return
    where = schema.LOCAL if own else schema.FILE
    ways = [f"give it {'another ' if options.name else ''}--name"]
    ways += [f"--again writes the entry in {schema.LOCAL} once more"] if own else []
    known = f"in {where}, which --again leaves alone" if again else "in the catalogue already"
    raise Refused(f"{name}: {known}, expected a new name; {'; '.join(ways)}")


def of_folder(folder: Path, title: str) -> tuple[dict[str, Any], int]:
    names = {path.name for path in folder.iterdir() if path.is_file()}
    found_of.stop_on_another_kind(str(folder), names)
    source = {"path": _path(folder)}
    size = sum(one.stat().st_size for one in folder.glob("model*.safetensors"))
    entry = with_weights(found_of.entry(str(folder), names, folder, source, title), folder, size)
    config = read(folder / "config.json", entry)
    own = isinstance(config, ModelConfig) and way_of(entry) == OWN
    checkpoint = Checkpoint([path for path in folder.iterdir() if path.is_file()])
    tensors = read_checkpoint(checkpoint, config.stored if own else STORED)
    if own:
        whole.hold(checkpoint, config, tensors)
    return entry, size


class Adapted:
    """An adapter that is added: `what` names its folder, or its repository of this `listing`."""

    def __init__(self, what: str, place: Path, listing: dict | None):
        self.what, self.place, self.listing = what, place, listing
        self.found: adapter.Adapter | None = None  # of one that is here

    def files(self, root: Path) -> dict[str, Any]:
        """Where they are, as the catalogue has it.  Refused: such as are no adapter of LoRA."""
        if not self.listing:
            files = [one for one in self.place.iterdir() if one.is_file()]
            self.found = adapter.read(Checkpoint(files))
            return {"lora": _path(self.place)}
        names = self.listing["files"]
        if adapter.WEIGHTS not in names:
            raise Refused(
                f"{self.what}: no {adapter.WEIGHTS} among its files; save it by peft again"
            )
        at_hub.Hub(root).fetch(self.place, ADAPTER)
        adapter.settings(self.place / ADAPTER)
        found = {"hub": self.what, "revision": self.listing["revision"]}
        own = [name for name in VOCABULARY if name in names]
        return {**found, "files": own} if is_tokenizer(own) else found

    def base(self, root: Path, name: str, asked: str) -> str:
        """The model that it was trained on: `asked` of the catalogue, or the one that its file names.

        That is added first where the catalogue does not have it; `name` is the adapter's own.
        """
        models = schema.load(root, None)["models"]
        if asked:
            if ADAPTER_KEY in models.get(asked, {ADAPTER_KEY: 0}):
                raise Refused(f"--base: {asked}, expected a model of the catalogue, and no adapter")
            self.hold(config_of(asked, models[asked], root))
            return asked
        said = read_json(self.place / ADAPTER, SAID)
        named, revision = said.get("base_model_name_or_path"), said.get("revision") or ""
        if not named:
            raise Refused(
                f"{self.what}: {ADAPTER} names no base, expected one; give it --base NAME"
            )
        if found := named_so(root, named, revision):
            self.hold(config_of(found, models[found], root))
        else:
            if there((Path(named) / CONFIG).is_file):
                self.hold(Path(named) / CONFIG)
            try:
                found = add(root, Namespace(model=named, name=None, revision=revision, of=name))
            except Refused as reason:
                raise Refused(
                    f"{self.what}: its base is {named}: {reason}; name one of the catalogue by --base"
                ) from None
        return found

    def hold(self, config: Path | None) -> None:
        """Refused: what does not fit its base, where both are here, and Ingot has a table of that."""
        if not (self.found and config):
            return
        try:
            numbers = read_config(config, can=ALL)
        except Refused:  # which is said where the base is added
            return
        self.found.fits(shapes_of(numbers), adapter.TIED if numbers.tied else ())


def named_so(root: Path, base: str, revision: str) -> str | None:
    """The model of the catalogue that is this repository, or this folder."""
    for name, entry in schema.load(root, None)["models"].items():
        here = "path" in entry and folder_of(entry, root).resolve() == Path(base).resolve()
        if ADAPTER_KEY in entry or not (here or entry.get("hub") == base):
            continue
        pinned = entry.get("revision", revision)
        if revision and not here and pinned != revision:
            continue
        return name
    return None


def _path(folder: Path) -> str:
    """As the catalogue has it: below the working folder, or absolute."""
    path = folder.resolve()
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def of_hub(
    root: Path, hub: str, found: dict, folder: Path, title: str
) -> tuple[dict[str, Any], int]:
    found_of.stop_on_another_kind(hub, found["files"])
    for name in found_of.wanted(found["files"]):
        at_hub.Hub(root).fetch(folder, name)
    source = {"hub": hub, "revision": found["revision"]}
    sizes = [one["size"] for name, one in found["files"].items() if found_of.is_weights(name)]
    entry = found_of.entry(hub, found["files"], folder, source, title)
    return with_weights(entry, folder, sum(sizes)), sum(sizes)


def with_weights(entry: dict[str, Any], folder: Path, size: int) -> dict[str, Any]:
    """The entry of a model that no table of ours says with the number of its weights, by their bytes."""
    if "ffn" not in entry["dimensions"]:
        entry["dimensions"] |= found_of.counted(folder / "config.json", size)
    return entry


def where(entry: dict[str, Any]) -> str:
    if ADAPTER_KEY in entry:
        its = entry[ADAPTER_KEY]
        what = its["lora"] if "lora" in its else f"{its['hub']} at {its['revision'][:12]}"
        return f"{what}, merged into {its['base']}"
    return f"{entry['hub']} at {entry['revision'][:12]}" if "hub" in entry else entry["path"]


def about(root: Path, name: str, entry: dict[str, Any], size: int, catalogue: dict) -> list[str]:
    """What it is, what can be built of it, and what cannot, with the reason."""
    lines = [] if ADAPTER_KEY in entry else numbers(name, entry, size, catalogue)
    return lines + buildable(root, name, catalogue)


def numbers(name: str, entry: dict[str, Any], size: int, catalogue: dict) -> list[str]:
    config = planned(entry)
    weights = entry["dimensions"].get("parameters")
    if isinstance(config, ModelConfig):
        weights = parameters(config)
    counted = f"{schedule.count_of(weights)}, " if weights else ""
    licensed = f", license {entry['license']}" if "license" in entry else ""
    context = entry["dimensions"].get("context")
    longest = f"{context:,} tokens" if context else "config.json does not say how many tokens"
    lines = [
        f"{counted}{schedule.size(size)}, {longest}{licensed}",
        f"tensor parallel sizes: {', '.join(map(str, catalogue['models'][name]['tp']))}",
    ]
    if way_of(entry) != OWN:
        why = f"no table of {entry['architecture']}"
        if entry["architecture"] in FAMILIES:
            why = f"no table of such a {entry['architecture']}"
            if "ffn" in entry["dimensions"]:
                why = f"no pre-tokenizer {entry['pre_tokenizer']} of its own"
        ways = {
            "onnx": "ONNX by onnxruntime-genai's builder",
            "openvino": "OpenVINO by optimum-intel",
        }
        known = [
            way
            for kind, way in ways.items()
            if not targets.why_not(f"{targets.FOLDER}{name}.{kind}", catalogue)
        ]
        said = ", ".join(["its GGUF files are written by llama.cpp's converter", *known])
        lines.append(f"Ingot has {why}: {said}; their records say whether they are the model")
    return lines


def buildable(root: Path, name: str, catalogue: dict) -> list[str]:
    """The formats, and of those that it cannot have the reason."""
    legal = tuple(targets.legal_of(name, catalogue))
    built = [row.name for row in OFFERED if any(one.endswith(f".{row.name}") for one in legal)]
    lines = [f"can be built: {', '.join(built)}"]
    cannot: dict[str, list[str]] = {}
    for row in OFFERED:
        if row.name in built:
            continue
        sizes = list(row.sizes(catalogue["models"][name]))
        tp = "" if None in sizes or not sizes else f"_tp{sizes[0]}"
        if reason := targets.why_not(f"{targets.FOLDER}{name}{tp}.{row.name}", catalogue):
            alike = re.sub(rf"(?<!\S)\.{re.escape(row.name)}\b", "it", reason.splitlines()[0])
            cannot.setdefault(alike, []).append(row.name)
    for reason, names in cannot.items():
        lines.append(f"cannot: {', '.join(names)}: {reason}")
    hardware = catalogue["models"][name]["hardware"]
    others = [one for one in catalogue["hardware"] if one != hardware]
    if "vmfb" in built:
        named = f"{name}_tp1.{others[0]}.vmfb"
        lines.append(f"hardware of its programs: {hardware}, or as named: {named}")
    return lines
