"""`ingot plan`: what a build takes and what serving takes, before anything is fetched or built."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from ingot.checkpoint.config import ModelConfig
from ingot.driver.cache import differences as explain
from ingot.driver.catalogue import targets, toolchains
from ingot.driver.commands import plan_chart as picture
from ingot.driver.commands import plan_table as plantable
from ingot.driver.forecast import costs
from ingot.driver.forecast import gpu_memory as serving
from ingot.driver.forecast import schedule as forecast
from ingot.store.blobs import Store

GIB = serving.GIB
GUIDE_KV = (
    "16 KV heads are those of the first release of Llama 3.1 405B, which stored each head twice; "
    "the present one has 8"
)


def run(
    root: Path,
    wanted: list[str],
    as_json: bool,
    catalogue_file: str | None,
    cores: int | None,
    context: int | None,
    memory: float | None,
    kv_heads: int,
    nominal: float | None,
    svg: Path | None,
) -> None:
    catalogue = read_catalogue(root, catalogue_file)
    built = [target for target in wanted if target not in catalogue["models"]]
    for target in built:
        if reason := targets.wrong(target, catalogue):
            sys.exit(f"error: {target}: {reason}; {targets.nearest(target, catalogue)}")
    names = list(dict.fromkeys(targets.model_of(target) for target in wanted))
    with tempfile.TemporaryDirectory() as folder:
        os.environ[costs.CONFIGS] = folder
        fetched = fetch_configs(root, catalogue, names, Path(folder))
        jobs = explain.ask(root, built, catalogue_file) if built else []
        fetched()
        if any(job["action"] == "run" and not job.get("forecast") for job in jobs):
            jobs = explain.ask(
                root, built, catalogue_file
            )  # asked side by side: 2.2 s, 2.6 in turn
        known = costs.Costs(catalogue, root, Store())
        found = {
            "targets": wanted,
            "build": building(
                jobs, {one.rstrip("/") for one in built}, cores or os.cpu_count(), known
            ),
            "serving": [
                one_model(name, catalogue, known, built, context, memory, kv_heads, nominal)
                for name in names
            ],
        }
    if svg and built:
        svg.write_text(picture.disk(found["build"], " ".join(built)))
    print(json.dumps(found) if as_json else "\n".join(plantable.lines(found)))
    if svg and built and not as_json:
        print(f"{svg}: the disk over time")


def read_catalogue(root: Path, mine: str | None) -> dict:
    import yaml

    from ingot.driver.catalogue.schema import complete

    catalogue = yaml.safe_load((root / "models.yaml").read_text())
    if mine:
        try:
            own = yaml.safe_load(Path(mine).read_text()) or {}
        except OSError as error:
            sys.exit(f"{mine}: {error.strerror}, expected a catalogue; name another")
        for key in ("models", "hardware"):
            catalogue[key] |= own.get(key) or {}
    complete(catalogue, root / "models.schema.json")
    return catalogue


def fetch_configs(root: Path, catalogue: dict, names: list[str], folder: Path):
    """Start to fetch the config.json of models that are not here; a function that waits for them.

    The same two steps as the rules', a kilobyte each, into a folder that is thrown away.
    """
    absent = [
        name
        for name in names
        if "hub" in catalogue["models"][name]
        and not Path("artifacts", f"{name}.hf/config.json").is_file()
    ]
    python = toolchains.build(root, "hub") / "bin/python" if absent else None
    started = []
    for name in absent:
        entry, listing = catalogue["models"][name], folder / f"{name}.listing.json"
        words = ["--model", name, "--hub", entry["hub"], f"--gated={entry['gated']}"]
        words += [f"--revision={entry.get('revision', '')}", "--revisions", folder / "lock.json"]
        file = ["--name", "config.json", "--file", folder / f"{name}.json"]
        steps = (
            _quoted([python, root / "scripts/fetch_listing.py", *words, "--listing", listing]),
            _quoted([python, root / "scripts/fetch_file.py", "--listing", listing, *file]),
        )
        command = ["sh", "-c", " && ".join(steps)]
        started.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )

    def wait() -> None:
        for process in started:
            _, said = process.communicate(timeout=600)
            if process.returncode:
                sys.exit(
                    f"error: {said.strip().splitlines()[-1] if said.strip() else 'no config.json'}"
                )

    return wait


def _quoted(words) -> str:
    return " ".join(shlex.quote(str(word)) for word in words)


def building(jobs: list[dict], wanted: set[str], cores: int, known: costs.Costs) -> dict:
    """The jobs, the totals, and the disk over time for both ways of keeping."""
    ways = forecast.both(jobs, wanted, cores)
    rows = [
        {
            "outputs": job["outputs"],
            "rule": job["rule"],
            "starts": ways["all"].started.get(job["outputs"][0], 0.0),
            **{key: job["forecast"][key] for key in ("seconds", "memory", "download")},
            "disk": sum(job["forecast"]["files"].values()),
            "gpus": 0,  # nothing that Ingot runs here needs one: compilers only aim at it
        }
        for job in jobs
        if job["action"] == "run" and job.get("forecast")
    ]
    restored = [path for job in jobs if job["action"] == "restore" for path in job["files"]]
    idle = [job for job in jobs if job["action"] == "none"]
    here = [path for job in idle for path in job["outputs"] if path in wanted]
    families = {job["forecast"]["family"] for job in jobs if job.get("forecast")}
    past = costs.errors(known, families)
    totals = {
        keep: {
            **{key: getattr(way, key) for key in ("seconds", "memory", "disk", "kept", "download")},
            "timeline": way.timeline,
        }
        for keep, way in ways.items()
    }
    return {
        "cores": cores,
        "jobs": sorted(rows, key=lambda row: row["starts"]),
        "restored": restored,
        "up_to_date": here,
        "keep": totals,
        "error": {
            "past_jobs": len(past),
            "known": any(known.past_jobs(family) for family in families),
            **{
                word: costs.spread(one["ratios"][n] for one in past)
                for n, word in enumerate(("seconds", "memory", "disk"))
            },
        },
    }


def one_model(
    name: str, catalogue: dict, known: costs.Costs, built: list[str],
    context: int | None, memory: float | None, kv_heads: int, nominal: float | None,
) -> dict:  # fmt: skip
    """What serving `name` takes, and how it can be laid out."""
    config = known.config(name)
    entry = catalogue["models"][name]
    asked = next((targets.NAME.fullmatch(t) for t in built if targets.model_of(t) == name), None)
    variant = asked and asked["variant"]
    hardware = variant if variant in catalogue["hardware"] else entry["hardware"]
    room, stages = catalogue["hardware"][hardware].get("memory"), 1
    engines = (serving.SHORTFIN, serving.VLLM)
    if asked and asked["format"] in targets.TRTLLM:
        named = (variant or "").split(".")[-1]
        hardware = named if named in catalogue["gpus"] else entry["trtllm"]["gpu"]
        room, stages = catalogue["gpus"][hardware].get("memory"), entry["trtllm"]["pp"]
        engines = (serving.TRTLLM,)
    room = memory or room or 80
    length = context or config.context
    whole = serving.needs(config, length, int(room * GIB), nominal, kv_heads)
    tables = {
        engine.name: [
            {**asdict(row), "gpus": row.gpus}
            for row in serving.layouts(config, engine, int(room * GIB), length)
        ]
        for engine in engines
    }
    return {
        "model": name, "parameters": serving.parameters(config), "hardware": hardware,
        "gpu_gib": room, "context": length, "kv_heads": kv_heads or config.kv_heads,
        "kv_per_token": serving.kv_per_token(_with(config, kv_heads)),
        "needs": asdict(whole), "layouts": tables,
        "asked_tp": int(asked["tp"]) if asked and asked["tp"] else None, "asked_pp": stages,
        "note": GUIDE_KV if kv_heads == 16 and config.kv_heads == 8 else None,
    }  # fmt: skip


def _with(config: ModelConfig, kv_heads: int) -> ModelConfig:
    return replace(config, kv_heads=kv_heads) if kv_heads else config
