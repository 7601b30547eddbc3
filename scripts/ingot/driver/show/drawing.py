"""The board of a run: what is asked for, how far it is, and a row per job that runs.  Drawn by rich."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ingot.base.steps import Step
from ingot.driver.forecast.schedule import duration, size
from ingot.driver.show.status import Status
from ingot.driver.toolchains import toolchains

NARROW = 90  # columns, below which a job has two lines
BAR = 16


def board(
    status: Status, steps: dict[str, Step], width: int, height: int, folder: Path = Path()
) -> Group:
    """All of it, in `width` columns and less than `height` lines; the run is of `folder`."""
    now = time.time()
    head = [_title(status, now, width), _counts(status, steps, now, width)]
    rows = list(_rows(status, steps, now))
    lines = 2 if width < NARROW else 1
    room = max(1, (height - len(head) - 4) // lines)
    left = rows[room:]
    column = min(width * 2 // 5, max((len(row["name"]) for row in rows[:room]), default=0))
    body = [_row(row, width, column) for row in rows[:room]]
    foot = [_line(f"and {len(left)} more that run", width)] if left else []
    return Group(*head, *body, *foot, _line(_room(status, steps, folder), width, "dim"))


def _line(text: str, width: int, style: str = "") -> Text:
    found = Text(text, style=style, no_wrap=True)
    found.truncate(width, overflow="ellipsis")
    return found


def _title(status: Status, now: float, width: int) -> Text:
    names = [target.removeprefix("artifacts/") for target in status.targets]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    took = duration(now - status.since)
    name = (names[0] if names else "") + more
    room = max(1, width - len(took) - 1)
    return _line(f"{name:{room}.{room}} {took}", width, "bold")


def _counts(status: Status, steps: dict[str, Step], now: float, width: int) -> Text:
    waiting = max(0, status.left - len(status.running) - len(status.failed))
    found = [f"{status.done} done", f"{len(status.running)} running", f"{waiting} waiting"]
    found += [f"{status.restored} restored"] if status.restored else []
    found += [f"{len(status.failed)} failed"] if status.failed else []
    if status.ends is not None:
        ends = max(status.ends, now + max(map(_left, steps.values()), default=0.0))
        end = time.strftime("%H:%M", time.localtime(ends))
        found.append(f"ends about {end}, in {duration(ends - now)}")
    return _line(" · ".join(found), width)


def _left(step: Step) -> float:
    """Seconds that a step will still take, by its own count; 0 where it does not count."""
    return max(0.0, (step.total - step.done) / step.rate) if step.total and step.rate else 0.0


def _rows(status: Status, steps: dict[str, Step], now: float) -> Iterator[dict[str, Any]]:
    """A row per running job; those of a kind that has many are one row, which counts."""
    folded: dict[str, list[str]] = {}
    for output, job in list(status.running.items()):
        if status.many(job["kind"]):
            folded.setdefault(job["kind"], []).append(output)
            continue
        yield _of_job(output, job, steps.get(output), now)
    for kind, outputs in folded.items():
        whole, done = status.alike[kind]
        known = [steps[output] for output in outputs if output in steps]
        share = sum(one.done / one.total for one in known if one.total)
        rate = sum(one.rate for one in known if not one.unit)
        words = [f"{done} of {whole}"] + ([f"{size(rate)}/s"] if rate else [])
        yield {"name": f"{outputs[0].rpartition('/')[0]}/ ({kind.split()[0]})",
               "share": (done + share) / whole, "words": words}  # fmt: skip


def _of_job(output: str, job: dict[str, Any], step: Step | None, now: float) -> dict[str, Any]:
    took, expected = now - job["since"], job["expected"]
    share, words = None, []
    if step and step.total:
        share = min(1.0, step.done / step.total)
        if step.unit:
            words.append(f"{step.done} of {step.total} {step.unit}")
        else:
            words.append(f"{size(step.done)} of {size(step.total)}")
            words += [f"{size(step.rate)}/s"] if step.rate else []
        words.append(f"{duration(_left(step))} left" if step.rate else duration(took))
    elif expected:
        share = min(0.99, took / expected)
        late = (
            f", {duration(expected)} expected"
            if took > expected
            else f" of about {duration(expected)}"
        )
        words.append(f"{duration(took)}{late}")
    else:
        words.append(duration(took))
    if step and step.peak:
        planned = job["plan"]["memory"]
        words.append(f"{size(step.peak)}" + (f" of {size(planned)}" if planned else "") + " memory")
    return {
        "name": toolchains.shown(output).removeprefix("artifacts/"),
        "share": share,
        "words": words,
    }


def _row(row: dict[str, Any], width: int, column: int) -> Any:
    bar = ProgressBar(
        total=1.0,
        completed=row["share"] or 0.0,
        width=min(BAR, max(8, width // 5)),
        style="bright_black",
        complete_style="cyan",
        finished_style="cyan",
    )
    words = Text("  ".join(row["words"]), no_wrap=True, overflow="ellipsis")
    name = Text(row["name"], no_wrap=True, overflow="ellipsis")
    table = Table.grid(padding=(0, 1))
    if width < NARROW:
        table.add_row(bar, words)
        return Group(_line(row["name"], width), table)
    table.add_column(width=column)
    table.add_row(name, bar, words)
    return table


def _room(status: Status, steps: dict[str, Step], folder: Path) -> str:
    """The disk and the memory, beside what the forecast says of them."""
    free = shutil.disk_usage(folder).free
    found = [f"disk {size(free)} free"]
    if peak := status.plan.get("disk"):
        left = max(0, peak - status.written)
        found[0] += f", at most {size(left)} more" + (" — too little" if left > free else "")
    if memory := sum(step.memory for step in steps.values()):
        found.append(f"memory {size(memory)}")
    return " · ".join(found)
