"""What a build takes and what serving takes, before anything is fetched or built.

For a model not yet fetched, only config.json (1 kB) and the hub's list of files are fetched.
"""

import json
import math
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from ingot.base import machine
from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import dry_run
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.rows import FORMATS
from ingot.driver.catalogue.model import Model, base_of, stop_on_refusal, untold
from ingot.driver.commands import at_hub, plan_table
from ingot.driver.commands.targets import above_0, add_catalogue
from ingot.driver.forecast import schedule, streamed
from ingot.driver.forecast.costs import CONFIGS, Costs
from ingot.driver.forecast.past import Past, spread
from ingot.model import gpu_layout
from ingot.model.checkpoint.quantised.schemes import ALL as SCHEMES
from ingot.model.config import ModelConfig
from ingot.model.gpu_layout import SERVERS, SHORTFIN, VLLM, GpuLayout
from ingot.model.specs import parameters
from ingot.parity import reading as reading_of
from ingot.serving.vllm import plan as plan_of
from ingot.serving.vllm import schemes
from ingot.store.records import Store

GIB = gpu_layout.GIB
PATIENCE = 10.0  # seconds with a hub that need not answer: the catalogue states the dimensions
BY_CATALOGUE = "planned by the catalogue's dimensions"
DEFAULT_GPU = 80  # GiB, where the hardware's memory is not in the catalogue
ELSEWHERE = {  # options that are not here, and what to ask in their place
    "--on": "`ingot fit M --on DEVICE` says what fits a device, and --gpu-memory sets a GPU's GiB here"
}
GUIDE_KV = (
    "16 KV heads are those of the first release of Llama 3.1 405B, which stored each head twice; "
    "the present one has 8"
)


def add_options(parser: ArgumentParser) -> None:
    def option(name: str, words: str, **more) -> None:
        parser.add_argument(name, help=words, **more)

    option("target", "artifacts/M_tpN..., or a model's name, for serving alone", nargs="+")
    option(
        "--json", "machine-readable: the plan as JSON, in bytes and seconds", action="store_true"
    )
    add_catalogue(parser)
    option(
        "--cores",
        "parallel jobs, whatever memory they take (default: this machine's cores and memory)",
        type=above_0(int),
    )
    option("--context", "tokens of one request (default: the model's context)", type=above_0(int))
    option("--gpu-memory", "GiB of one GPU (default: of the model's hardware)", type=above_0(float))
    option(
        "--kv-heads", "in place of config.json's number of KV heads", type=above_0(int), default=0
    )
    option("--nominal", "billions of parameters, in place of the real number", type=above_0(float))
    option("--svg", "a file to draw the disk over time into", type=Path)


def run(root: Path, options: Namespace) -> None:
    catalogue = schema.load(root, options.configfile)
    built = [target for target in options.target if target not in catalogue["models"]]
    for target in built:
        targets.check(target, catalogue)
    names = list(dict.fromkeys(targets.model_of(target) for target in options.target))
    with tempfile.TemporaryDirectory() as folder:

        def jobs_of_build() -> list[dict]:
            if not built:
                return []
            return dry_run(root, built, options.configfile, **{CONFIGS: folder})

        with fetching(root, catalogue, names, Path(folder)) as wait_for_configs:
            jobs = jobs_of_build()  # asked side by side: 2.2 s, 2.6 in turn
            wait_for_configs()
        if any(job["action"] == "run" and not job.get("forecast") for job in jobs):
            jobs = jobs_of_build()
        costs = Costs(catalogue, root, Past(Store()), [Path(folder)])
        wanted = {target.rstrip("/") for target in built}
        found = {
            "targets": options.target,
            "build": of_build(jobs, wanted, options.cores, costs.past),
            "serving": [
                of_serving(name, costs, built, options) for name in names if known(name, costs)
            ],
        }
    if options.svg and built:
        from ingot.driver.release.pages import plots

        options.svg.write_text(plots.plain(plots.disk(found["build"], " ".join(built))))
    print(json.dumps(found) if options.json else "\n".join(plan_table.lines(found)))
    if options.svg and built and not options.json:
        print(f"{options.svg}: the disk over time")


