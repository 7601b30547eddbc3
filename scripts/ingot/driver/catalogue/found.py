"""What a checkpoint's own files say of it, as an entry of the catalogue."""

import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ingot.base import yaml_text
from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.driver.catalogue import spelling
from ingot.driver.catalogue.model import SMALL_FILES, UPSTREAM, hub_files, shard_names
from ingot.formats.gguf import converter, pre_tokenizers, templates
from ingot.formats.iree import tensor_parallel
from ingot.model import features, outline
from ingot.model.checkpoint.files import ADAPTER, Checkpoint
from ingot.model.checkpoint.safetensors import INDEX
from ingot.model.config import ModelConfig, read_config
from ingot.model.families.table import FAMILIES
from ingot.model.gpu_layout import SHORTFIN, VLLM, why_not
from ingot.model.known_fields import Beyond
from ingot.model.outline import Outline, read_outline
from ingot.model.specs import parameters

SIZES = (1, 2, 4, 8, 16)  # tensor parallel sizes of a catalogue
SHARD = re.compile(r"model(-\d{5}-of-(\d{5}))?\.safetensors")
# counted from 0, to six digits, or behind a first ending: as gpt-oss, DeepSeek-V3 and Qwen3.5 are
OTHERS = re.compile(r"(model(?:\.safetensors)?-)(0\d{4})(-of-(0\d{5}|\d{5})\.safetensors)")
FRONT = re.compile(r"\A---\n(.*?)\n---", re.DOTALL)  # of a model card
TRAINED_SO = ("fp8", "mxfp4")  # ways of quantising whose checkpoints are the original
# transformers' own tag, which renders nothing
GENERATION = re.compile(r"\{%[-+]?\s*(end)?generation\s*[-+]?%\}")
LICENSE = re.compile(r"[\w.+-]+")


def entry(
    what: str, names: Collection[str], folder: Path, source: dict[str, Any], title: str
) -> dict[str, Any]:
    """`names` are all files of `what`, of which `folder` has the small ones; `source` is hub or path.

    Refused: what no format of ours would be right of.
    """
    place = folder / "config.json"
    config = numbers(place, what)
    own = isinstance(config, ModelConfig)
    pre = known_pre_tokenizer(names, folder)
    if own and config.latent and not {"tokenizer.json", "tokenizer.model"} & {*names}:
        print(f"{what}: no tokenizer.json; so upstream tools write its files", file=sys.stderr)
        own = False
    if own:
        try:
            pre = pre_tokenizer(what, names, folder)
        except Beyond as reason:
            print(f"{reason}; so upstream tools write its files", file=sys.stderr)
            own = False
    found = {**source, "name": title, "architecture": config.architecture}
    if pre:
        found["pre_tokenizer"] = pre
    if config.architecture in FAMILIES and (not own or pre in pre_tokenizers.OTHERS):
        found["way"] = UPSTREAM
    if "hub" in source:
        found["shards"] = shards(what, names, original_of(folder))
        small = [name for name in SMALL_FILES if name in names]
        if sorted(small) != sorted(hub_files(pre)):
            found["files"] = small
    elif not any(map(is_weights, names)):
        raise Refused(
            f"{what}: no model*.safetensors among its files, expected weights; convert them"
        )
    if known := license_of(folder):
        found["license"] = known
    if (by := quantised_by(place)) and (original := original_of(folder)):
        found["original"] = original
        if (
            by != "compressed-tensors"
        ):  # which transformers runs here: no other can be compared with
            found["vllm"] = {"smoke": "generated"}
        print(
            f"its weights are quantised already, by {by}: vLLM serves it as it is; for all else "
            f"`ingot add` {original}",
            file=sys.stderr,
        )
    found["dimensions"] = dimensions(config) if own else outline.said_by(place)[1]
    if config.needs and "hub" in source:  # of a folder they are read each time
        found["needs"] = list(config.needs)
    if own:
        lacks = features.lacking(config.needs, tensor_parallel.can(1))
        server = VLLM if lacks or tensor_parallel.no_block(config.family) else SHORTFIN
        found["tp"] = [size for size in SIZES if not why_not(config, size, 1, server)]
    elif heads := found["dimensions"].get("heads"):
        found["tp"] = [size for size in SIZES if not heads % size]
    for why in faulty_templates(folder):
        print(
            f"{what}: {why}; verifications that render it fail until that is right", file=sys.stderr
        )
    return found


