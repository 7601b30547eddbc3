"""The catalogue: read, validated against its schema, its defaults filled in."""

import copy
import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingot.base import yaml_text
from ingot.base.refused import Refused
from ingot.driver.catalogue import model
from ingot.driver.catalogue.formats.gguf import FLOATS as CONVERTED
from ingot.driver.catalogue.formats.iree import PROGRAMS
from ingot.formats.gguf import pre_tokenizers
from ingot.formats.gguf.quantisations import ROWS
from ingot.model.families.table import FAMILIES
from ingot.model.features import ADAPTER, FEATURES

PRE_TOKENIZERS = (*pre_tokenizers.TAKEN, "default")  # of our own way
SIZES = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "context")
FILE, SCHEMA = "models.yaml", "models.schema.json"
FEW = 6  # values that a message names all
LOCAL = "models.local.yaml"  # the user's own, of the working folder
JOINS = "has no effect, expected nothing: a request joins the running batch at once"
DEAD = {  # guide 001's settings under `ray`, and what became of them
    "max_concurrent_queries": "unknown: it is max_ongoing_requests today",
    "max_new_token": "unknown: it is max_new_tokens",
    "batch_timeout": JOINS,
    "batch_wait_timeout_s": JOINS,
    "amd_cpu": "has no effect, expected a custom resource: write resources: {amd_cpu: 1}",
    "hf_token": "a secret in a catalogue, expected none: the model is fetched before; use HF_TOKEN",
    "target_device": "unknown: its application says it: cpu or acpu",
    "data_type": "unknown: these applications serve int8, and vllm.dtype is vLLM's",
    "gpu_count": "unknown: it is the target's tensor parallel size, M_tpN",
    "model_name": "unknown: the model is the entry's own",
}


def load(root: Path, own: str | None = None, local: dict | None = None) -> dict:
    """The catalogue of the repository at `root`, and the user's over it, as Snakemake merges them.

    First that of the working folder, LOCAL, or `local` in place of it; then `own`, as --configfile does.
    """
    from snakemake.utils import update_config

    _files.clear()
    catalogue = read(root / FILE)
    local = of_folder() if local is None else local
    for found in (local, read(Path(own)) if own else None):
        if found:
            update_config(catalogue, found)
    complete(catalogue, root)
    return catalogue


def of_folder() -> dict:
    """The user's own of the working folder, empty without one.  Refused: what is there and no file."""
    path = Path(LOCAL)
    if path.is_symlink() and not path.exists():
        raise Refused(
            f"{LOCAL}: a link to {path.readlink()}, which is missing, expected a catalogue; remove the link"
        )
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no plain file"
        raise Refused(f"{LOCAL}: {kind}, expected a catalogue; rename or remove it")
    return read(path) if path.exists() else {}


_files: list[Path] = []  # that were read, to say in which of them a fault is


def read(path: Path) -> dict:
    """One file.  Refused: what is no catalogue by its form."""
    found = yaml_text.only(path, "a catalogue")
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise Refused(f"{path}: holds a {kind}, expected a catalogue")
    _files.append(path)
    return found


