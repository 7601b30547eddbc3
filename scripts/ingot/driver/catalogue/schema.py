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
from ingot.driver.catalogue.formats.iree import PROGRAMS
from ingot.formats.gguf import pre_tokenizers
from ingot.formats.gguf.quantisations import ROWS
from ingot.model.families.table import FAMILIES
from ingot.model.features import ADAPTER, FEATURES

PRE_TOKENIZERS = (*pre_tokenizers.TAKEN, "default")  # of our own way
SIZES = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "context")
FILE, SCHEMA = "models.yaml", "models.schema.json"
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

    catalogue = read(root / FILE)
    if local is None and Path(LOCAL).is_file():
        local = read(Path(LOCAL))
    for found in (local, read(Path(own)) if own else None):
        if found:
            update_config(catalogue, found)
    complete(catalogue, root)
    return catalogue


def read(path: Path) -> dict:
    """One file.  Refused: what is no catalogue by its form."""
    found = yaml_text.only(path, "a catalogue")
    if not isinstance(found, dict):
        kind = type(found).__name__
        raise Refused(f"{path}: holds a {kind}, expected a catalogue")
    return found


def complete(catalogue: dict, root: Path) -> None:
    """Check `catalogue` against the schema and fill in its defaults, in place.

    Refused: what the schema forbids, unknown hardware, flags that mean this machine.
    """
    import jsonschema

    if isinstance(catalogue.get(model.REFUSED), model.Refusals):  # of an earlier look
        del catalogue[model.REFUSED]
    _take_bases(catalogue)
    schema = json.loads((root / SCHEMA).read_bytes())
    schema["$defs"]["quant"]["enum"] = [*ROWS]
    schema["$defs"]["feature"]["enum"] = [*FEATURES]
    if error := jsonschema.exceptions.best_match(_filling(schema).iter_errors(catalogue)):
        key = ".".join(map(str, error.absolute_path))
        if error.validator == "additionalProperties" and "patternProperties" not in error.schema:
            known = error.schema.get("properties", {})
            _stop_on_unknown(
                key, [name for name in error.instance if name not in known], list(known)
            )
        raise Refused(f"{key or 'the catalogue'}: {error.message}; see {SCHEMA}")
    refused = {name: model.fill_needs(name, one, root) for name, one in catalogue["models"].items()}
    reasons = {name: reason for name, reason in refused.items() if reason}
    catalogue[model.REFUSED] = model.Refusals(reasons)
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
    for where, flags in _flags(catalogue):
        for flag in flags:
            if flag.endswith("=host") or "path=" in flag:
                raise Refused(
                    f"{where}: {flag}, expected no flag that means this machine or one of its "
                    "files: it affects what is built, and no key would show it; name the value"
                )


def _take_bases(catalogue: dict) -> None:
    """Fill in, of each model with an adapter, what it has from its base: all that its entry leaves out."""
    models = catalogue.get("models")
    named = models.items() if isinstance(models, dict) else ()
    for name, entry in named:
        adapter = entry.get(ADAPTER) if isinstance(entry, dict) else None
        if not isinstance(adapter, dict) or not isinstance(base := adapter.get("base"), str):
            continue  # the schema says so
        found = models.get(base)
        if not isinstance(found, dict) or ADAPTER in found:
            kind = "a model with an adapter itself" if isinstance(found, dict) else "no model"
            raise Refused(
                f"models.{name}.adapter.base: {base} is {kind}, expected one of the catalogue's that is a "
                "checkpoint; `ingot add` it first"
            )
        models[name] = {**copy.deepcopy(found), "name": f"{found.get('name')} {name}", **entry}


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


def _stop_on_unknown(place: str, unknown: list[str], known: list[str]) -> None:
    """Say which key nobody knows, and what may have been meant."""
    prefix = f"{place}." if place else ""
    for name in unknown:
        if name in DEAD and ".ray" in place:
            raise Refused(f"{prefix}{name}: {DEAD[name]}")
    near = difflib.get_close_matches(unknown[0], known, 1)
    expected = near[0] if near else f"one of {', '.join(known)}"
    raise Refused(f"{prefix}{unknown[0]}: no such key, expected {expected}; rename or remove it")


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


def _flags(catalogue: dict) -> Iterator[tuple[str, list[str]]]:
    for name, table in catalogue["hardware"].items():
        for key in ("flags", "single_device_flags", "multi_device_flags"):
            yield f"hardware.{name}.{key}", table[key]
    for name, entry in catalogue["models"].items():
        for key in ("export_flags", "compile_flags"):
            yield f"models.{name}.iree.{key}", entry["iree"][key]
