"""The `snakemake` command of .venv/bin: Snakemake's own, after what it would meet with a traceback."""

import argparse
import gc
import importlib.util
import itertools
import os
import signal
import sys
from pathlib import Path

from ingot.base.refused import Refused, one_line
from ingot.driver.commands import stopped
from ingot.driver.snakemake import noop

ROOT = Path(__file__).resolve().parents[4]
FILES = ("--configfile", "--configfiles", "--report-metadata")  # options that name files
CORES = ("--cores", "-c", "--jobs", "-j")  # of which 0 waits for ever
INSTEAD = {  # options that would go past the store or the toolchains, and what is in their place
    "--cache": "not used here, since Ingot's own store keeps what every rule makes; leave it out",
    "--containerize": "writes an image without Ingot's toolchains; `ingot image` makes images of servers",
    "--archive": (
        "packs the checkpoint and no toolchain; `git archive` packs the code, and `ingot publish` sends "
        "artifacts"
    ),
}
NAMES_TARGETS = {  # options whose values are targets or files
    *("--forcerun", "-R", "--until", "-U", "--omit-from", "-O", "--allowed-rules", "--prioritize", "-P"),
    *("--wait-for-files", "--cleanup-metadata", "--cm", "--batch"),
}  # fmt: skip


def main() -> int | None:
    for name in ("stdout", "stderr"):
        # closed: what is said goes nowhere, and nothing fails for it
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if noop.known(asked := sys.argv[1:]):
        return 0
    watch = noop.Watch(asked)
    try:
        return run()
    except KeyboardInterrupt as reason:
        return stopped.by_ctrl_c(reason)
    finally:
        ended = getattr(sys.exc_info()[1], "code", None)  # Snakemake ends the program itself
        hook = sys.modules.get("ingot.driver.snakemake.hook")  # of the Snakefile's own Ingot
        if ended == 0 and hook and hook.Session.idle:
            watch.keep()
        told = getattr(sys.modules.get("ingot.driver.snakemake.says"), "status", 0)
        gc.freeze()  # as steps do: nothing is garbage at the end
        # Python's would end in a traceback from here on
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if ended and told:  # Snakemake's own is that of a failure
            from ingot.base.entry import end

            end(told)


def run() -> int | None:
    from ingot.base.entry import GARBAGE
    from ingot.driver.catalogue import spelling

    gc.set_threshold(*GARBAGE)
    words = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    sys.argv[1:] = spelling.targets(sys.argv[1:], ROOT)
    import yaml
    from snakemake import cli

    mine = ours(words)
    if not {"--version", "-v", "--help", "-h"} & set(words):
        with one_line("error: "):
            stop_on_wrong_values(words)
            stop_on_impossible({word.partition("=")[0] for word in words}, mine)
            stop_on_swallowed(words, cli.get_argument_parser())
            stop_without_cache()
            stop_without_store()
            stop_without_folder(words)
            stop_without_snakefile(words)
    if not mine:
        for module in [one for one in sys.modules if one.partition(".")[0] == "ingot"]:
            del sys.modules[module]  # another Snakefile brings its own
    # the same in C: a twentieth of the time, which was a tenth of a dry run's
    yaml.FullLoader = getattr(yaml, "CFullLoader", yaml.FullLoader)
    # 98 lines before the one on what is wrong
    argparse.ArgumentParser.print_usage = lambda *_: None
    try:
        return cli.main()
    except (ValueError, OSError) as error:  # of an option's value
        if "--verbose" in words:
            raise
        said = (str(error).splitlines() or [type(error).__name__])[0]
        print(f"error: {said}; --verbose says where", file=sys.stderr)
        return 1


def ours(words: list[str]) -> bool:
    """Is the Snakefile that of this Ingot, whose modules are here?  When in doubt, no."""
    from snakemake.api import resolve_snakefile

    named = None
    for option, value in itertools.pairwise([*words, ""]):
        if option in ("-s", "--snakefile"):
            named = value
        elif option.startswith(("-s", "--sn")):
            return False
    found = named or resolve_snakefile(None, allow_missing=True)
    return found is not None and Path(found).resolve() == ROOT / "Snakefile"