def complete(catalogue: dict, root: Path) -> None:
    """Check `catalogue` against the schema and fill in its defaults, in place.

    Refused: what the schema forbids, unknown hardware.
    """
    import jsonschema

    before = {}
    if isinstance(catalogue.get(model.REFUSED), model.Refusals):
        before = catalogue.pop(
            model.REFUSED
        )  # of an earlier look, which took some out of the models
    baseless = {name: why for name, why in before.items() if name not in catalogue["models"]}
    baseless |= _take_bases(catalogue)
    schema = json.loads((root / SCHEMA).read_bytes())
    schema["$defs"]["quant"]["enum"] = [*ROWS]
    schema["$defs"]["feature"]["enum"] = [*FEATURES]
    errors = [*_filling(schema).iter_errors(catalogue)]
    # best_match prefers the branches of a choice, each of which says half
    choices = [
        one
        for one in errors
        if one.validator == "anyOf" or (one.validator == "oneOf" and isinstance(one.instance, dict))
    ]
    if error := next(iter(choices), jsonschema.exceptions.best_match(errors)):
        raise Refused(_said(error))
    refused = {name: model.fill_needs(name, one, root) for name, one in catalogue["models"].items()}
    reasons = {name: reason for name, reason in refused.items() if reason}
    catalogue[model.REFUSED] = model.Refusals(reasons | baseless)
    for name, entry in catalogue["models"].items():
        _settle_way(f"models.{name}", entry)
        for table, key, word in (
            ("hardware", f"models.{name}.hardware", entry["hardware"]),
            ("gpus", f"models.{name}.trtllm.gpu", entry["trtllm"]["gpu"]),
        ):
            if word not in catalogue[table]:
                known = ", ".join(catalogue[table])
                raise Refused(f"{key}: {word}, expected one of {known}")
    for name, table in catalogue["hardware"].items():
        if table.get("program", "") not in ("", *PROGRAMS):
            known = ", ".join(PROGRAMS)
            key = f"hardware.{name}.program"
            raise Refused(f"{key}: {table['program']}, expected one of {known}")


def _take_bases(catalogue: dict) -> dict[str, str]:
    """Fill in, of each model with an adapter, what it has from its base: all that its entry leaves out.

    Those whose base there is not are taken out; gives why, by name.
    """
    models, baseless = catalogue.get("models"), {}
    if not isinstance(models, dict):
        return {}  # the schema says so
    named = [*models.items()]
    plain = [name for name, entry in named if isinstance(entry, dict) and ADAPTER not in entry]
    for name, entry in named:
        adapter = entry.get(ADAPTER) if isinstance(entry, dict) else None
        if not isinstance(adapter, dict) or not isinstance(base := adapter.get("base"), str):
            continue  # the schema says so
        if base in plain:
            found = copy.deepcopy(models[base])
            models[name] = {**found, "name": f"{found.get('name')} {name}", **entry}
            continue
        del models[name]
        kind = "a model with an adapter itself" if base in dict(named) else "no model"
        near = difflib.get_close_matches(base, plain, 1)
        baseless[name] = (
            f"models.{name}.adapter.base: {base} is {kind}, expected one of the catalogue's that is a "
            f"checkpoint{f', such as {near[0]}' if near else ''}; name its base there, or `ingot add` that"
        )
    return baseless


def _settle_way(key: str, entry: dict[str, Any]) -> None:
    """Fill in `way`.  Refused: ours without what it needs."""
    table, entry["way"] = entry["architecture"] in FAMILIES, model.way_of(entry)
    if entry["way"] == model.OWN:
        if not table:
            raise Refused(
                f"{key}.way: own, but Ingot has no table of {entry['architecture']}; leave way out"
            )
        if (pre := entry.get("pre_tokenizer")) not in PRE_TOKENIZERS:
            raise Refused(
                f"{key}.pre_tokenizer: {pre or 'missing'}, expected one of {', '.join(PRE_TOKENIZERS)}"
            )
    own, said = table and entry["way"] == model.OWN, {*entry.get("dimensions", SIZES)}
    if missing := [size for size in SIZES if own and size not in said]:
        raise Refused(
            f"{key}.dimensions.{missing[0]}: missing, expected a whole number; `ingot add` writes it"
        )


