"""A CI matrix: which targets are built by which job, on what machine, and how long that may take.

Three layers, each after the one before: what several targets of a model need, such as its weights in
GGUF; what needs no GPU; what needs one.  What is on record already is in no cell.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

HOSTS = ("cpu", "bigmem")  # runners without a GPU; the others have its name
LAYERS = ("shared", "build", "engines")
MOST = 256  # cells of a matrix, by GitHub's rule
HOSTED = {"memory": 14e9, "disk": 12e9}  # bytes of a runner that the CI's vendor lends
SHORT = 60.0  # seconds of work that is sooner done twice than in a layer of its own
SLOW, SETUP = 3.0, 30  # times the forecast, as on a cluster; minutes to install the toolchains
LONGEST = 5 * 24 * 60  # minutes of a job on a runner of one's own, by GitHub's rule
GROUPS: tuple[Callable[[str, str, str], Any], ...] = (
    lambda target, model, form: target,
    lambda target, model, form: (model, form),
    lambda target, model, form: model,
)  # what lies in one cell: the first that gives few enough
Entry = tuple[list[str], set[int]]  # targets, and the jobs that build them
Of = Callable[[str], tuple[str, str, str]]  # of a target: its model, format and GPU


def cells(jobs: list[dict[str, Any]], targets: Iterable[str], of: Of) -> dict[str, list[dict]]:
    """The cells of each layer, for what a dry run says of each job; `targets` with their records."""
    running = [job for job in jobs if job["action"] == "run" and job["rule"] != "toolchain"]
    makers = {path: job for job in running for path in job["outputs"]}
    needs = {id(job): [makers[p] for p in job["inputs"] if p in makers] for job in running}
    wanted: dict[int, list[str]] = {}  # by job: a job may write several targets
    for target in targets:
        if target in makers:
            wanted.setdefault(id(makers[target]), []).append(target)
    by_id = {id(job): job for job in running}
    whole = {number: closure(by_id[number], needs) for number in wanted}
    shared = shared_jobs(wanted, whole, by_id)
    layers: dict[str, list[Entry]] = {name: [] for name in LAYERS}
    inner = {id(job) for one in shared for job in needs[one]}
    roots: list[Entry] = []
    named: set[str] = set()  # a target is of one cell
    for one in sorted(shared - inner, key=lambda one: by_id[one]["outputs"][0]):
        every = closure(by_id[one], needs)
        asked = {name for number in every for name in wanted.get(number, ())} - named
        roots.append((sorted({by_id[one]["outputs"][0], *asked}), every))
        named |= asked
    layers["shared"] = merged(roots, by_id)
    done = set().union(*(every for _, every in layers["shared"]))
    for number, names in wanted.items():
        gpu = any(gpus(by_id[one]) for one in whole[number])
        if number not in done:
            layers["engines" if gpu else "build"].append((names[:1], whole[number] - done))
    layers["build"] = merged(layers["build"], by_id)
    found = {name: grouped(name, entries, by_id, of) for name, entries in layers.items()}
    return {name: list(after(found, name, whole, wanted)) for name in found}


def after(
    layers: dict[str, list[tuple[dict, set[int]]]], name: str, whole: dict[int, set[int]],
    wanted: dict[int, list[str]],
) -> Iterator[dict]:  # fmt: skip
    """The cells of one layer, each with the names of those whose work it needs."""
    needs = {names[0]: whole[number] for number, names in wanted.items()}
    earlier = [one for layer in LAYERS[: LAYERS.index(name)] for one in layers[layer]]
    for cell, _ in layers[name]:
        every = set().union(*(needs.get(one, set()) for one in cell["targets"].split()))
        yield {**cell, "needs": [other["name"] for other, jobs in earlier if jobs & every]}


def merged(roots: list[Entry], by_id: dict[int, dict]) -> list[Entry]:
    """Those that need the same long work, such as one download, together."""
    found: list[Entry] = []
    for names, every in roots:
        same = [
            entry for entry in found if sum(seconds(by_id[one]) for one in entry[1] & every) > SHORT
        ]
        found = [entry for entry in found if entry not in same]
        both = [name for entry in (*same, (names, every)) for name in entry[0]]
        found.append((list(dict.fromkeys(both)), every.union(*(entry[1] for entry in same))))
    return found


def closure(job: dict, needs: dict[int, list[dict]]) -> set[int]:
    """The job and all that it needs, of what has to run."""
    found, todo = set(), [job]
    while todo:
        one = todo.pop()
        if id(one) not in found:
            found.add(id(one))
            todo += needs[id(one)]
    return found


def shared_jobs(
    wanted: dict[int, list[str]], whole: dict[int, set[int]], by_id: dict[int, dict]
) -> set[int]:
    """Long work without a GPU that several cells would do; a target and its record are one."""
    users: dict[int, set[str]] = {}
    for number, every in whole.items():
        for one in every:
            users.setdefault(one, set()).add(artifact(wanted[number][0]))
    return {
        one
        for one, names in users.items()
        if len(names) > 1 and seconds(by_id[one]) > SHORT and not gpus(by_id[one])
    }


def grouped(
    layer: str, found: list[Entry], by_id: dict[int, dict], of: Of
) -> list[tuple[dict, set[int]]]:
    """The cells with their jobs: one per target, or per model and format, or per model: the first way that
    stays within MOST."""
    for key in GROUPS:
        together: dict[Any, list[Entry]] = {}
        for names, every in found:
            model, form, gpu = of(names[0])
            kind = (key(artifact(names[0]), model, form), gpu if layer == "engines" else "")
            together.setdefault(kind, []).append((names, every))
        if len(together) <= MOST:
            break
    return [
        (cell(several, by_id, of), set().union(*(every for _, every in several)))
        for several in together.values()
    ]


def cell(several: list[Entry], by_id: dict[int, dict], of: Of) -> dict[str, Any]:
    jobs = [by_id[one] for one in set().union(*(every for _, every in several))]
    names = sorted(name for some, _ in several for name in some)
    needs_gpu = max(map(gpus, jobs))
    memory = max((job["forecast"] or {}).get("memory", 0) for job in jobs)
    disk = sum(sum((job["forecast"] or {}).get("files", {}).values()) for job in jobs)
    role = HOSTS[memory > HOSTED["memory"] or disk > HOSTED["disk"]]
    return {
        "name": names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
        "targets": " ".join(names),
        "runner": of(names[0])[2] if needs_gpu else role,
        "gpus": needs_gpu,
        "timeout": min(LONGEST, SETUP + math.ceil(SLOW * sum(map(seconds, jobs)) / 60)),
    }


def artifact(target: str) -> str:
    """What a record is of; the target itself otherwise."""
    return target.removesuffix(".verified.json")


def seconds(job: dict) -> float:
    return (job["forecast"] or {}).get("seconds", SHORT)


def gpus(job: dict) -> int:
    return job["gpus"]
