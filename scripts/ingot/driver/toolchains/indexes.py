"""Where packages come from: pip's own settings handed to uv, and PyTorch's index for CPUs before all."""

import ast
import http.client
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

from ingot.base.atomic import replacing
from ingot.base.refused import Refused

PYTHON = (sys.executable, "-P")  # -P: a types.py of the working folder is none of Python's
PUBLIC = "https://pypi.org/simple"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CPU_TORCH = "+cpu"  # the local version of torch's build for CPUs, which only that index has
NO_SUCH_VERSION = re.compile(r"no version of torch==\S+\+cpu")
PATIENCE = 3.0  # seconds until it is given up
RANK = {
    "global": 0,
    "user": 0,
    "site": 0,
    "install": 1,
    ":env:": 2,
}  # of pip's settings, the last wins


def settings(public: bool = False) -> tuple[list[str], dict[str, str]]:
    """Flags and environment by which uv finds what pip finds on this machine.

    `public`: in pip's index alone, since another may have a build for CPUs of the same version.
    """
    found = _pip_settings()
    environment = {name: word for name, word in os.environ.items() if not name.startswith("UV_")}
    if "cert" in found:
        environment.setdefault("SSL_CERT_FILE", found["cert"])
    for name in ("HTTP_PROXY", "HTTPS_PROXY") if "proxy" in found else ():
        environment.setdefault(name, found["proxy"])
    links = [flag for word in _words(found, "find-links") for flag in ("--find-links", word)]
    if found.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return ["--no-index", *links], environment
    flags = ["--index-strategy", "unsafe-best-match"]  # pip's own: every index, the best version
    if not public and _reachable(f"{CPU_INDEX}/torch/"):
        flags += ["--index", CPU_INDEX]
    others = [] if public else _words(found, "extra-index-url")
    for url in (found.get("index-url", PUBLIC), *others):
        flags += ["--index", url]
    for word in _words(found, "trusted-host"):
        flags += ["--allow-insecure-host", word]
    return flags + ([] if public else links), environment


def more_for_pip() -> list[str]:
    """What pip must be told besides its own settings."""
    return ["--extra-index-url", CPU_INDEX] if _reachable(f"{CPU_INDEX}/torch/") else []


def _words(found: dict[str, str], name: str) -> list[str]:
    return found.get(name, "").split()


def _pip_settings() -> dict[str, str]:
    command = [*PYTHON, "-m", "pip", "config", "list"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    ranks: dict[str, int] = {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if RANK.get(section, -1) >= ranks.get(name, 0):
            ranks[name], found[name] = RANK[section], str(ast.literal_eval(value))
    return found


def lacks_cpu_torch(said: str) -> bool:
    """Does uv say that no index has torch's build for CPUs, rather than that it could not be had?"""
    return bool(NO_SUCH_VERSION.search(said)) and "Failed to" not in said


def _reachable(url: str) -> bool:
    """Does it answer soon?  In a thread, since looking up a host's name knows no time limit."""
    answers: queue.Queue[bool] = queue.Queue()

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=PATIENCE):
                answers.put(True)
        except (OSError, ValueError, http.client.HTTPException):
            answers.put(False)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=PATIENCE)
    except queue.Empty:
        return False


def resolve(wish: Path, lock: Path, public: bool = False) -> None:
    """Write `lock`: what pip would install for `wish`, each with its hash.

    `public`: from pip's index alone, as on a machine that reaches no other.
    """
    environment, flags = dict(os.environ), []
    if public:
        url = _pip_settings().get("index-url", PUBLIC)
        environment = {k: v for k, v in environment.items() if not k.startswith("PIP_")}
        environment["PIP_CONFIG_FILE"] = os.devnull
        flags = ["--index-url", url]
    else:
        flags = more_for_pip()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command: list[object] = [*PYTHON, "-m", "pip", "install", "-qq", "--no-input", "--dry-run"]
        command += ["--ignore-installed", "--report", report, *flags, "-r", wish]
        done = subprocess.run([str(word) for word in command], env=environment, check=False)
        if done.returncode:
            raise Refused(f"{wish}: pip cannot resolve it; its last lines above say why")
        items = json.loads(report.read_text())["install"]
    lines = [f"# Written by `ingot lock {wish.parent.name}` for CPython 3.11 on Linux x86-64."]
    for item in sorted(items, key=lambda item: item["metadata"]["name"].lower()):
        archive = item["download_info"]["archive_info"]  # by `hash` alone: of a folder of wheels
        digest = (archive.get("hashes") or dict([archive["hash"].split("=")]))["sha256"]
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    if not public and any(re.match(r"torch==[\d.]+ ", line) for line in lines):
        raise Refused(
            f"{lock}: torch for CPUs was not found, expected it at {CPU_INDEX}; try again when it can "
            "be reached"
        )
    with replacing(lock) as partial:
        partial.write_text("\n".join(lines) + "\n")
