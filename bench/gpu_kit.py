"""Collect what bench/gpu.py needs on a machine that reaches nothing: at most 60 MB.

python bench/gpu_kit.py [--hardware sm80] [--python 3.12] [FOLDER]
python3.12 FOLDER/bench/gpu.py --kit FOLDER      on that machine
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from gpu import Here, needed  # noqa: E402

WHEELS = ("iree-base-runtime", "ml_dtypes", "numpy")  # of envs/iree, as its lock pins them
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
SYSTEMS = [f"manylinux_2_{n}_x86_64" for n in (28, 27, 26, 24, 17)] + ["manylinux2014_x86_64"]
LARGEST = 60e6  # bytes of a kit


def wheels(folder: Path, python: str) -> None:
    """Of the lock's versions; its digests are those of the lock's own Python."""
    lock = (ROOT / "envs/iree/requirements.lock").read_text().splitlines()
    pins = [line for line in lock if line.split("==")[0] in WHEELS]
    if len(pins) != len(WHEELS):
        sys.exit(
            f"envs/iree/requirements.lock: pins {len(pins)} of {', '.join(WHEELS)}; correct WHEELS"
        )
    words = ["--require-hashes"]
    if python != HERE:
        pins = [line.split()[0] for line in pins]
        systems = [word for system in SYSTEMS for word in ("--platform", system)]
        words = ["--only-binary", ":all:", "--python-version", python, *systems]
    (folder / "pins.txt").write_text("\n".join(pins) + "\n")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *words,
         "-r", folder / "pins.txt", "-d", folder],
        check=True,
    )  # fmt: skip


def collect(folder: Path, hardware: str, python: str) -> float:
    (folder / "wheels").mkdir(parents=True)
    wheels(folder / "wheels", python)
    names = {n for tp in (1, 2) for found in needed(hardware, tp).values() for n in found}
    with tempfile.TemporaryDirectory() as name:
        built = Here().artifacts(sorted(names), Path(name))
        (folder / "artifacts").mkdir()
        for file in sorted(names):
            shutil.copyfile(built / file, folder / "artifacts" / file)
    for part in ("scripts/ingot", "scripts/verify_vmfb.py", "bench/gpu.py"):
        source, target = ROOT / part, folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target)
    made = {"hardware": hardware, "python": python.split(".")}
    (folder / "kit.json").write_text(json.dumps(made) + "\n")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("gpu-kit"), help="to write")
    parser.add_argument("--hardware", default="sm80", help="of models.yaml (default: sm80)")
    parser.add_argument(
        "--python",
        default=HERE,
        help=f"of that machine (default: {HERE}, by digests)",
    )
    asked = parser.parse_args()
    if asked.folder.exists():
        sys.exit(f"{asked.folder}: exists, expected a new folder; remove it")
    size = collect(asked.folder, asked.hardware, asked.python)
    print(f"{asked.folder}: {size / 1e6:.1f} MB for {asked.hardware}")
    if size > LARGEST:
        sys.exit(f"{asked.folder}: more than {LARGEST / 1e6:.0f} MB; leave something out")


if __name__ == "__main__":
    main()
