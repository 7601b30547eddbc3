"""What a command asks the hub before anything is built: the rules' own two steps, run at once."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from ingot.base.refused import Refused
from ingot.driver.toolchains import toolchains
from ingot.model.hub.listing import read_listing

LISTING = "listing.json"


class Hub:
    """The steps, also of several threads; those that still run end with the command."""

    def __init__(self, root: Path):
        self.root, self.ended = root, False
        self.running: set[subprocess.Popen] = set()

    def listed(self, hub: str, revision: str, folder: Path, gated: bool = False) -> dict:
        """The hub's list of files, which stays in `folder`."""
        listing = folder / LISTING
        words = ["--model", "model", "--hub", hub, f"--revision={revision}", f"--gated={gated}"]
        places = ["--revisions", folder / "revisions", "--listing", listing]
        self.step("fetch_listing.py", *words, *places)
        return read_listing(listing)

    def fetch(self, folder: Path, name: str) -> None:
        """One of the files of the list in `folder`."""
        words = ["--listing", folder / LISTING, "--name", name, "--file", folder / name]
        self.step("fetch_file.py", *words)

    def step(self, script: str, *words: Any) -> None:
        """What it says of a refusal is what we say."""
        python = toolchains.build(self.root, "hub") / "bin/python"
        command = [str(word) for word in (python, self.root / "scripts" / script, *words)]
        heard, reason = f"{script}: no reason given", ""
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            self.running.add(process)
            if self.ended:
                process.terminate()
            for line in process.stderr or ():
                heard = line.rstrip("\n")
                if heard.startswith("error: "):
                    reason = heard.removeprefix("error: ")
                elif "; trying again in " in heard:
                    print(heard, file=sys.stderr, flush=True)
        self.running.discard(process)
        if process.returncode:
            raise Refused(reason or heard)

    def end(self) -> None:
        self.ended = True
        for process in [*self.running]:
            process.terminate()
