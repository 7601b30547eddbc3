"""Build an OpenVINO folder by optimum-intel's own command.  Runs in envs/optimum-intel.

For the architectures that Ingot has no table of.  The folder is what `optimum-cli export openvino` writes:
a stateful decoder, its weights float32, int8 or int4 by NNCF's defaults, with its tokenizer.  It runs no
code of the checkpoint and asks no hub.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import step
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.upstream import in_its_words

TASK, SETTINGS = "text-generation-with-past", "openvino_config.json"
# its own numbers, said aloud: else a model whose widths are no multiples of 128 would stop it
GROUPS = ("--group-size", "128", "--ratio", "1.0", "--group-size-fallback", "adjust")


def build_openvino(
    checkpoint: Checkpoint,
    openvino: Annotated[Path, "the folder to write"],
    weights: Annotated[str, "their format", ("fp32", "int8", "int4")] = "fp32",
) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    with (
        checkpoint.as_folder() as folder,
        replacing(openvino) as partial,
        stderr_to_log(f"{openvino}: building by optimum-intel"),
        in_its_words("optimum-intel", checkpoint, folder),
    ):
        from optimum.commands import optimum_cli

        words = ["--model", folder, "--task", TASK, "--library", "transformers"]
        words += ["--weight-format", weights, *(GROUPS if weights == "int4" else ())]
        asked = ["export", "openvino", *words, partial]
        sys.argv[1:] = map(str, asked)
        optimum_cli.main()
        said = partial / SETTINGS
        if said.exists():  # it names where it found the tokenizer, which is another place each time
            said.write_text(said.read_text().replace(str(folder), "."))
        sealed.fill(partial, {})


if __name__ == "__main__":
    step(build_openvino)
