"""The catalogue held against its schema: one line for what is wrong, defaults for what is absent."""

import json
import sys
from pathlib import Path


def complete(config: dict, schema_file: Path) -> None:
    """Check `config` against the schema and fill in its defaults, in place."""
    import jsonschema
    from snakemake.utils import validate

    schema = json.loads(schema_file.read_bytes())
    validator = jsonschema.Draft202012Validator(schema)
    if error := jsonschema.exceptions.best_match(validator.iter_errors(config)):
        key = ".".join(map(str, error.absolute_path)) or "the catalogue"
        sys.exit(f"error: {key}: {error.message}; see {schema_file.name}")
    validate(config, str(schema_file))
    for name, entry in config["models"].items():
        if entry["hardware"] not in config["hardware"]:
            known = ", ".join(config["hardware"])
            sys.exit(f"error: models.{name}.hardware: {entry['hardware']}, expected one of {known}")
        if entry["trtllm"]["gpu"] not in config["gpus"]:
            known = ", ".join(config["gpus"])
            gpu = entry["trtllm"]["gpu"]
            sys.exit(f"error: models.{name}.trtllm.gpu: {gpu}, expected one of {known}")
    for where, flags in _flags(config):
        for flag in flags:
            if flag.endswith("=host") or "path=" in flag:
                sys.exit(
                    f"error: {where}: {flag}, expected no flag that means this machine or one of its "
                    "files: it decides what is built, and no key would show it; name the value"
                )


def _flags(config: dict):
    for name, table in config["hardware"].items():
        for key in ("flags", "several"):
            yield f"hardware.{name}.{key}", table[key]
    for name, entry in config["models"].items():
        for key in ("export_flags", "compile_flags"):
            yield f"models.{name}.iree.{key}", entry["iree"][key]
