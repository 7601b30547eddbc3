"""Compile an MLIR program to a vmfb.  Runs in envs/iree.

The compiler reads stdin: told a path, it writes that path into the module, and the same program
would get other bytes in another folder.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from ingot.files.atomic import replacing
from ingot.files.console import heartbeat
from ingot.refused import Refused, run

DEVICE = "--iree-hal-target-device="


def compile_vmfb(mlir: Path, vmfb: Path, flags: list[str]) -> None:
    from iree.compiler.tools.binaries import find_tool

    named, wanted = sum(flag.startswith(DEVICE) for flag in flags), ranks(mlir)
    if named not in (0, wanted):
        raise Refused(
            f"{mlir}: is for {wanted} devices, the flags name {named}; name {wanted}, or compile the "
            f"program of _tp{named}"
        )
    with replacing(vmfb) as partial, mlir.open("rb") as program:
        command = [find_tool("iree-compile"), "-", *flags, "-o", str(partial)]
        with heartbeat(f"{vmfb}: compiling"):
            done = subprocess.run(command, stdin=program, stderr=subprocess.PIPE, check=False)
        sys.stdout.buffer.write(done.stderr)  # megabytes of IR when it fails: for the log
        if done.returncode:
            raise Refused(
                f"{mlir}: iree-compile stopped:\n{errors(done.stderr.decode(errors='replace'))}"
            )
        if not partial.exists():
            raise Refused(
                f"{mlir}: iree-compile wrote nothing with {' '.join(flags)}; is -o overridden?"
            )


def ranks(mlir: Path) -> int:
    """How many devices the program is for: its weights lie on them, before its first function."""
    most = 0
    with mlir.open() as program:
        for line in program:
            most = max([most, *map(int, re.findall(r"@__device_(\d+)", line))])
            if "func.func" in line:
                break
    return most + 1


def errors(text: str) -> str:
    """The lines that say why, each once, without the source they point at and without IR."""
    found = [
        line[:300] for line in text.splitlines() if "error:" in line or "iree-compile:" in line
    ]
    return "\n".join(dict.fromkeys(found)) or text[-1000:]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mlir", type=Path, required=True, help="the program to read")
    parser.add_argument("--vmfb", type=Path, required=True, help="the module to write")
    parser.add_argument("flags", nargs="*", help="after --: flags for iree-compile")
    compile_vmfb(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
