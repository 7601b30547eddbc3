"""What each toolchain takes to build, into envs/sizes.json: what `ingot plan` says of one not built yet.

    .venv/bin/python bench/toolchains.py [NAME ...] [--check]

Bytes to download are the index's own figures.  Bytes on disk and seconds of compiling are measured: each is
built in an empty cache.  Where no index has torch for CPUs its CUDA build is installed: the disk of that is
the download times MORE, as measured for `iree`.  `--check` prints forecast beside measured.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from ingot.driver.toolchains import indexes, sizes, toolchains

ROOT = Path(__file__).resolve().parents[1]
MORE = 1.87  # bytes on disk per byte of a lock with CUDA's libraries
JSON = "application/vnd.pypi.simple.v1+json"


def download(lock: Path) -> int:
    """Bytes of all packages of a lock, by the index's figures, or by the file itself."""
    pins = re.findall(r"^(\S+?)==(\S+) --hash=sha256:(\w+)", lock.read_text(), re.M)
    with ThreadPoolExecutor(16) as pool:
        return sum(pool.map(lambda pin: _size(*pin), pins))


def _size(name: str, version: str, digest: str) -> int:
    flags, _ = indexes.settings()
    places = [
        word for flag, word in itertools.pairwise(flags) if flag in ("--index", "--find-links")
    ]
    for place in places:
        if place.startswith("http"):
            request = urllib.request.Request(f"{place}/{_plain(name)}/", headers={"Accept": JSON})
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    files = json.load(answer)["files"]
            except (OSError, ValueError):
                continue
            found = [one["size"] for one in files if one["hashes"].get("sha256") == digest]
        else:
            folder = Path(place.removeprefix("file://"))
            known = [*folder.glob("*.whl"), *folder.glob(f"{_plain(name)}/*.whl")]
            wanted = f"{name}-{version}-".lower().replace("-", "_")
            found = [
                one.stat().st_size for one in known
                if one.name.lower().replace("-", "_").startswith(wanted)
            ]  # fmt: skip
        if found:
            return found[0]
    raise SystemExit(f"{name}=={version}: on no index")


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def used(folder: Path) -> int:
    done = subprocess.run(["du", "-s", "-B1", folder], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def measured(name: str) -> dict[str, float]:
    """One toolchain, built in an empty cache."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, INGOT_ENVS=folder):
        began = time.monotonic()
        built = toolchains.build(ROOT, name)
        seconds = time.monotonic() - began
        return {"disk": used(Path(folder)), "seconds": seconds, **sizes.took(built)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", default=toolchains.names(ROOT))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    place = ROOT / sizes.FILE
    known = json.loads(place.read_text()) if place.exists() else {}
    for name in options.name:
        if options.check:
            expected, found = toolchains.size(ROOT, name), measured(name)
            print(
                f"{name:12} disk {expected.disk / 1e6:6.0f} MB, measured {found['disk'] / 1e6:6.0f} MB;"
                f" seconds {expected.seconds:4.0f}, measured {found['seconds']:4.0f}", flush=True,
            )  # fmt: skip
            continue
        source = ROOT / "envs" / name
        entry = {"download": download(source / toolchains.LOCK)}
        if not name.endswith(toolchains.FOR_GPUS):
            found = measured(name)
            entry |= {"disk": found["disk"], "compile": round(found["compile"])}
        else:
            entry |= {"disk": int(entry["download"] * MORE), "compile": 0}
        if (source / toolchains.CUDA).exists():
            bytes_ = download(source / toolchains.CUDA)
            entry |= {"cuda_download": bytes_, "cuda_disk": int(bytes_ * MORE)}
        known[name] = entry
        print(name, entry, flush=True)
        place.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
