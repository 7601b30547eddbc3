"""The `snakemake` command of .venv/bin: Snakemake's own, after what it would meet with a traceback."""

import importlib.util
import os
import sys
from pathlib import Path

from ingot.driver.known import spelling
from ingot.refused import Refused, one_line

ROOT = Path(__file__).resolve().parents[4]
FILES = ("--configfile", "--configfiles", "--report-metadata")  # options that name files
SETTINGS = ("--config", "-C")  # that take every word that follows, too


def main() -> int | None:
    words = sys.argv[1 : sys.argv.index("--") if "--" in sys.argv else None]
    sys.argv[1:] = spelling.targets(sys.argv[1:], ROOT)
    with one_line("error: "):
        stop_on_missing(words)
        stop_on_impossible({word.partition("=")[0] for word in words})
        stop_without_cache()
    for module in [one for one in sys.modules if one.partition(".")[0] == "ingot"]:
        del sys.modules[module]  # a Snakefile brings its own
    from snakemake import cli

    return cli.main()


def stop_on_missing(words: list[str]) -> None:
    """Refuse a file that an option names and that does not exist."""
    option = ""
    for word in words:
        if word.startswith("-"):
            option, _, named = word.partition("=")
        else:
            named = word
        if option in SETTINGS and named.startswith("artifacts/"):
            raise Refused(
                f"{named}: taken for a setting, since {option} takes every word that follows; write -- "
                "before the targets"
            )
        if option not in FILES or not named:
            continue
        if option != FILES[-1] and named.startswith("artifacts/"):
            raise Refused(
                f"{named}: taken for a catalogue, since {option} takes every word that follows; write -- "
                "before the targets"
            )
        if not Path(named).exists():
            raise Refused(f"{named}: no such file, named by {option}")


def stop_on_impossible(options: set[str]) -> None:
    if "--generate-unit-tests" in options:
        raise Refused(
            "--generate-unit-tests: copies each step's inputs from the working folder, where a restored "
            "target has none; the tests of Ingot's steps are in tests/steps"
        )
    if "--runtime-profile" in options and not importlib.util.find_spec("yappi"):
        raise Refused(
            "--runtime-profile: needs yappi, which is not installed; .venv/bin/python -m pip install yappi"
        )


def stop_without_cache() -> None:
    """Refuse a home folder that may not be written: Snakemake keeps its copies of rules there."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    nearest = next(path for path in (place, *place.parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        raise Refused(
            f"{place}: cannot be written, and caches go there; set XDG_CACHE_HOME to a folder of yours "
            "(INGOT_ENVS and INGOT_STORE move the toolchains and the store alone)"
        )
