"""The CI matrix that builds what is not on record yet: JSON for any CI, or GitHub's and GitLab's own form.

    ingot matrix                              every model at its own hardware: JSON
    ingot matrix --model llama8b --variants   and every variant of it
    ingot matrix --github >> $GITHUB_OUTPUT   shared=..., build=..., engines=..., any=...
    ingot matrix --gitlab > child.yml         a child pipeline

A cell's `runner` is cpu, bigmem (more than a lent runner has) or the GPU's name in models.yaml;
`--runner NAME=LABEL,LABEL` says which labels that is; with --github and --gitlab a cell of a runner that no
--runner names is left out, and said: nothing would ever take it.  What is on record is in no cell.
"""

import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import dry_run
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.rows import FINAL, FORMATS, OFFERED, RECORD
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.forecast import cells

WHOSE = f"{schema.LOCAL} says what it is, and is not in git, so no cell would have it"


def add_options(parser: ArgumentParser) -> None:
    def several(name: str, words: str) -> None:
        parser.add_argument(name, nargs="*", default=[], metavar="NAME", help=words)

    parser.add_argument("target", nargs="*", help="exactly these (default: by the options)")
    several("--model", "of the catalogue (default: all)")
    several("--format", f"endings of targets (default: {' '.join(FINAL)})")
    parser.add_argument("--variants", action="store_true", help="every hardware and dtype, too")
    parser.add_argument("--all", action="store_true", help="every target of `ingot targets`")
    parser.add_argument(
        "--runner", action="append", default=[], metavar="NAME=LABEL,...", help="labels"
    )
    parser.add_argument("--github", action="store_true", help="lines for $GITHUB_OUTPUT")
    parser.add_argument("--gitlab", action="store_true", help="a child pipeline, YAML")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    if options.github and options.gitlab:
        raise Refused("--github and --gitlab: both, expected one of them; call it once for each")
    catalogue, mine = committed_catalogue(root, options.configfile)
    labels = runners(options.runner, [] if options.gitlab else ["ubuntu-24.04"])
    for name in labels:
        if name not in (known := (*cells.HOSTS, *catalogue["gpus"])):
            raise Refused(f"--runner: {name}, expected one of {', '.join(known)}")
    for word in (*options.model, *options.target):
        if (name := targets.model_of(word)) in mine:
            raise Refused(
                f"{name}: {WHOSE}; move its entry to a catalogue in git, and name that by --configfile"
            )
    wanted = options.target or list(selected(catalogue, options))
    if options.model and not wanted:
        formats = ", ".join(options.format or FINAL)
        raise Refused(
            f"--model: {', '.join(options.model)}: no target of it in {formats}, expected one or more; "
            "name another --format"
        )
    if mine and not (options.target or options.model):
        print(f"{', '.join(mine)}: {WHOSE}: left out", file=sys.stderr)
    for target in wanted:
        targets.check(target, catalogue)
    wanted = [one for target in wanted for one in with_record(target, catalogue)]
    jobs = dry_run(root, wanted, options.configfile) if wanted else []
    layers = cells.cells(jobs, wanted, lambda target: of(target, catalogue))
    own = committed(options.configfile) if options.configfile else ""
    for cell in (cell for found in layers.values() for cell in found):
        cell["configfile"] = own
        cell["runs_on"] = labels.get(cell["runner"], ["self-hosted", cell["runner"]])
    if options.gitlab or options.github:
        some = any(layers.values())
        layers = without_a_runner(layers, labels)
        if (asked := options.target or options.model) and some and not any(layers.values()):
            raise Refused(f"{', '.join(asked)}: no cell that a runner takes; name one by --runner")
    if options.gitlab:
        print(child_pipeline(layers), end="")
    elif options.github:
        for name, found in layers.items():
            print(f"{name}={json.dumps({'include': found})}")
            print(f"any_{name}={json.dumps(bool(found))}")
    else:
        print(json.dumps({"any": any(layers.values()), "layers": layers}, indent=1))


def runners(words: list[str], lent: list[str]) -> dict[str, list[str]]:
    """Labels by the name of a runner; `lent` are those of the CI's own."""
    found = {"cpu": lent}
    for word in words:
        name, equals, labels = word.partition("=")
        if not equals or not labels:
            raise Refused(
                f"--runner: {word}, expected NAME=LABEL,...; such as sm90=self-hosted,h100"
            )
        found[name] = labels.split(",")
    return found


