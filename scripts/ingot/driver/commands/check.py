"""Check RayService manifests against KubeRay's definition, Ray's schema, and what their groups offer.

Nothing is started, and no cluster is asked.  KubeRay and Ray take most of what is found in silence.
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.serving.kuberay import manifest


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("file", nargs="+", type=Path, help="a manifest, of one document or several")


def run(root: Path, options: Namespace) -> int:
    count = 0
    for path in options.file:
        for document in manifest.read(path):
            if document.get("kind") == "RayService":
                for fault in manifest.faults(document):
                    count += 1
                    print(f"{path}: {fault}", file=sys.stderr)
    files = len(options.file)
    print(f"{files} file{'s'[: files != 1]}, {count} fault{'s'[: count != 1]}")
    return 1 if count else 0
