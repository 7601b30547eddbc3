"""What is said of a job that failed: which artifact, why, where more is, and how to repeat it alone."""

import os
import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingot.base.machine import memory
from ingot.base.refused import printable
from ingot.base.steps import Step
from ingot.driver.forecast.schedule import size

TAIL = 3  # lines of the log of a step that could not say itself why it ended
LONGEST = 6  # lines of a step's own words
OF_A_STEP = ("INGOT_CODE", "INGOT_LIBRARY_PATH", "INGOT_STORE", "INGOT_ENVS")
NEXT = (  # of a verification that says no
    "next     an artifact that was edited or copied in comes back when it is asked for; a number beyond "
    "its limit: the model loses too much in this form, ask for another, or set models.M.limits; else, of "
    "what Ingot built just now, a defect of Ingot's: please report these lines"
)


@dataclass
class Failed:
    """A job that failed: how its step ended, what the cluster said of it, and how to repeat it."""

    rule: str
    outputs: list[str]
    log: str
    command: str = ""  # with all that a shell needs
    status: int = 0
    signal: str | None = None
    words: str = ""
    member: bool = False  # of a group, which failed as a whole
    unlike: Callable[[str], object] = lambda line: False  # lines of the log that say nothing

    def lines(self, named: str, step: Step | None) -> list[str]:
        """The first names the artifact and the cause."""
        if self.member and not (step and step.refused):
            return [f"failed   {named}: not done when its group ended; log: {self.log}"]
        first, *words = self.cause(step).splitlines()
        said = [f"failed   {named}: {first.removeprefix(f'{named}: ')}"]
        if not (step and step.refused):
            words += tail(self.log, self.unlike)
        said += [f"    {word}" for word in words[:LONGEST]]
        said += [f"log      {self.log}"] if self.log else []
        again = script(self.log, self.command)
        if self.rule.startswith("verify_") and step and step.refused:
            said.append(NEXT)
        said = [printable(line) for line in said]
        return said + ([f"again    bash {shlex.quote(again)}   (this step alone)"] if again else [])

    def cause(self, step: Step | None) -> str:
        """The step's own reason; else the signal that ended it, or what the cluster says."""
        if step and step.refused:
            return step.refused
        if self.words:
            return self.words
        if self.signal:
            return f"{self.rule} was ended by {self.signal}{_hint(self.signal, step)}"
        return f"{self.rule} ended with exit status {self.status or 1}"


def _hint(by: str, step: Step | None) -> str:
    if by != "SIGKILL":
        return ""
    held = f"; it held {size(step.peak)} of this machine's {size(memory())}" if step else ""
    return f", as the kernel does where memory runs out{held}"


def signal_of(number: int) -> str:
    """SIGKILL of 9."""
    known = {one.value: one.name for one in signal.Signals}
    return known.get(number, f"signal {number}")


def script(log: str, command: str) -> str:
    """Write the step's command beside its log, to be repeated by hand; its path, or nothing."""
    if not (log and command):
        return ""
    place = Path(log).with_suffix(".sh")
    names = [name for name in OF_A_STEP if os.environ.get(name)]
    exports = "".join(f"export {name}={shlex.quote(os.environ[name])}\n" for name in names)
    try:
        place.write_text(
            f"cd {shlex.quote(str(Path.cwd()))} || exit\n{exports}{command.rstrip()}\n"
        )
    except OSError:
        return ""
    return str(place)


def tail(log: str, unlike: Callable[[str], object]) -> list[str]:
    """The last lines that a step wrote in its log."""
    try:
        found = Path(log).read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [printable(line) for line in found if line.strip() and not unlike(line)][-TAIL:]
