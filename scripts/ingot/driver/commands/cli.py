"""The `ingot` command: what stands around Snakemake.

ingot targets [MODEL]     what can be asked for
ingot plan TARGET...      what it takes: time, memory, disk, downloads, GPUs to serve it
ingot explain TARGET...   why a target would be built: the field that differs
ingot store du|fsck|gc    what lies in the store, whether it is whole, what may go
ingot toolchain NAME      build a toolchain into the cache
ingot lock NAME           resolve a toolchain's requirements anew
ingot ask BUNDLE TEXT     serve a shortfin bundle on this machine and ask it once
ingot demo                build, serve and ask the demo
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]


def targets(model: str | None) -> None:
    import yaml

    from ingot.driver.catalogue.schema import complete
    from ingot.driver.catalogue.targets import legal

    config = yaml.safe_load((ROOT / "models.yaml").read_text())
    complete(config, ROOT / "models.schema.json")
    for target in legal(config):
        if model is None or target.startswith((f"artifacts/{model}.", f"artifacts/{model}_")):
            print(target)


def explain(target: list[str], json: bool, configfile: str | None) -> None:
    from ingot.driver.cache.differences import show

    show(ROOT, target, json, configfile)


def plan(
    target: list[str],
    json: bool,
    configfile: str | None,
    cores: int | None,
    context: int | None,
    gpu_memory: float | None,
    kv_heads: int,
    nominal: float | None,
    svg: Path | None,
) -> None:
    from ingot.driver.commands import plan as planner

    planner.run(ROOT, target, json, configfile, cores, context, gpu_memory, kv_heads, nominal, svg)


def store(
    what: str, target: list[str], days: float, dry_run: bool, json: bool, configfile: str | None
) -> None:
    from ingot.driver.commands import store as storekeeping

    storekeeping.run(ROOT, what, days, dry_run, json, target, configfile)


def toolchain(name: str) -> None:
    from ingot.driver.catalogue import toolchains

    print(toolchains.build(ROOT, name))


def lock(name: str) -> None:
    from ingot.driver.catalogue import toolchains

    print(toolchains.lock(ROOT, name))


def ask(bundle: Path, text: str) -> None:
    from ingot.driver.catalogue import toolchains
    from ingot.iree.shortfin import Server

    with Server(bundle, toolchains.python(ROOT, "iree")) as server:
        print(server.generate(text=text))


def demo() -> None:
    from ingot.driver.commands.demo import show

    show(ROOT)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="ingot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(function, *arguments) -> None:
        sub = commands.add_parser(function.__name__)
        for name, options in arguments:
            sub.add_argument(name, **options)
        sub.set_defaults(function=function)

    command(targets, ("model", {"nargs": "?", "help": "only this model's"}))
    as_json = ("--json", {"action": "store_true", "help": "for programs"})
    catalogue = ("--configfile", {"help": "your own catalogue, as Snakemake's option"})
    named = ("target", {"nargs": "+", "help": "such as artifacts/M_tp1.vmfb"})
    command(explain, named, as_json, catalogue)
    command(
        plan,
        ("target", {"nargs": "+", "help": "artifacts/M_tpN..., or a model's name: serving alone"}),
        as_json,
        catalogue,
        ("--cores", {"type": int, "help": "jobs at once (those of this machine)"}),
        ("--context", {"type": int, "help": "tokens of one request (the model's)"}),
        ("--gpu-memory", {"type": float, "help": "GiB of a GPU (that of the hardware, or 80)"}),
        ("--kv-heads", {"type": int, "default": 0, "help": "instead of config.json's"}),
        (
            "--nominal",
            {"type": float, "help": "billions of parameters, instead of the real number"},
        ),
        ("--svg", {"type": Path, "help": "draw the disk over time into this file"}),
    )
    command(
        store,
        ("what", {"choices": ("du", "fsck", "gc"), "help": "look, check, or drop what is idle"}),
        ("target", {"nargs": "*", "help": "gc: keep what these need"}),
        ("--days", {"type": float, "default": 30, "help": "gc: keep what was used since (30)"}),
        ("--dry-run", {"action": "store_true", "help": "gc: only say what would go"}),
        as_json,
        catalogue,
    )
    command(toolchain, ("name", {"help": "a folder of envs/"}))
    command(lock, ("name", {"help": "a folder of envs/"}))
    command(
        ask,
        ("bundle", {"type": Path, "help": "artifacts/M_tp1.shortfin"}),
        ("text", {"help": "the prompt, special tokens spelt out"}),
    )
    command(demo)
    arguments = vars(parser.parse_args(argv))
    try:
        arguments.pop("function")(**arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