def faulty_templates(folder: Path) -> Iterator[str]:
    """Chat templates that jinja2 cannot parse, as transformers has it, and where the fault is."""
    import jinja2

    reader = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    checkpoint = Checkpoint([path for path in folder.iterdir() if path.is_file()])
    settings = checkpoint.optional_json("tokenizer_config.json", templates.SETTING)
    for key, kind, text in templates.templates(checkpoint, settings):
        try:
            reader.parse(GENERATION.sub("", text) if kind == "str" else "")
        except jinja2.TemplateSyntaxError as error:
            name = key.removeprefix(templates.KEY).lstrip(".")
            yield f"chat template{f' {name}' if name else ''}, line {error.lineno}: {error.message}"


def is_weights(name: str) -> bool:
    return bool(SHARD.fullmatch(name) or OTHERS.fullmatch(name))


def counted(config: Path, size: int) -> dict[str, int]:
    """How many weights `size` bytes are, where config.json says what each takes."""
    said = read_json(config)
    inner = {**said, **(said.get("text_config") or {})}
    width = {"float32": 4, "float16": 2, "bfloat16": 2}.get(
        inner.get("dtype") or inner.get("torch_dtype") or ""
    )
    return {"parameters": size // width} if width and not said.get("quantization_config") else {}


def numbers(config: Path, what: str) -> ModelConfig | Outline:
    """By our table of its family; where that cannot say it, the outline, if llama.cpp's converter may.

    `what` is the model whose config.json it is, for a message."""
    said = read_json(config, {"architectures?": ([str], None)}).get("architectures") or ["none"]
    if said[0] in FAMILIES:
        try:
            return read_config(config, can=features.ALL)
        except Beyond as reason:
            if not (quantised_by(config) and original_of(config.parent)):  # which says more
                said = str(reason).replace(str(config), f"{what}/{config.name}")
                print(f"{said}; so upstream tools write its files", file=sys.stderr)
            return read_outline(config)
    if said[0] not in converter.ARCHITECTURES:
        raise Refused(
            f"{config}: architectures is {said[0]}, expected {' or '.join(FAMILIES)}, or one of the "
            f"{len(converter.ARCHITECTURES)} that llama.cpp's converter knows, as it is pinned"
        )
    return read_outline(config)


def known_pre_tokenizer(names: Collection[str], folder: Path) -> str | None:
    """What llama.cpp calls it, where its description is one that we know; else its converter decides."""
    if "tokenizer.model" in names or "tokenizer.json" not in names:
        return None
    return pre_tokenizers.named(read_json(folder / "tokenizer.json", pre_tokenizers.FORM))


def local(text: str) -> Path | None:
    """The folder that `text` names, if it does.  Refused: a file, and a path that does not exist."""
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # ~nobody
        path = Path(text)
    if path.is_dir():
        return path
    if path.is_file():
        kind = "a GGUF file: converted already" if text.endswith(".gguf") else "a file"
        raise Refused(
            f"{text}: {kind}, expected the folder of a checkpoint, safetensors and config.json"
        )
    first = path.parts[0] if path.parts else ""
    if "://" not in text and (
        first in ("/", ".", "..", "~") or text[:1] in "~." or Path(first).is_dir()
    ):
        raise Refused(f"{text}: no such folder (a model of the hub: hf://organisation/name)")
    return None


def on_hub(text: str) -> tuple[str, str]:
    """organisation/name, and the revision where an address names one."""
    if not (found := spelling.model(text)):
        raise Refused(
            f"{text}: no such folder, and not a model of the hub, such as meta-llama/Llama-3.2-1B or its "
            "address"
        )
    return found


def is_adapter(what: str, names: Collection[str]) -> bool:
    """An adapter of LoRA; a config.json beside it is its base's.  Refused: one beside a model's weights."""
    if ADAPTER not in names:
        return False
    if any(map(is_weights, names)):
        raise Refused(
            f"{what}: an adapter and a model's weights in one place, expected one; give each a folder"
        )
    return True


def stop_on_another_kind(what: str, names: Collection[str]) -> None:
    """Refuse a folder or repository that is no checkpoint of safetensors, as what it is."""

    def any_of(*endings: str) -> bool:
        return any(name.endswith(endings) for name in names)

    if any_of(".safetensors") and "config.json" in names:
        return
    if any_of(".gguf"):
        raise Refused(
            f"{what}: GGUF files, converted already; add the repository that they were made from "
            "(base_model of its card)"
        )
    if any_of(".bin", ".pt", ".pth", ".ckpt"):
        raise Refused(
            f"{what}: weights as pickles, which can run code, and no *.safetensors; convert them once: "
            "transformers' save_pretrained writes safetensors"
        )
    lacks = "config.json" if "config.json" not in names else "*.safetensors"
    raise Refused(f"{what}: no {lacks} among its files, expected a checkpoint in the hub's layout")


def shards(what: str, names: Collection[str], original: str | None = None) -> int | list[str]:
    """How many files hold its weights, or which, where they are not named as usual (from 0, say)."""
    weights = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    count = max((int((SHARD.fullmatch(name) or [0, 0, 0])[2] or 1) for name in weights), default=0)
    wanted = shard_names(count) if count else ["model.safetensors"]
    missing = [name for name in wanted if name not in names]
    if {*weights} != {*wanted} - {INDEX} and INDEX in names and (found := _range(weights)):
        return [found]
    if missing:
        more = f" ({', '.join(weights[:2])})" if weights else ""
        other = original or "another model"
        raise Refused(f"{what}: no {missing[0]} among its files{more}, expected it; name {other}")
    return count


def _range(weights: list[str]) -> str:
    """All of one set, each number once, as the catalogue names them; else nothing."""
    found = [one for one in map(OTHERS.fullmatch, weights) if one]
    if len(found) < len(weights) or len({(one[1], one[3]) for one in found}) != 1:
        return ""
    numbers = [int(one[2]) for one in found]
    whole = [*range(numbers[0], numbers[0] + len(weights))]
    if numbers != whole or len(weights) < int(found[0][4]):
        return ""
    first, last = found[0], found[-1]
    return f"{first[1]}{{{first[2]}..{last[2]}}}{first[3]}"


def pre_tokenizer(what: str, names: Collection[str], folder: Path) -> str:
    """In llama.cpp's words: one that formats/gguf/vocabulary.py will hold, or that its converter takes."""
    if "tokenizer.model" in names:
        return "default"
    if "tokenizer.json" not in names:
        raise Refused(f"{what}: no tokenizer.json or tokenizer.model among its files, expected one")
    tokenizer = read_json(folder / "tokenizer.json", pre_tokenizers.FORM)
    if (tokenizer.get("model") or {}).get("byte_fallback") is True:
        return "default"
    found = pre_tokenizers.named(tokenizer)
    if found in pre_tokenizers.OTHERS:
        return found
    if found not in pre_tokenizers.TAKEN:
        raise Beyond(
            f"{what}: its tokenizer.json splits texts as {pre_tokenizers.described(tokenizer)}, expected "
            f"{', '.join(pre_tokenizers.TAKEN)} or SentencePiece"
        )
    pre_tokenizers.hold_merges(folder / "tokenizer.json", tokenizer, found)
    return found


def quantised_by(config: Path) -> str | None:
    """What quantised the weights of an original, as config.json says; None: nothing did."""
    said = read_json(config).get("quantization_config")
    method = said.get("quant_method") if isinstance(said, dict) else None
    return None if not said or method in TRAINED_SO else f"{method or 'no word of what':.40}"


def original_of(folder: Path) -> str | None:
    """The model that its card says it was made of."""
    said = front(folder).get("base_model")
    said = said[0] if isinstance(said, list) and said else said
    return said if isinstance(said, str) and re.fullmatch(spelling.HUB, said) else None


def license_of(folder: Path) -> str | None:
    """Of the model card, by its own name where it has one."""
    said = front(folder)
    names = (said.get("license_name"), said.get("license"))
    return next((one for one in names if isinstance(one, str) and LICENSE.fullmatch(one)), None)


def front(folder: Path) -> dict[str, Any]:
    """What a model card says in YAML; empty without one, and of what is none."""
    card = folder / "README.md"
    found = FRONT.search(card.read_text(errors="replace")) if card.is_file() else None
    try:
        said = (yaml_text.documents(found[1]) or [None])[0] if found else None
    except yaml_text.NotYaml:
        said = None
    return said if isinstance(said, dict) else {}


def dimensions(config: ModelConfig) -> dict[str, int]:
    keys = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "context")
    found = {key: getattr(config, key) for key in keys}
    return found | ({"parameters": parameters(config)} if config.experts else {})


def wanted(names: Collection[str]) -> list[str]:
    """The small files that `entry` reads."""
    return [name for name in (*SMALL_FILES, "README.md") if name in names and name != INDEX]