@contextmanager
def fetching(
    root: Path, catalogue: dict, names: list[str], folder: Path
) -> Iterator[Callable[[], None]]:
    """Meanwhile the config.json of models that are not here are fetched; gives what waits for them.

    A kilobyte each, and a list of files, into a folder that is thrown away.  Where the catalogue states the
    dimensions, it is not waited for longer than PATIENCE.
    """
    models, hub = catalogue["models"], at_hub.Hub(root)
    absent = [
        name
        for name in dict.fromkeys(base_of(name, models[name]) for name in names)
        if "hub" in models[name] and not Path("artifacts", f"{name}.hf/config.json").is_file()
    ]

    def fetch(name: str) -> None:
        place, entry = folder / f"{name}.hub", models[name]
        place.mkdir()
        hub.listed(entry["hub"], entry.get("revision", ""), place, entry["gated"])
        hub.fetch(place, "config.json")
        for file, kept in (
            (at_hub.LISTING, f"{name}.listing.json"),
            ("config.json", f"{name}.json"),
        ):
            (place / file).rename(folder / kept)  # where a Model looks for them

    stated = all("dimensions" in models[name] for name in absent)

    def wait() -> None:
        end = time.monotonic() + PATIENCE
        for name, one in zip(absent, started, strict=True):
            try:
                one.result(max(end - time.monotonic(), 0) if stated else None)
            except Refused as reason:
                if not stated:
                    raise
                print(f"{reason}\n{BY_CATALOGUE}", file=sys.stderr)
            except TimeoutError:
                hub.end()
                silent = f"{models[name]['hub']}: not had from the hub in {PATIENCE:.0f} s"
                print(f"{silent}\n{BY_CATALOGUE}", file=sys.stderr)
                return

    with ThreadPoolExecutor(max(1, len(absent))) as pool:
        started = [pool.submit(fetch, name) for name in absent]
        try:
            yield wait
        finally:
            hub.end()


def of_build(jobs: list[dict], wanted: set[str], cores: int | None, past: Past) -> dict:
    """The jobs, the totals, and the disk over time for both ways of keeping.

    On so many `cores`; None: on those of this machine, in its memory.
    """
    most = math.inf if cores else machine.available()
    cores = cores or machine.cores()
    ways = schedule.both(jobs, wanted, cores, most)
    running = [job for job in jobs if job["action"] == "run" and job.get("forecast")]
    rows = [
        {
            "outputs": job["outputs"],
            "rule": job["rule"],
            "starts": ways["all"].started.get(job["outputs"][0], 0.0),
            **{key: job["forecast"][key] for key in ("seconds", "memory", "download", "gpus")},
            "disk": sum(job["forecast"]["files"].values()),
        }
        for job in running
    ]
    restored = [path for job in jobs if job["action"] == "restore" for path in job["files"]]
    idle = [job for job in jobs if job["action"] == "none"]
    here = [path for job in idle for path in job["outputs"] if path in wanted]
    steps = {job["step"] for job in running}
    errors = past.errors(steps)
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
        "stream": streamed.forecast(jobs),
        "error": {
            "past_jobs": len(errors),
            "known": any(past.jobs(step) for step in steps),
            **{
                word: spread(ratios[n] for ratios in errors)
                for n, word in enumerate(("seconds", "memory", "disk"))
            },
        },
    }


def known(name: str, costs: Costs) -> bool:
    """Can its layout over GPUs be told?  Without a table of the model, by transformers' reading alone."""
    model = costs.model(name)
    if model.numbers is None or model.config is not None or reading(name).is_file():
        return True  # or refused, with the reason
    print(
        f"{name}: {untold(model.entry)}; for its layout over GPUs, "
        f"`snakemake {reading(name)}` first: transformers reads config.json",
        file=sys.stderr,
    )
    return False


def reading(name: str) -> Path:
    return Path("artifacts", f"{name}.reading.json")


