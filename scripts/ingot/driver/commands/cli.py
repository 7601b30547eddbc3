"""The `ingot` command: what Ingot adds to Snakemake.

`ingot COMMAND --help` says what each option does.
"""

import argparse
import difflib
import errno
import importlib
import os
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NoReturn

from ingot.base.entry import run
from ingot.base.refused import Harmless, Refused, one_line
from ingot.driver.catalogue import site, spelling
from ingot.driver.commands import stopped

ROOT = Path(__file__).resolve().parents[4]
GROUPS = {
    "a model and its artifacts": (
        "cast", "stream", "rank", "add", "remove", "targets", "fit", "plan", "explain", "status", "report",
        "numbers", "speed", "show", "ask", "serve", "demo",
    ),
    "the store": ("store",),
    "a registry": ("publish", "pull", "verify", "release", "diff", "reproduce"),
    "a cluster, CI": ("doctor", "matrix", "check"),
    "tools": ("toolchain", "lock", "wheels", "image", "completion"),
}  # fmt: skip
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, not below all that would be right; `ingot --help` is an overview."""

    elsewhere: dict[str, str] | None = None  # by an option of another command, what to ask

    def format_help(self) -> str:
        if self.prog != "ingot":
            return super().format_help()
        return f"usage: ingot COMMAND ...\n\n{__doc__}{overview()}\n"

    def add_argument(self, *names, **more):
        """Words of which there may be none are not required; argparse calls them so where no default is."""
        if more.get("nargs") == "*" and not names[0].startswith("-"):
            more.setdefault("default", [])
        return super().add_argument(*names, **more)

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[override]
        """A command says itself what it does not know: argparse leaves that to `ingot`."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self.prog != "ingot":
            near = difflib.get_close_matches(
                unknown[0], self._option_string_actions, n=1, cutoff=0.5
            )
            hint = f", nearest: {near[0]}" if near else ""
            if said := (self.elsewhere or {}).get(unknown[0].partition("=")[0]):
                hint = f"; {said}"
            hint = self.get_default("unknown") or hint
            self.error(f"{' '.join(unknown)}: not among its options{hint}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {self.prog}: {message}; `{self.prog} --help` says what there is\n")


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """Of every command; or with the options of one alone: importing them all takes as long as most take."""
    raw = argparse.RawDescriptionHelpFormatter
    found = Parser(prog="ingot", formatter_class=raw)
    subparsers = found.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS:
        if only not in (None, name):
            subparsers.add_parser(name, help=summary(name))
            continue
        module = importlib.import_module(f"ingot.driver.commands.{name}")
        sub = subparsers.add_parser(
            name,
            help=summary(name),
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.elsewhere = getattr(module, "ELSEWHERE", {})
        module.add_options(sub)
        sub.set_defaults(run=module.run, parser=parser)
    return found


def overview() -> str:
    """The commands in groups, each with its first line."""
    lines = []
    for group, names in GROUPS.items():
        lines += ["", f"{group}:"]
        for name in names:
            whole = textwrap.wrap(summary(name), 72)
            lines.append(f"    {name:<12}{whole[0]}")
            lines += [" " * 16 + more for more in whole[1:]]
    return "\n".join(lines)


def summary(name: str) -> str:
    """The first line of a command's docstring."""
    with Path(__file__).with_name(f"{name}.py").open() as file:
        return file.readline().strip().strip('"')


def stop_on_unknown(words: list[str]) -> None:
    """Refuse a word that is no command, such as `build`, which is Snakemake's."""
    for word in words:
        if not word.startswith("-") and word not in COMMANDS:
            if word in importlib.import_module("ingot.driver.commands.store").WHAT:
                raise Refused(f"ingot {word}: no such command; nearest: ingot store {word}")
            near = difflib.get_close_matches(word, COMMANDS, n=1)
            hint = f"nearest: ingot {near[0]}" if near else "`ingot --help` lists the commands"
            raise Refused(f"ingot {word}: no such command; `snakemake TARGET` builds; {hint}")


def main(argv: list[str] | None = None) -> int | None:
    try:
        with redirect_stdout(Harmless(sys.stdout)), redirect_stderr(Harmless(sys.stderr)):
            return _main(argv)
    except KeyboardInterrupt as reason:
        return stopped.by_ctrl_c(reason)


def _main(argv: list[str] | None) -> int | None:
    words = sys.argv[1:] if argv is None else argv
    if words in ([], ["help"]):
        parser("").print_help()
        return 0
    with one_line("error: "):
        stop_on_unknown(words[:1])
    named = words[:1] in (["add"], ["cast"], ["check"], ["pull"])  # files and folders, not targets
    options = parser(words[0]).parse_args(words if named else spelling.targets(words, ROOT))
    with one_line("error: "):
        site.apply()
        try:
            status = options.run(ROOT, options)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        except OSError as error:  # a full disk, a folder of somebody else's
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Refused(
                    f"the disk is full ({error.strerror}); free some, and try again"
                ) from None
            if error.filename is None:
                raise
            raise Refused(f"cannot use {error.filename}: {error.strerror}") from None
    return status


if __name__ == "__main__":
    run(main)
