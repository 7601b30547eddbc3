"""Export a checkpoint as OpenVINO IR, in a folder that LLMPipeline serves.  Runs in envs/openvino.

By way of our ONNX graph of standard operators, which is deleted again; some 90 MB of memory at any size,
without torch.
"""

import argparse
from pathlib import Path

from ingot.entry import run
from ingot.openvino.folder import add_options, form_of, write_folder


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--openvino", type=Path, required=True, help="the folder to write")
    options = vars(parser.parse_args(argv))
    write_folder(form=form_of(options), **options)


if __name__ == "__main__":
    run(main)