def of_serving(name: str, costs: Costs, built: list[str], options: Namespace) -> dict:
    """What serving `name` takes, and how it can be laid over GPUs."""
    stop_on_refusal(name, costs.catalogue)
    catalogue, model = costs.catalogue, costs.model(name)
    entry, config = catalogue["models"][name], model.config
    if config is None and not reading(name).is_file():
        missing = f"{name}: no config.json to plan by, expected one; see models.{name}"
        raise Refused(model.refusal or missing)
    mine = (target for target in built if targets.model_of(target) == name)
    asked = next((found for one in mine if (found := targets.parsed(one, catalogue))), None)
    row = FORMATS[asked.format if asked else "vmfb"]
    words = (asked.variant or "").split(".") if asked else []
    scheme = next((word for word in words if word in SCHEMES), "")
    servers = ("vllm",) if scheme else () if asked and row.whole else row.servers
    default, stages = entry["hardware"], 1
    if row.devices == "gpus":
        default, stages = entry["trtllm"]["gpu"], entry["trtllm"]["pp"]
    devices = catalogue[row.devices]
    if row.servers == ("vllm",):
        device, stages = entry["vllm"]["device"], entry["vllm"].get("pp", 1)
        default = device if device in devices else default  # of one for CPUs, what a GPU would take
    hardware = next((word for word in words if word in devices), default)
    room = options.gpu_memory or devices[hardware].get("memory") or DEFAULT_GPU
    memory = int(room * GIB)
    by = (
        by_table(config, servers, memory, options, entry["tp"], scheme)
        if config
        else by_reading(model, memory, options)
    )
    return {
        "model": name, "hardware": hardware, "gpu_gib": room,
        "asked_tp": asked.tp if asked else None, "asked_pp": stages,
        "context_asked": bool(options.context), **by,
    }  # fmt: skip


def by_table(
    config: ModelConfig,
    servers: tuple,
    memory: int,
    options: Namespace,
    sizes: list[int],
    scheme: str = "",
) -> dict:
    """Weights, cache and layouts by our own table of the family; `scheme` is of quantised weights.

    `sizes` are those that the catalogue has targets of: shortfin serves nothing else.
    """
    length, kv_heads = request(options, config.context, config.context), options.kv_heads
    per_weight = schemes.per_weight(config, scheme) if scheme else 0
    needs = gpu_layout.needs(config, length, memory, options.nominal, kv_heads)
    if scheme:
        whole = gpu_layout.gpu_layout(config, 1, 1, VLLM, memory, length, per_weight=per_weight)
        needs = gpu_layout.by_bytes(whole.weights, needs.cache, memory)

    def layouts(server: str) -> Iterator[GpuLayout]:
        for one in gpu_layout.layouts(config, SERVERS[server], memory, length, per_weight):
            cut = schemes.cut_group(config, scheme, one.tp) if scheme and not one.wrong else None
            if server == SHORTFIN.name and not one.wrong and one.tp not in sizes:
                cut = f"the model's `tp` in the catalogue is {', '.join(map(str, sizes))}"
            yield GpuLayout(one.tp, one.pp, cut) if cut else one

    return {
        "parameters": parameters(config), "context": length, "kv_heads": kv_heads or config.kv_heads,
        "kv_per_token": gpu_layout.kv_per_token(_with(config, kv_heads)), "needs": asdict(needs),
        "layouts": {name: [_row(one) for one in layouts(name)] for name in servers},
        "note": GUIDE_KV if kv_heads == 16 and config.kv_heads == 8 else None,
    }  # fmt: skip


def by_reading(model: Model, memory: int, options: Namespace) -> dict:
    """The same by transformers' reading of config.json; what is served is the checkpoint, by vLLM."""
    if options.kv_heads or options.nominal:
        raise Refused(
            f"{model.name}: --kv-heads and --nominal are of models that Ingot has a table of"
        )
    shape = plan_of.shape_of(reading_of.served(reading(model.name)), model.checkpoint_bytes())
    length = request(options, shape.context, shape.context)
    rows = [*plan_of.layouts(shape, memory, length)]
    one = rows[0]
    cache = one.kv_per_token * length
    return {
        "parameters": model.parameters(), "context": length, "kv_heads": shape.kv_heads,
        "kv_per_token": one.kv_per_token,
        "needs": asdict(gpu_layout.by_bytes(shape.weights, cache, memory)),
        "layouts": {"vllm": [_row(one) for one in rows]}, "note": None,
    }  # fmt: skip


def request(options: Namespace, default: int, most: int) -> int:
    """Tokens of one request.  Refused: more than the model's own context."""
    length = options.context or default
    if not 0 < length <= most:
        raise Refused(f"--context: {length}, expected at most {most}, the model's own")
    return length


def _row(one: gpu_layout.GpuLayout) -> dict:
    return {**asdict(one), "gpus": one.gpus}


def _with(config: ModelConfig, kv_heads: int) -> ModelConfig:
    return replace(config, kv_heads=kv_heads) if kv_heads else config
