"""What a command asks the hub before anything is built: the rules' own two steps, run at once."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.driver.toolchains import toolchains
from ingot.model.hub.listing import read_listing

LISTING = "listing.json"


def listed(root: Path, hub: str, revision: str, folder: Path, gated: bool = False) -> dict:
    """The hub's list of files, which stays in `folder`."""
    listing = folder / LISTING
    words = ["--model", "model", "--hub", hub, f"--revision={revision}", f"--gated={gated}"]
    places = ["--revisions", folder / "revisions", "--listing", listing]
    step(root, "fetch_listing.py", *words, *places)
    return read_listing(listing)


def fetch(root: Path, folder: Path, name: str) -> None:
    """One of the files of the list in `folder`."""
    words = ["--listing", folder / LISTING, "--name", name, "--file", folder / name]
    step(root, "fetch_file.py", *words)


def step(root: Path, script: str, *words: Any) -> None:
    """Run one of the hub's steps; what it says of a refusal is what we say."""
    python = toolchains.build(root, "hub") / "bin/python"
    command = [python, root / "scripts" / script, *words]
    words = [str(word) for word in command]
    heard, reason = f"{script}: no reason given", ""
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        for line in process.stderr or ():
            heard = line.rstrip("\n")
            if heard.startswith("error: "):
                reason = heard.removeprefix("error: ")
            elif "; trying again in " in heard:
                print(heard, file=sys.stderr, flush=True)
    if process.returncode:
        raise Refused(reason or heard)
