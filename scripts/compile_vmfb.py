"""Compile an MLIR program to a vmfb.  Runs in envs/iree.

The compiler reads stdin: told a path, it writes that path into the module, and the same program
would get other bytes in another folder.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

from ingot.base.atomic import replacing
from ingot.base.console import heartbeat
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.formats.iree import attention, dispatches

DEVICE = "--iree-hal-target-device="
IDLE = 60.0  # seconds without any CPU time
ATTEMPTS = 3
NO_CODE = b"failed to run translation of source executable"  # of a kernel
LOOKS = ("compile-", "emit-", "dump-", "iree-hal-dump-", "mlir-", "@")  # the last: a file of flags
PACKS = ("iree-global-opt-data-tiling", "iree-opt-data-tiling")  # each weight, in an initializer
WHOLE = (
    *LOOKS,
    *PACKS,
)  # how flags begin, behind their dashes, with which a program is compiled whole


def compile_vmfb(
    mlir: Annotated[Path, "the program to read"],
    vmfb: Annotated[Path, "the module to write"],
    flags: Annotated[list[str], "after --: flags for iree-compile"],
) -> None:
    from iree.compiler.tools.binaries import find_tool

    named, wanted = sum(flag.startswith(DEVICE) for flag in flags), ranks(mlir)
    if named not in (0, wanted):
        raise Refused(
            f"{mlir}: is for {wanted} devices, the flags name {named}; name {wanted}, or compile the "
            f"program of _tp{named}"
        )
    with replacing(vmfb) as partial:
        compiler = find_tool("iree-compile")
        command = [compiler, "-", *linker(compiler), *flags]
        with heartbeat(f"{vmfb}: compiling"), tempfile.TemporaryDirectory() as folder:
            formed = dispatches_of(mlir, command, wanted, Path(folder))
            tiled = [*command, *tiles(flags, Path(folder))]
            done = compiled(mlir, formed, tiled, partial)
            if tiled != command and NO_CODE in done.stderr:
                reason = errors(done.stderr)
                done = compiled(mlir, formed, command, partial)
                print(f"{mlir}: not with our tiles of attention: {reason}", flush=True)
        sys.stdout.buffer.write(done.stderr)  # megabytes of IR when it fails: for the log
        if done.returncode:
            raise Refused(f"{mlir}: iree-compile stopped:", errors(done.stderr))
        if not partial.exists():
            raise Refused(
                f"{mlir}: iree-compile wrote nothing with {' '.join(flags)}; is -o overridden?"
            )


def compiled(
    mlir: Path, formed: Path | None, command: list[str], partial: Path
) -> subprocess.CompletedProcess:
    """From the program's dispatches where they are written, or else whole."""
    out = ["-o", str(partial)]
    if formed:
        done = run_awake([*command, "--compile-from=flow", *out], formed)
        if not done.returncode:
            return done
        say_whole(mlir, errors(done.stderr))
    return run_awake([*command, *out], mlir)


def tiles(flags: list[str], folder: Path) -> list[str]:
    """The flag that names a prompt's tiles, for CPUs, unless the flags name such a library themselves."""
    names = [flag.lstrip("-") for flag in flags]
    named = any(name.startswith((attention.FLAG, "@")) for name in names)  # @: a file of flags
    if named or not any(name in attention.CPU for name in names):
        return []
    if "@" in str(folder):
        raise Refused(
            f"{folder}: has an @, at which iree-compile cuts a library's name; set TMPDIR to another folder"
        )
    path = folder / "attention.mlir"
    path.write_text(attention.library())
    return [f"--{attention.FLAG}={path}{attention.ENTRY}"]


