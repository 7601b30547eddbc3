"""What is known of a model before anything is built: its entry, config.json, sizes on disk."""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ingot.base.fields import there
from ingot.base.refused import Refused
from ingot.formats.gguf import metadata
from ingot.formats.onnx import weights
from ingot.model import features, outline
from ingot.model.checkpoint.safetensors import INDEX
from ingot.model.config import ModelConfig, read_config
from ingot.model.families.table import FAMILIES
from ingot.model.features import ADAPTER
from ingot.model.hub.listing import read_listing
from ingot.model.outline import NO_TABLE, Outline, read_outline
from ingot.model.specs import parameters, specs_of
from ingot.model.tensors.dtypes import TYPES

REFUSED = "refused"  # of a completed catalogue
COUNTS = ("parameters", "bytes")  # dimensions that are of the weights, and no number of config.json
POLICY = ("context", *COUNTS)  # that config.json need not say
RANGE = re.compile(r"\{(\d{1,6})\.\.(\d{1,6})\}")  # of numbers in the names of shards
OWN, UPSTREAM = "own", "upstream"  # ways: Ingot's writer, or the tool of the format's makers
MAKERS = {  # formats that an upstream tool writes too -> what our own writer can
    "gguf": metadata.CAN,
    "onnx": weights.CAN,
    "openvino": weights.CAN,
}
SMALL_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
)


VOCABULARY = (  # those of them by which texts become tokens: of an adapter, its own where it brings them
    "added_tokens.json", "chat_template.jinja", "chat_template.json", "tokenizer.json", "tokenizer.model",
    "tokenizer_config.json",
)  # fmt: skip


def is_tokenizer(names: Collection[str]) -> bool:
    """Do files of these names make a whole one?"""
    return "tokenizer_config.json" in names and not {
        "tokenizer.json",
        "tokenizer.model",
    }.isdisjoint(names)


class Refusals(dict):
    """Models whose config.json is here, and why it is refused; adapters without a base, and why.

    A type of its own, which YAML cannot give: the same key in a user's catalogue is an unknown one."""


def shard_names(shards: int | list[str]) -> list[str]:
    """The hub's names of a checkpoint's weights, and of their index; `shards` as the catalogue has it.

    A name may hold a range, as in m-{00001..00014}-of-00014.safetensors.
    """
    if isinstance(shards, list):
        names = [name for one in shards for name in _each(one)]
        return [*names, INDEX] if len(names) > 1 else names
    if shards == 1:
        return ["model.safetensors"]
    parts = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    return [*parts, INDEX]


def _each(name: str) -> list[str]:
    """The names that a range stands for."""
    if not (found := RANGE.search(name)):
        return [name]
    first, last = found.groups()
    if int(first) > int(last):
        raise Refused(f"shards: {name} counts down, expected {{FIRST..LAST}}")
    numbers = range(int(first), int(last) + 1)
    return [RANGE.sub(f"{n:0{len(first)}d}", name) for n in numbers]


def hub_files(pre: str | None) -> list[str]:
    """The small files that every hub checkpoint of the catalogue has."""
    names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    return [*names, "tokenizer.model"] if pre == "default" else names


def way_of(entry: dict[str, Any]) -> str:
    """Who reads and writes a catalogue's model: as its entry says, or else by our own table."""
    if said := entry.get("way"):
        return said
    # as an earlier `ingot add` wrote it, when there was no table of its family
    said = {*entry.get("dimensions", ())}
    bare = {"layers", "hidden"} <= said <= {*outline.KEYS, *COUNTS}
    return UPSTREAM if bare or entry["architecture"] not in FAMILIES else OWN


def maker_of(entry: dict[str, Any], line: str) -> str:
    """Who writes its files of one of MAKERS: Ingot, where a table of ours and our writer can express it."""
    beyond = features.lacking(entry["needs"], (*MAKERS[line], ADAPTER))
    return UPSTREAM if beyond else entry["way"]


def base_of(name: str, entry: dict[str, Any]) -> str:
    """The model whose checkpoint it has: of one with an adapter, the one that this was trained on."""
    return entry["adapter"]["base"] if ADAPTER in entry else name


