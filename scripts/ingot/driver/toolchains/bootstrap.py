"""What a fresh clone's first command needs before anything is installed: a pip, and a uv.

Both come the short way: pip is unpacked and not compiled whole, and a uv is fetched once a user.
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.toolchains import indexes, wheels


def pip(folder: Path) -> None:
    """Give a venv the pip that its Python brings; ensurepip takes ten times as long, to compile all of it."""
    import ensurepip

    places = [sysconfig.get_config_var("WHEEL_PKG_DIR"), Path(ensurepip.__file__).parent / "_bundled"]
    found = sorted(one for place in places if place for one in Path(place).glob("pip-*.whl"))
    if not found:  # a Python that brings it in another way
        subprocess.run([folder / "bin/python", "-m", "ensurepip"], stdout=sys.stderr, check=False)
        return
    version = ".".join(map(str, sys.version_info[:2]))
    with zipfile.ZipFile(found[-1]) as wheel:
        wheel.extractall(folder / f"lib/python{version}/site-packages")


def uv(lock: Path, cache: Path) -> Path:
    """The uv that `lock` names, kept in `cache` for the next clone.  Refused: where pip cannot get it."""
    pin = next(line for line in wheels.pins(lock) if line.startswith("uv=="))
    place = cache / f"uv-{hashlib.sha256(pin.encode()).hexdigest()[:12]}"
    if place.exists():
        return place
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        one = Path(folder, "requirements.lock")
        one.write_text(f"{pin}\n")
        flags = wheels.flags() if wheels.whole(one) else []
        command = [*indexes.PYTHON, "-m", "pip", "install", "-qq", "--no-input", "--no-compile"]
        command += ["--no-deps", "--require-hashes", *flags, "--target", folder, "-r", str(one)]
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise Refused(f"{lock}: uv not installed; pip's last lines above say why")
        os.replace(f"{folder}/bin/uv", place)
    return place
