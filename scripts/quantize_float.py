"""Quantise a float32 GGUF file by llama-quantize itself.  Runs in envs/llamacpp.

For files that llama.cpp's converter wrote.  Where Ingot has a table of the model, quantize_gguf.py writes
the same from the checkpoint's own rows, without the float file.
"""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

from ingot.base import claim, sealed
from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.formats.gguf import quantisations

TYPES = sorted(quantisations.ROWS)
TOOL = Path(sys.prefix, "llama.cpp/bin/llama-quantize")


def quantize_float(
    source: Annotated[Path, "the float32 file"],
    quant: Annotated[list[str], f"to write: {', '.join(TYPES)}", TYPES],
    gguf: Annotated[Path | None, "the file to write, of one type"] = None,
    folder: Annotated[Path | None, "artifacts/M.quants to write: M.TYPE.gguf each"] = None,
    stem: Annotated[str, "of the folder's files: M"] = "model",
) -> None:
    quantisations.stop_on_wrong_outputs(gguf, folder, quant)
    named = gguf or folder
    with replacing(named) as partial, stderr_to_log(f"{named}: quantising by llama-quantize"):
        if folder:
            partial.mkdir()
        for word in quant:
            out = partial / f"{stem}.{word}.gguf" if folder else partial
            quantised(named, source, out, word)
        if folder:
            sealed.seal(partial)


def quantised(named: Path, source: Path, out: Path, quant: str) -> None:
    """One file; `named` is the target.  Refused: what the tool cannot do, in its own words."""
    words = [str(word) for word in (TOOL, source, out, quant, claim.cores())]
    done = subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    print(done.stdout, flush=True)
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        said = next((line for line in lines if "failed" in line or "error" in line), lines[-1])
        raise Refused(f"{named}: llama-quantize stops ({said:.200}), expected a float32 GGUF file")


if __name__ == "__main__":
    step(quantize_float)