def on_hub(entry: dict[str, Any]) -> dict[str, Any]:
    """`hub`, `revision` and `gated` of what artifacts/<model>.hf holds: its checkpoint, or its adapter."""
    found = entry.get(ADAPTER, entry)
    return {"gated": False, **found}


def planned(entry: dict[str, Any]) -> ModelConfig | Outline:
    """Numbers by the catalogue's `dimensions`: what sizes and times need, and nothing is built from."""
    said = {key: value for key, value in entry["dimensions"].items() if key not in COUNTS}
    architecture = entry["architecture"]
    family = FAMILIES.get(architecture)
    if not family or family.experts or "ffn" not in said:  # of experts it does not say enough
        return outline.planned(architecture, said)
    return ModelConfig(
        architecture=architecture, **said, rms_eps=1e-5, rope_theta=1e4, rope=None, tied=False
    )


def untold(entry: dict[str, Any]) -> str:
    """Why the catalogue alone does not tell its layout over GPUs, or its memory."""
    if entry["way"] == OWN:  # of experts `planned` knows too little
        return "config.json says how many experts it has, and is not here"
    return f"Ingot has no table of such a {entry['architecture']}"


def read(place: Path, entry: dict[str, Any]) -> ModelConfig | Outline:
    """config.json by our own tables, or of a model that goes another way its outline."""
    if entry["architecture"] not in FAMILIES:
        return _as_named(place, read_outline(place), entry)
    try:
        return read_config(place, can=features.ALL)
    except Refused:
        if way_of(entry) == OWN:
            raise
        return _as_named(place, read_outline(place), entry)


def _as_named(place: Path, found: Outline, entry: dict[str, Any]) -> Outline:
    if found.architecture != entry["architecture"]:
        raise Refused(
            f"{place}: architectures is {found.architecture}, expected {entry['architecture']} by the "
            "catalogue; correct one of them"
        )
    return found


def config_of(name: str, entry: dict[str, Any], root: Path) -> Path | None:
    """Where config.json of a catalogue's model lies: fetched, or of a local checkpoint."""
    place = Path("artifacts", f"{base_of(name, entry)}.hf", "config.json")
    if "path" in entry:
        place = folder_of(entry, root) / "config.json"
    return place if there(place.is_file) else None


def folder_of(entry: dict[str, Any], root: Path) -> Path:
    """Of a local checkpoint: below the working directory, or else below the repository."""
    path = Path(entry["path"])
    return path if there(path.exists) else root / path


def fill_needs(name: str, entry: dict[str, Any], root: Path) -> str | None:
    """Put `needs` into a model's entry where it says none: config.json's own, once that is here.

    Gives why that is refused, of which no target can be built.
    """
    said, place, refusal = entry.get("needs"), config_of(name, entry, root), None
    if said == [NO_TABLE] and entry["architecture"] in FAMILIES:
        # written when its family had no table
        del entry["needs"]
        said = None
    found = expected(entry)
    try:
        if place:
            config = read(place, entry)
            found = config.needs
            if said is not None and {*said} - {ADAPTER} != {*found}:
                words = ", ".join(found) or "none"
                raise Refused(
                    f"models.{name}.needs: {', '.join(said)}, but {place} says {words}; leave needs out"
                )
            stop_on_other_numbers(name, entry, config, place)
    except Refused as reason:
        refusal = str(reason)
    entry["needs"] = [*found, *([ADAPTER] if ADAPTER in entry else [])]
    return refusal


def stop_on_other_numbers(
    name: str, entry: dict[str, Any], config: ModelConfig | Outline, place: Path
) -> None:
    """Refused: `dimensions` that config.json at `place` contradicts."""
    if not isinstance(config, ModelConfig):  # it may leave numbers to transformers
        return
    for key, value in entry.get("dimensions", {}).items():
        if key not in POLICY and (found := getattr(config, key)) != value:
            raise Refused(
                f"models.{name}.dimensions.{key}: {value}, but {place} says {found}; write {found}"
            )


def stop_on_refusal(name: str, catalogue: dict) -> None:
    """Refused: a model that is by itself, or whose config.json is."""
    if reason := catalogue.get(REFUSED, {}).get(name):
        raise Refused(f"{name}: {reason}")