def _said(error: Any) -> str:
    """A fault by the schema: in which file, of which key, and what is expected there."""
    path, value, rule = [*error.absolute_path], error.instance, error.validator
    key = ".".join(map(str, path))
    if rule == "additionalProperties" and "patternProperties" not in error.schema:
        known = error.schema.get("properties", {})
        unknown = [name for name in value if name not in known]
        words = _unknown(key, [str(name) for name in unknown], list(known))
        return f"{_file(path, unknown[0])}{words}"
    if (expected := error.schema.get("expected")) and rule in ("pattern", "oneOf", "type"):
        said = f"{value!r:.200}, expected {expected}"
    elif rule in ("enum", "anyOf"):
        said = _not_one_of(error, path)
    elif rule == "oneOf" and isinstance(value, dict):
        said = _choice([one["required"] for one in error.validator_value], value)
    elif rule == "dependentRequired":
        said = _choice([[name, *others] for name, others in error.validator_value.items()], value)
    elif value is None:
        said = f"nothing there, expected {error.validator_value}; write it, or remove the line"
    else:
        said = f"{error.message}; see {SCHEMA}"
    name = value if "propertyNames" in error.absolute_schema_path else ""
    return f"{_file(path, name)}{key or 'the catalogue'}: {said}"


def _not_one_of(error: Any, path: list) -> str:
    """What is wrong where one of several values is expected: all of a few, else the nearest."""
    rules = error.context if error.validator == "anyOf" else [error]
    known = list(dict.fromkeys(one for rule in rules for one in rule.validator_value))
    value, expected = error.instance, error.schema.get("expected")
    if value in CONVERTED and path[2:3] == ["quants"]:
        return (
            f"{value!r} is not one of those that {path[1]}.quants holds: the converter writes it; leave it "
            f"out, and ask for artifacts/{path[1]}.{value}.gguf"
        )
    words = ", ".join(map(str, known[:FEW]))
    words = f"one of {words}{f' and {len(known) - FEW} more' if known[FEW:] else ''}"
    near = difflib.get_close_matches(str(value), map(str, known), 3)
    hint = f"; nearest: {', '.join(map(repr, near))}" if near else f"; see {SCHEMA}"
    return f"{value!r} is not {expected or words}{hint}"


def _choice(ways: list[list[str]], entry: dict) -> str:
    """What is wrong where one of several sets of keys is expected."""
    found = [way[0] for way in ways if way[0] in entry]
    if len(found) > 1:
        return f"has {' and '.join(found)}, expected one of them; give an entry of yours a name of its own"
    wanted = [way for way in ways if way[0] in found] or ways
    words = ", or ".join(" and ".join(way) for way in wanted)
    return f"{f'has {found[0]} alone' if found else 'names no source'}, expected {words}"


def _file(path: list, name: Any = "") -> str:
    """The last file that says it, the user's before ours, and a colon; empty where none does."""
    for file in reversed(_files):
        try:
            found = yaml_text.only(file, "a catalogue")
            for part in path:
                found = found[part]
        except (Refused, KeyError, IndexError, TypeError):  # gone since, or without such a key
            continue
        if not name or name in found:
            return f"{file}: "
    return ""


def _unknown(place: str, unknown: list[str], known: list[str]) -> str:
    """Which key nobody knows, and what may have been meant."""
    prefix = f"{place}." if place else ""
    for name in unknown:
        if name in DEAD and ".ray" in place:
            return f"{prefix}{name}: {DEAD[name]}"
    near = difflib.get_close_matches(unknown[0], known, 1)
    expected = near[0] if near else f"one of {', '.join(known)}"
    return f"{prefix}{unknown[0]}: no such key, expected {expected}; rename or remove it"


def _filling(schema: dict) -> Any:
    """A validator that fills in what a schema has a default of, and for which 1.0 is no integer: steps are
    given it as it is written."""
    import jsonschema

    stock = jsonschema.Draft202012Validator
    types = stock.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)

    def filled(validator: Any, properties: dict, instance: Any, within: dict) -> Iterator[Any]:
        for name, one in properties.items() if isinstance(instance, dict) else ():
            if "default" in one:
                instance.setdefault(name, copy.deepcopy(one["default"]))
        yield from stock.VALIDATORS["properties"](validator, properties, instance, within)

    return jsonschema.validators.extend(stock, {"properties": filled}, type_checker=types)(schema)