def dispatches_of(mlir: Path, command: list[str], devices: int, folder: Path) -> Path | None:
    """The program once its dispatches are formed, written from those of a few of its blocks.

    None where it is small, or no row of equal blocks, or its flags are of WHOLE: then it is to be
    compiled whole.
    """
    if any(flag.lstrip("-").startswith(WHOLE) for flag in command):
        return None
    program = mlir.read_text()
    layers = dispatches.blocks(program)
    if not dispatches.worth(layers, devices):
        return None
    try:
        formed = []
        for count, short in zip(dispatches.SHORT, dispatches.shorten(program), strict=True):
            source, path = folder / f"{count}.mlir", folder / f"{count}.flow.mlir"
            source.write_text(short)
            done = run_awake([*command, "--compile-to=flow", "-o", str(path)], source)
            if done.returncode:
                say_whole(mlir, f"{count} blocks: {errors(done.stderr)}")
                return None
            formed.append(path.read_text())
        path = folder / "flow.mlir"
        path.write_text(dispatches.lengthen(formed, layers))
    except (ValueError, LookupError, RuntimeError) as reason:  # Unlike, or text of another kind
        say_whole(mlir, f"{type(reason).__name__}: {reason}")
        return None
    counts = ", ".join(map(str, dispatches.SHORT))
    print(f"{mlir}: dispatches of {layers} blocks, from those of {counts} blocks", flush=True)
    return path


def say_whole(mlir: Path, reason: str) -> None:
    print(f"{mlir}: compiled whole, not from the dispatches of a few blocks: {reason}", flush=True)


def linker(compiler: str) -> list[str]:
    """The flag that quotes the linker's path, where that is needed: iree-compile runs it by a shell."""
    path = os.path.realpath(Path(compiler).with_name("iree-lld"))
    quoted = shlex.quote(path)
    return [f"--iree-llvmcpu-embedded-linker-path={quoted}"] if quoted != path else []


def run_awake(command: list[str], mlir: Path, idle: float = IDLE) -> subprocess.CompletedProcess:
    """Run the compiler on `mlir`, again where it falls asleep.

    Seen once in some hundred runs of 3.9.0: all its threads wait for each other, for ever.
    """
    for attempt in range(ATTEMPTS):
        with mlir.open("rb") as program, tempfile.TemporaryFile() as errors_file:
            process = subprocess.Popen(command, stdin=program, stderr=errors_file)
            try:
                asleep = not _ended(process, idle)
            finally:
                process.kill()
                process.wait()
            errors_file.seek(0)
            done = subprocess.CompletedProcess(
                command, process.returncode, None, errors_file.read()
            )
        if not asleep:
            return done
        print(
            f"{mlir}: the compiler fell asleep, attempt {attempt + 1}", file=sys.stderr, flush=True
        )
    raise Refused(
        f"{mlir}: the compiler did nothing for {idle:.0f} s, {ATTEMPTS} times; run it again"
    )


def _ended(process: subprocess.Popen, idle: float) -> bool:
    """Wait for the end, or for `idle` seconds in which it used no CPU time."""
    worked, since = -1, time.monotonic()
    while time.monotonic() - since < idle:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(min(1.0, idle / 10))
            return True
        if (now := cpu_ticks(process.pid)) != worked:
            worked, since = now, time.monotonic()
    return False


def cpu_ticks(pid: int) -> int:
    """The CPU time that a process has used, in the kernel's ticks; 0 when it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(words[11]) + int(words[12])  # utime, stime


def ranks(mlir: Path) -> int:
    """How many devices the program is for: its weights lie on them, before its first function."""
    most = 0
    with mlir.open() as program:
        for line in program:
            most = max([most, *map(int, re.findall(r"@__device_(\d+)", line))])
            if "func.func" in line:
                break
    return most + 1


def errors(stderr: bytes) -> str:
    """The lines that say why, each once, without the source they point at and without IR."""
    text = stderr.decode(errors="replace")
    found = [
        line[:300] for line in text.splitlines() if "error:" in line or "iree-compile:" in line
    ]
    return "\n".join(dict.fromkeys(found)) or text[-1000:]


if __name__ == "__main__":
    step(compile_vmfb)