def expected(entry: dict[str, Any]) -> tuple[str, ...]:
    """What a model needs of a format, before its config.json is here."""
    if not (family := FAMILIES.get(entry["architecture"])):
        return (NO_TABLE,)
    return tuple(word for word in entry.get("needs", family.needs) if word != ADAPTER)


class Model:
    """One model of a catalogue; `root` is the repository, below which its paths may lie.

    `folders` are searched for <model>.json too, the config.json of a model that is not fetched.
    """

    def __init__(self, name: str, catalogue: dict, root: Path, folders: Iterable[Path] = ()):
        self.name, self.catalogue, self.root = name, catalogue, root
        self.entry: dict[str, Any] = catalogue["models"].get(name, {})
        self.refusal = ""  # of its config.json
        self.here = False  # is its config.json?  Else what the catalogue says is planned by
        self.folders = [*folders]
        found = self._numbers()
        # None where nothing is known yet, and of a model that none of our tables is for
        self.config = found if isinstance(found, ModelConfig) else None
        # of one without a table nothing can be planned before its bytes are known
        self.numbers = found if self.config or self.parameters() else None

    def _numbers(self) -> ModelConfig | Outline | None:
        base = base_of(self.name, self.entry)
        others = (folder / f"{base}.json" for folder in self.folders)
        found = config_of(self.name, self.entry, self.root)
        found = found or next((place for place in others if place.is_file()), None)
        said = self.entry.get("dimensions")
        if found is None:
            return planned(self.entry) if said else None
        self.here = True
        try:
            config = read(found, self.entry)
        except Refused as reason:  # the step that needs it will say so
            self.refusal = str(reason)
            return None
        if not isinstance(config, ModelConfig):  # it may leave numbers to transformers
            return planned(self.entry) if said else config
        try:
            stop_on_other_numbers(self.name, self.entry, config, found)
        except Refused as reason:
            if self.name not in self.catalogue.get(REFUSED, ()):  # it was fetched meanwhile
                raise
            self.refusal = str(reason)
            return None
        return config

    def folder(self) -> Path:
        return folder_of(self.entry, self.root)

    @property
    def local(self) -> bool:
        return "path" in self.entry

    def listed(self, of: str = "") -> dict[str, dict]:
        """The hub's list of files: of its checkpoint, or of model `of`; empty while it is not here."""
        of = of or base_of(self.name, self.entry)
        fetched = Path("artifacts", f"{of}.hf", "listing.json")
        others = (folder / f"{of}.listing.json" for folder in self.folders)
        found = next((place for place in (fetched, *others) if place.is_file()), None)
        return read_listing(found)["files"] if found else {}

    def parameters(self) -> int:
        """How many weights it has; without a table of its tensors, by its bytes."""
        if self.config:
            return parameters(self.config)
        said = self.entry.get("dimensions", {}).get("parameters")
        return said or (self.checkpoint_bytes() // 2 if self.local or self.listed() else 0)

    def checkpoint_bytes(self) -> int:
        """Of the weights as they lie on the hub, or here."""
        if self.local:
            return sum(p.stat().st_size for p in self.folder().glob("model*.safetensors"))
        files = self.listed()
        if files:
            return sum(f["size"] for name, f in files.items() if name.endswith(".safetensors"))
        return self.entry.get("dimensions", {}).get("bytes") or 2 * self.parameters()

    def tokenizer_bytes(self) -> float:
        """The vocabulary's files, which bundles copy."""
        return 2e5 if self.local else 9e6

    def tensor_bytes(self, dtype: str) -> int:
        """Of all tensors at `dtype`, as GGUF and IRPA hold them."""
        if not self.config:
            return TYPES[dtype.upper()].nbytes((self.parameters() // 32, 32))
        return sum(spec.type.nbytes(spec.shape) for spec in specs_of(self.config, dtype))

    def dtype(self, variant: str = "") -> str:
        """A variant's dtype, given with its dot or without, or else the model's own."""
        return variant.lstrip(".") or self.entry["dtype"]
