"""What a build will take: jobs side by side, as cores and memory allow, and the disk meanwhile.

A file counts in full from the start of the job that writes it, once for artifacts/ and the store
together, or twice where the store has a copy.  With `keep=targets` it has none, and an intermediate goes
when its last reader is done.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from ingot.driver.catalogue.formats.rows import chart_of, row_of
from ingot.driver.catalogue.formats.table import CHART
from ingot.driver.catalogue.job import Graph, Job

LOOK = 50  # jobs that are asked whether they fit now, at most


@dataclass
class Task:
    """A job of a build: what it reads and writes by path, and what it will take."""

    name: str
    reads: list[str]
    files: dict[str, int]  # bytes, by path
    seconds: float
    memory: int  # bytes
    download: int = 0
    threads: int = 1
    links: bool = False  # what it writes holds links of what it reads, as a bundle does
    copied: bool = False  # the store has a copy of what it writes, if all is kept


@dataclass
class Schedule:
    """How a build goes: what it takes in all, and the disk over time."""

    seconds: float = 0.0
    memory: int = 0  # peak of all that runs at once, bytes
    disk: int = 0  # peak
    kept: int = 0  # in the end
    download: int = 0
    started: dict[str, float] = field(default_factory=dict)
    # when, in seconds, and the bytes then, by a key of CHART
    timeline: list[tuple[float, dict[str, int]]] = field(default_factory=list)


def schedule(
    tasks: list[Task], targets: set[str], cores: int, rolling: bool, most: float = math.inf
) -> Schedule:
    """Run the tasks in their order, as many at once as there are cores, in `most` bytes of memory.

    Beside what takes more than that nothing starts that takes any (snakemake/memory.py).
    """
    made = {path: task for task in tasks for path in task.files}
    readers: dict[str, set[str]] = {}
    for task in tasks:
        for path in task.reads:
            readers.setdefault(path, set()).add(task.name)
    held = set(targets)
    for task in tasks:
        if targets & set(task.files):
            held.update(task.files)  # the ranks of a set, of which the root is named
            held.update(task.reads if task.links else ())
    lacks = [{made[path].name for path in task.reads if path in made} for task in tasks]
    follow: dict[str, list[int]] = {}
    for number, names in enumerate(lacks):
        for name in names:
            follow.setdefault(name, []).append(number)
    now, found, here = 0.0, Schedule(), dict.fromkeys(CHART, 0)
    ready: list[tuple[int, int]] = []  # a heap: less the bytes read, and the task's number
    running: list[tuple[float, int, Task]] = []  # a heap: its end, and when it began in their order
    done: set[str] = set()
    threads = memory = 0

    def wait(number: int) -> None:
        """As Snakemake does, those that read most come first: so a chain is finished early."""
        reads = (path for path in tasks[number].reads if path in made)
        heappush(ready, (-sum(made[path].files.get(path, 0) for path in reads), number))

    def fitting() -> int | None:
        """The first that can start now."""
        larger: list[tuple[int, int]] = []
        while ready and threads < cores and len(larger) < LOOK:
            one = heappop(ready)
            if not running or memory + tasks[one[1]].memory <= most:
                break
            larger.append(one)
        else:
            one = (0, None)
        for other in larger:
            heappush(ready, other)
        return one[1]

    def mark() -> None:
        found.timeline.append((now, dict(here)))
        found.disk = max(found.disk, sum(here.values()))

    mark()
    for number, names in enumerate(lacks):
        if not names:
            wait(number)
    while ready or running:
        while (number := fitting()) is not None:
            task = tasks[number]
            heappush(running, (now + task.seconds, len(found.started), task))
            threads += task.threads
            memory += task.memory
            found.started[task.name] = now
            found.download += task.download
            for path, size in task.files.items():
                here[chart_of(path)] += size * (2 if task.copied and not rolling else 1)
            found.memory = max(found.memory, memory)
            mark()
        now, _, task = heappop(running)
        threads -= task.threads
        memory -= task.memory
        done.add(task.name)
        for number in follow.get(task.name, ()):
            lacks[number].discard(task.name)
            if not lacks[number]:
                wait(number)
        if rolling:
            for path in [*task.reads, *task.files]:
                left = readers.get(path, set()) - done
                if path in made and made[path].name in done and not left and path not in held:
                    here[chart_of(path)] -= made[path].files.get(path, 0)
                    made[path].files.pop(path, None)
        mark()
    found.seconds, found.kept = now, sum(here.values())
    return found


def tasks_of(described: list[dict[str, Any]]) -> Iterator[Task]:
    """The jobs that will run, in an order in which they can, from what report.described says.

    By name where nothing else decides: Snakemake's own order is another in each process.
    """
    left = [one for one in described if one["action"] == "run" and one.get("forecast")]
    left.sort(key=lambda one: one["outputs"])
    made = {path for one in left for path in one["outputs"]}
    there: set[str] = set()
    while left:
        ready, later = [], []
        for one in left:
            able = all(path in there or path not in made for path in one["inputs"])
            (ready if able else later).append(one)
        left = later
        for one in ready:
            there.update(one["outputs"])
            cost, rows = one["forecast"], [row for path in one["outputs"] if (row := row_of(path))]
            yield Task(
                one["outputs"][0],
                [path for path in one["inputs"] if path in made],
                dict(cost["files"]),
                cost["seconds"],
                cost["memory"],
                cost["download"],
                links=any(row.links for row in rows),
                copied=any(row.copied for row in rows),
            )


def summary(
    described: list[dict[str, Any]], targets: set[str], cores: int, most: float = math.inf
) -> str:
    """One line for a dry run."""
    unknown = [one for one in described if one["action"] == "run" and not one.get("forecast")]
    if unknown:
        models = ", ".join(sorted({one["model"] for one in unknown if one["model"]}))
        return (
            f"what it takes is known once config.json is here ({models}); `ingot plan` fetches it"
        )
    found = both(described, targets, cores, most)
    everything, rolling = found["all"], found["targets"]
    return (
        f"takes about {duration(everything.seconds)}, {size(everything.memory)} of memory, "
        f"{size(everything.disk)} of disk ({size(rolling.disk)} with --config keep=targets) and "
        f"{size(everything.download)} of downloads; `ingot plan` says more"
    )


def duration(seconds: float) -> str:
    """90 -> 2 min"""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Bytes in decimal units, as disks are sold."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return (
                f"{count / scale:.3g} {unit}"
                if count < 1000 * scale
                else f"{count / scale:.0f} {unit}"
            )
    return f"{count / 1e3:.0f} kB"


def count_of(parameters: float) -> str:
    """8_030_261_248 -> 8.03 billion parameters"""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f} billion parameters"
    if parameters >= 1e6:
        return f"{parameters / 1e6:.3g} million parameters"
    return f"{parameters:,.0f} parameters"


def memory_of(count: float) -> str:
    """Bytes in binary units, as memory is sold."""
    for unit, bits in (("GiB", 30), ("MiB", 20)):
        if count >= 0.1 * (1 << bits):
            return f"{count / (1 << bits):.2f} {unit}"
    return f"{count / 1024:.0f} KiB"


def both(
    described: list[dict[str, Any]], targets: set[str], cores: int, most: float = math.inf
) -> dict[str, Schedule]:
    """The course of a build that keeps all, and of one that keeps the targets only."""
    return {
        keep: schedule(list(tasks_of(described)), targets, cores, keep == "targets", most)
        for keep in ("all", "targets")
    }


def length(
    graph: Graph,
    jobs: Iterable[Job],
    takes: Callable[[Job], float | None],
    cores: int,
    share: Callable[[Job], float] = lambda job: 0.0,
) -> float | None:
    """How long the jobs take: the longest way through them; on `cores`, their sum over these at least.

    `share` is what a job takes of the memory there is: all of it, at most.
    """
    waiting = set(jobs)
    ends: dict[Job, float] = {}
    for start in waiting:
        todo = [start]
        while todo:
            job = todo[-1]
            before = [one for one in graph.needs.get(job, ()) if one in waiting]
            if missing := [one for one in before if one not in ends]:
                todo += missing
                continue
            todo.pop()
            own = takes(job) if job.writes else 0.0
            if own is None:
                return None
            ends[job] = max((ends[one] for one in before), default=0.0) + own
    longest = max(ends.values(), default=0.0)
    parts = [(takes(job) or 0.0, min(1.0, share(job))) for job in waiting if job.writes]
    whole = sum(seconds for seconds, _ in parts)
    return max(longest, whole / cores, sum(seconds * of for seconds, of in parts))