def stop_on_wrong_values(words: list[str]) -> None:
    """Refuse a file that an option names and that does not exist or is no catalogue, and no cores."""
    from ingot.driver.catalogue import schema

    schema.of_folder()  # before those that are read over it
    option = ""
    for word in words:
        named = word
        if word.startswith("-"):
            option, _, named = word.partition("=")
        if word in ("-c0", "-j0"):
            option, named = word[:2], "0"
        none = (
            named == "0" if option in CORES else option == "--set-threads" and named.endswith("=0")
        )
        if none:
            raise Refused(f"{option} {named}: nothing could run, expected 1 or more")
        if option in FILES and named and not named.startswith(("-", "artifacts/")):
            if not Path(named).exists():
                raise Refused(f"{named}: no such file, named by {option}")
            if option != FILES[-1]:
                schema.read(Path(named))
        if "=" in word and word.startswith("-"):
            option = ""


def stop_on_swallowed(words: list[str], parser: argparse.ArgumentParser) -> None:
    """Refuse a target that an option takes for one of its values: of those that take as many as come."""
    many = {
        name
        for action in parser._actions
        if action.nargs in ("+", "*", "?")
        for name in action.option_strings
    }
    option = ""
    for word in words:
        if word.startswith("-"):
            option = "" if "=" in word else word
        elif option in many - NAMES_TARGETS and word.startswith("artifacts/"):
            raise Refused(
                f"{word}: taken for a value of {option}, which takes what follows; write -- before the "
                "targets"
            )


def stop_on_impossible(options: set[str], mine: bool = True) -> None:
    """`mine`: of Ingot's own Snakefile, whose store stands in place of some."""
    for option in INSTEAD.keys() & options if mine else ():
        raise Refused(f"{option}: {INSTEAD[option]}")
    if "--generate-unit-tests" in options:
        raise Refused(
            "--generate-unit-tests: copies each step's inputs from the working folder, where a restored "
            "target has none; the tests of Ingot's steps are in tests/steps"
        )
    if "--runtime-profile" in options and not importlib.util.find_spec("yappi"):
        raise Refused(
            "--runtime-profile: needs yappi, which is not installed; .venv/bin/python -m pip install yappi"
        )


def stop_without_store() -> None:
    place = Path(os.environ.get("INGOT_STORE") or ".")
    if place.exists() and not place.is_dir():
        raise Refused(f"{place}: a file, expected a folder, of INGOT_STORE; name another")


def stop_without_folder(words: list[str]) -> None:
    """Snakemake keeps its locks there."""
    place = Path()
    for option, value in itertools.pairwise([*words, ""]):
        name, is_set, same = option.partition("=")
        if name in ("-d", "--directory"):
            place = Path(same if is_set else value)
    locks = place / ".snakemake/locks"
    nearest = next((one for one in (locks, *locks.parents[:2]) if one.exists()), locks)
    looks = {"-n", "--dry-run", "--dryrun"} & {*words}  # which takes no lock
    if nearest.exists() and not (looks and nearest == locks) and not os.access(nearest, os.W_OK):
        raise Refused(
            f"{nearest.resolve()}: cannot be written, and a run writes there; work in a folder of yours: "
            f"snakemake -s {ROOT}/Snakefile"
        )


def stop_without_snakefile(words: list[str]) -> None:
    """In another folder than a clone: Snakemake would say what it tried, and not where ours is."""
    from snakemake.api import resolve_snakefile

    named = any(word.startswith(("-s", "--snakefile")) for word in words)
    found = resolve_snakefile(None, allow_missing=True)
    if not named and not found and any(word.startswith("artifacts/") for word in sys.argv):
        raise Refused(f"no Snakefile here; cd {ROOT}, or snakemake -s {ROOT}/Snakefile")


def stop_without_cache() -> None:
    """Refuse a home folder that may not be written: Snakemake keeps its copies of rules there."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if (place / "snakemake").exists():
        return
    nearest = next(path for path in (place, *place.parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        raise Refused(
            f"{place}: cannot be written, and caches go there; set XDG_CACHE_HOME to a folder of yours "
            "(INGOT_ENVS and INGOT_STORE move the toolchains and the store alone)"
        )
