"""Take away what optimum-intel's wheel asks for, and text needs not.

    <this toolchain's python> build.py FOLDER [WHEELS]

torchvision's builds do not load beside torch's for CPUs ("operator torchvision::nms does not exist"), and
transformers imports it wherever it is found.
"""

import subprocess
import sys

BESIDE = ("torchvision",)


def build() -> None:
    pip = [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *BESIDE]
    subprocess.run(pip, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    build()
