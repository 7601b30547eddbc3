"""The screen of a run whose stderr is no terminal: lines, and groups as GitHub and GitLab fold them."""

import os
import secrets
import time
from pathlib import Path

from ingot.base.steps import Step
from ingot.driver.show.capture import put
from ingot.driver.show.status import Status

MOST = 1 << 16  # characters of a log


class Log:
    """One line per job begun and ended."""

    live = False

    def __init__(self, status: Status, terminal: int):
        self.terminal = terminal

    def say(self, text: str) -> None:
        put(self.terminal, f"{text}\n")

    def passed(self, line: str) -> None:
        """A step's own line: it may hold what came from outside, and is no command of GitHub's."""
        if os.environ.get("GITHUB_ACTIONS"):
            line = line.replace("##[", "## [")
            line = f"| {line}" if line.lstrip().startswith("::") else line
        self.say(line)

    def failed(self, lines: list[str], log: str) -> None:
        """What failed; a CI that can also marks it, and holds the whole log folded."""
        self.say("\n".join(lines))
        if os.environ.get("GITHUB_ACTIONS"):
            title, _, reason = lines[0].removeprefix("failed   ").partition(": ")
            self.say(f"::error title={_escaped(title)}::{_escaped(reason)}")
            self._folded(log, f"::group::{log}", "::endgroup::")
        elif os.environ.get("GITLAB_CI"):
            now, name = int(time.time()), log.replace("/", "_")
            start = f"\033[0Ksection_start:{now}:{name}[collapsed=true]\r\033[0K{log}"
            self._folded(log, start, f"\033[0Ksection_end:{now}:{name}\r\033[0K")

    def _folded(self, log: str, start: str, end: str) -> None:
        try:
            text = Path(log).read_text(errors="replace")[-MOST:].rstrip()
        except OSError:
            return
        if start.startswith("::"):  # what a tool printed is no command of GitHub's
            word = secrets.token_hex(8)
            text = f"::stop-commands::{word}\n{text}\n::{word}::"
        self.say(f"{start}\n{text}\n{end}")

    def tick(self, known: dict[str, Step]) -> None:
        """Nothing changes between two lines."""

    def close(self) -> None:
        """Nothing is held back."""


def _escaped(text: str) -> str:
    """As GitHub's workflow commands want it."""
    for found, code in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(found, code)
    return text
