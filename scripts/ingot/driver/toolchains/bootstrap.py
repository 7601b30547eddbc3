"""What a fresh clone's first command needs before anything is installed: a pip, and a uv.

Both come the short way: pip is unpacked and not compiled whole, and a uv is kept for the user's next clone.
"""

import contextlib
import hashlib
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from ingot.base.atomic import partial_of
from ingot.base.refused import Refused
from ingot.driver.toolchains import indexes, wheels


def pip(folder: Path) -> None:
    """Give a venv the pip that its Python brings, not compiled: ensurepip takes ten times as long.

    Refused: where Python brings none.
    """
    try:
        import ensurepip
    except ImportError:
        raise Refused(
            f"{sys.executable}: has no ensurepip, which brings pip; Debian 12: apt install python3.11-venv"
        ) from None
    bundled = Path(ensurepip.__file__).parent / "_bundled"
    places = [Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or bundled), bundled]
    wheel = next((one for place in places for one in place.glob("pip-*.whl")), None)
    if wheel is None:  # a Python that brings it in another way
        run(folder / "bin/python", "-m", "ensurepip")
        return
    (packages,) = folder.glob("lib/python3.*/site-packages")
    for old in (packages / "pip", *packages.glob("pip-*.dist-info")):
        shutil.rmtree(old, ignore_errors=True)
    shutil.unpack_archive(wheel, packages, "zip")


def uv(folder: Path, lock: Path, cache: Path) -> Path:
    """The uv that `lock` names: the one kept in `cache`, or one that pip puts into the venv `folder`.

    That one is kept, where it can be.  Refused: where pip cannot get it.
    """
    pin = next(line for line in wheels.pins(lock) if line.startswith("uv=="))
    kept = cache / f"uv-{hashlib.sha256(pin.encode()).hexdigest()[:12]}"
    if _runs(kept):
        return kept
    one = folder / "uv.lock"
    one.write_text(f"{pin}\n")
    words = [*indexes.PYTHON, "-m", "pip", "install", "-qq", "--no-input", "--no-compile"]
    words += ["--no-deps", "--require-hashes", *(wheels.flags() if wheels.whole(one) else [])]
    run(*words, "-r", one)
    # not where the home may not be written
    with contextlib.suppress(OSError), partial_of(kept) as partial:
        shutil.copy(folder / "bin/uv", partial)
        partial.replace(kept)
    return folder / "bin/uv"


def _runs(program: Path) -> bool:
    """Not one that was cut short, or is another machine's, or may not be executed."""
    try:
        return (
            subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        return False


def run(*command: str | Path) -> None:
    """A command whose words are for the user.  Refused: where it fails."""
    done = subprocess.run([str(word) for word in command], stdout=sys.stderr, check=False)
    if done.returncode:
        text = " ".join(str(word) for word in command[:6])
        raise Refused(f"{text} ...: exit status {done.returncode}; its last lines above say why")