def without_a_runner(layers: dict[str, list[dict]], labels: dict) -> dict[str, list[dict]]:
    """The cells that some runner takes; what the others are for is said."""
    left: dict[str, list[str]] = {}
    out: dict[str, str] = {}  # by the cell's name: the runner that it, or what it needs, lacks
    for cell in (cell for found in layers.values() for cell in found):  # makers stand first
        lacks = next((out[name] for name in cell["needs"] if name in out), "")
        if cell["runner"] not in labels or lacks:
            out[cell["name"]] = lacks or cell["runner"]
            left.setdefault(out[cell["name"]], []).append(cell["name"])
    for runner, names in left.items():
        count = "1 cell is" if len(names) == 1 else f"{len(names)} cells are"
        print(
            f"{runner}: no --runner {runner}=LABEL,... names one, so {count} left out: "
            f"{', '.join(names[:3])}{' ...' if names[3:] else ''}", file=sys.stderr,
        )  # fmt: skip
    return {
        name: [one for one in found if one["name"] not in out] for name, found in layers.items()
    }


def committed(path: str) -> str:
    """A catalogue as cells name it.  Refused: one that no checkout would have."""
    if not in_git(path):
        raise Refused(f"{path}: not in git, so no cell would have it; commit it")
    return os.path.relpath(path)


def committed_catalogue(root: Path, own: str | None) -> tuple[dict, list[str]]:
    """What a cell's checkout reads; and the models that the user's own catalogue makes others here."""
    catalogue = schema.load(root, own)
    if not Path(schema.LOCAL).is_file() or in_git(schema.LOCAL):
        return catalogue, []
    theirs = schema.load(root, own, local={})
    here, there = catalogue["models"], theirs["models"]
    mine = [name for name in here if here[name] != there.get(name)]
    theirs["models"] = {name: there[name] for name in there if name not in mine}
    return theirs, mine


def in_git(path: str) -> bool:
    done = subprocess.run(
        ["git", "ls-files", "--error-unmatch", path], capture_output=True, check=False
    )
    return not done.returncode


def selected(catalogue: dict, options: Namespace):
    """The legal targets that the options name."""
    for name in options.model:
        if name not in catalogue["models"]:
            known = ", ".join(catalogue["models"])
            raise Refused(f"--model: {name}, expected one of {known}")
    for name in options.format:
        if name not in FORMATS:
            known = ", ".join(row.name for row in OFFERED)
            raise Refused(f"--format: {name}, expected one of {known}")
    entries = catalogue["models"]
    unpinned = {
        name for name in entries if "hub" in entries[name] and not entries[name].get("revision")
    }
    left = unpinned & set(options.model or entries)
    if options.model and left == set(options.model):
        names = ", ".join(options.model)
        raise Refused(
            f"{names}: no revision, so in no cell: what it is may change each night; set "
            f"models.{options.model[0]}.revision"
        )
    if left:
        names = ", ".join(sorted(left))
        print(
            f"{names}: no revision, so left out: what it is may change each night", file=sys.stderr
        )
    for target in targets.legal(catalogue):
        parts = targets.parsed(target, catalogue)
        if parts is None or parts.model in unpinned:
            continue
        if options.model and parts.model not in options.model:
            continue
        plain = options.variants or options.all or parts.variant is None
        final = options.all or parts.format in (options.format or FINAL)
        if plain and final:
            yield target


def with_record(target: str, catalogue: dict) -> list[str]:
    """A target, and what verifies it where something does."""
    record = f"{target}{RECORD}"
    if target.endswith(RECORD) or targets.why_not(record, catalogue):
        return [target]
    return [target, record]


def of(target: str, catalogue: dict) -> tuple[str, str, str]:
    """Model, format and GPU of a target; of what is none, such as a file of a checkpoint, its ending."""
    parts = targets.parsed(target, catalogue)
    if parts is None:
        return targets.model_of(target), target.rpartition(".")[2], ""
    words = (parts.variant or "").split(".")
    gpu = next((word for word in words if word in catalogue["gpus"]), parts.entry["trtllm"]["gpu"])
    return parts.model, parts.format, gpu


def child_pipeline(layers: dict[str, list[dict]]) -> str:
    """A job per cell, a stage per layer; GitLab refuses a pipeline without a job."""
    import yaml

    jobs: dict[str, Any] = {"stages": list(layers)}
    for layer, found in layers.items():
        for cell in found:
            jobs[cell["name"]] = {
                "stage": layer,
                "needs": cell["needs"],  # those alone: another cell's failure stops nobody
                **({"tags": cell["runs_on"]} if cell["runs_on"] else {}),
                "timeout": f"{cell['timeout']} minutes",
                "variables": {"TARGETS": cell["targets"], "CONFIGFILE": cell["configfile"]},
                "script": ["make build", 'if [ -n "$PUBLISH" ]; then make publish; fi'],
                "artifacts": {"when": "always", "paths": ["logs/", "artifacts/*.verified.json"]},
            }
    if len(jobs) == 1:
        jobs["nothing"] = {"stage": "build", "script": ["echo everything is on record"]}
    return yaml.safe_dump(jobs, sort_keys=False, width=1000)
