"""Whether a site can do what a run will ask of it: each fault in one line, before anything is submitted.

What only a node knows is asked by a job of a minute in each partition that the run would use; what
was found sound is remembered in .ingot/doctor, until the site file or the paths change.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.catalogue import site
from ingot.driver.catalogue.job import Job
from ingot.driver.snakemake.cluster import slurm, watch
from ingot.driver.snakemake.cluster.jobs import Cluster
from ingot.driver.snakemake.health import node
from ingot.driver.toolchains import toolchains
from ingot.store.records import Store

FOLDER = Path(".ingot/doctor")
ANSWER = "INGOT_DOCTOR"  # the file that a dry run of `ingot doctor` writes the faults to
LATE = 60.0  # seconds until a shared file system shows what a node wrote
WAIT = "INGOT_DOCTOR_WAIT"  # seconds until a busy partition is not asked any more; 90 without it
LONGEST = 60  # seconds that a job must be listed after its end: twice between two looks
UNSEEN, NO_PYTHON = 21, 22  # how the asking job ends where it cannot ask


def look(cluster: Cluster, jobs: Iterable[Job], dry: bool) -> None:
    """Before a run: refuse what cannot be submitted; once per site, look at its nodes."""
    jobs = [job for job in jobs if not cluster.here(job)]
    if not slurm.used():
        return
    if place := os.environ.get(ANSWER):
        busy: list[str] = []
        found = {"faults": list(faults(cluster, jobs, busy)), "busy": busy}
        Path(place).write_text(json.dumps(found))
        return
    cluster.stop_where_none_has_it(jobs)
    if jobs and not dry:
        on_first_use(cluster, jobs)


def faults(cluster: Cluster, jobs: Iterable[Job], busy: list[str]) -> Iterator[str]:
    """Each fault of the site, for the jobs that would be submitted; into `busy`, what was not looked at."""
    if not slurm.partitions():
        yield slurm.NONE
        return
    yield from of_controller()
    names = {one.name for one in slurm.partitions()}
    for role, name in cluster.site.partitions.items():
        if name not in names:
            known = ", ".join(sorted(names))
            yield f"{site.path()}: partitions.{role}: {name}, expected one of {known}"
    if not set(cluster.site.partitions.values()) <= names:
        return
    asked: dict[str, list[Job]] = {}
    for job in jobs:
        try:
            _, partition = cluster.asks(job)
            asked.setdefault(partition.name, []).append(job)
        except Refused as reason:
            yield str(reason)
    for name, those in (asked or {slurm.partitions()[0].name: []}).items():
        yield from of_partition(name, those, cluster.site, busy)


def of_controller() -> Iterator[str]:
    """Will the end of a job be seen?"""
    shown = slurm.call("scontrol", "show", "config")
    age = re.search(r"^MinJobAge\s*=\s*(\d+)", shown, re.M)
    kept = re.search(r"^AccountingStorageType\s*=\s*(\S+)", shown, re.M)
    if age and int(age[1]) < LONGEST and (not kept or kept[1].endswith("none")):
        yield (
            f"MinJobAge: {age[1]} s and no accounting, expected {LONGEST} s or more: a job that has ended "
            "is forgotten before it is looked for; ask the administrator to raise it in slurm.conf"
        )


def of_partition(name: str, jobs: list[Job], where: site.Site, busy: list[str]) -> Iterator[str]:
    """What a node of the partition does not see, cannot write, or lacks for the jobs."""
    with asking(jobs) as (question, answer, written):
        job_id = submit(name, question, answer, where)
        if not job_id.isdigit():
            yield f"partition {name}: sbatch refuses a job of a minute ({job_id}); correct {site.path()}"
            return
        seen = waited(job_id, answer)
        if not answer.exists():
            yield from silent(name, job_id, seen, busy)
            return
        found = json.loads(answer.read_text())
        on = f"on node {found['node']} (partition {name})"
        for path in found["unseen"]:
            what, how = (
                ("store", "STORE") if path.endswith("oci-layout") else ("toolchains", "ENVS")
            )
            yield (
                f"{Path(path).parent}: not seen {on}, expected the {what} of this machine; "
                f"set INGOT_{how} to a shared folder, or name it in {site.path()}"
            )
        for path in (path for path in written if not path.exists()):
            how = "cannot be written" if str(path) in found["unwritten"] else "is another folder"
            yield (
                f"{path.parent}: {how} {on}, expected the store, shared by all nodes; set INGOT_STORE, "
                f"or store in {site.path()}, to a shared folder"
            )
        yield from (f"{output}: {on}: {reason}" for output, reason in found["needs"].items())


@contextlib.contextmanager
def asking(jobs: list[Job]) -> Iterator[tuple[Path, Path, list[Path]]]:
    """A question's file, its answer's, and the files that the node is to write; gone afterwards."""
    token = secrets.token_hex(8)
    folder, store, envs = FOLDER.absolute(), Store().root, toolchains.cache()
    question, answer = folder / f"{token}.json", folder / f"{token}.answer"
    own = [question, answer, envs / f".doctor-{token}", store / f".doctor-{token}"]
    seen, written = own[2:3], own[3:]
    if envs.is_dir() and not os.access(envs, os.W_OK):
        seen = sorted(envs.glob("*/ready"))[:1]  # built by somebody else
    if store.is_dir() and not os.access(store, os.W_OK):
        seen, written = [*seen, store / "oci-layout"], []  # it serves hits all the same
    needs = {
        job.writes[0]: {name: word for name, word in job.params.items() if isinstance(word, str)}
        for job in jobs
    }
    try:
        for path in own:
            path.parent.mkdir(parents=True, exist_ok=True)
        for path in (path for path in seen if token in path.name):
            path.touch()
        found = {"seen": list(map(str, seen)), "write": list(map(str, written)), "needs": needs}
        question.write_text(json.dumps(found))
        yield question, answer, written
    except OSError as error:
        raise Refused(
            f"{error.filename}: {error.strerror}, expected a folder to write to"
        ) from None
    finally:
        for path in own:
            with contextlib.suppress(OSError):
                path.unlink()


def submit(partition: str, question: Path, answer: Path, where: site.Site) -> str:
    """The id of the job that asks; or what sbatch says."""
    gpus = any(one.gpus for one in slurm.partitions() if one.name == partition)
    role = "gpu" if gpus else "cpu"
    script = (
        f"test -r {shlex.quote(str(question))} || exit {UNSEEN}; "
        f"test -x {shlex.quote(sys.executable)} || exit {NO_PYTHON}; "
        f"exec {shlex.join([sys.executable, node.__file__, str(question), str(answer)])}"
    )
    words = ["sbatch", "--parsable", "--job-name=ingot-doctor", "--chdir=/", "--output=/dev/null"]
    words += ["--time=2", "--mem=300", f"--partition={partition}"]
    words += [f"--account={where.account}"] if where.account else []
    words += [f"--constraint={where.constraints[role]}"] if role in where.constraints else []
    words += [f"--qos={where.qos[role]}"] if role in where.qos else []
    words += [f"--gpus={where.gpu_type}:1".replace("=:", "=")] if gpus else []
    said = slurm.call(*words, "--wrap", script, errors=True)
    return said.splitlines()[-1].partition(";")[0].strip() if said else "no answer"


def waited(job_id: str, answer: Path) -> watch.Seen:
    """How the job stands when it has answered, has ended, or cannot start soon."""
    end = time.monotonic() + float(os.environ.get(WAIT) or 90)
    seen = watch.Seen("PENDING", "", "")
    while time.monotonic() < end and not answer.exists():
        seen = (watch.seen() or {}).get(job_id, seen)
        if watch.NEVER.fullmatch(seen.reason):
            break
        if seen.state not in slurm.ALIVE and seen.state != "COMPLETED":
            break
        if seen.state == "COMPLETED":
            end = min(end, time.monotonic() + LATE)
        list(answer.parent.iterdir())  # asks a shared file system again
        time.sleep(0.2)
    if not answer.exists():
        slurm.cancel(job_id)
    return seen


def silent(name: str, job_id: str, seen: watch.Seen, busy: list[str]) -> Iterator[str]:
    """Why a job gave no answer; a partition that is busy is not at fault."""
    on = f"on node {seen.node} (partition {name})"
    status = re.search(r"ExitCode=(\d+)", slurm.call("scontrol", "show", "job", job_id))
    code = int(status[1]) if status else -1
    if seen.state == "PENDING" and watch.NEVER.fullmatch(seen.reason):
        words = f"partition {name}: a job of a minute cannot start ({seen.reason})"
        yield f"{words}; name another in {site.path()}, or ask the administrator"
    elif seen.state == "PENDING":
        busy.append(f"partition {name}: busy ({seen.reason}), not looked at")
    elif code == NO_PYTHON:
        yield (
            f"{sys.executable}: missing {on}, expected this clone's .venv; clone to a shared folder, "
            "and `make setup` there"
        )
    elif code in (UNSEEN, 0):
        yield (
            f"{Path.cwd()}: not seen {on}, expected the working folder; move it to a shared folder"
        )
    else:
        words = f"partition {name}: a job of a minute ended with status {code} {on}"
        yield f"{words}; see `scontrol show job {job_id}`"


def mark(partitions: Iterable[str]) -> Path:
    """What stands where these partitions were found sound, with this site file and these paths."""
    words = [site.read(), Path.cwd(), Store().root, toolchains.cache(), sys.executable]
    words += [os.environ.get("SLURM_CONF", ""), *sorted(partitions)]
    return FOLDER / f"{hashlib.sha256('|'.join(map(str, words)).encode()).hexdigest()[:16]}.sound"


def on_first_use(cluster: Cluster, jobs: list[Job]) -> None:
    """Look at the site once; refuse with its faults."""
    names = {partition.name for _, partition in map(cluster.asks, jobs) if partition}
    sound = mark(names)
    if not names or sound.exists():
        return
    words = f"first use of {', '.join(sorted(names))}: looking at the site, as `ingot doctor` does"
    print(words, file=sys.stderr)
    busy: list[str] = []
    if found := list(faults(cluster, jobs, busy)):
        raise Refused(found[0], "\n".join(found[1:]))
    for line in busy:
        print(line, file=sys.stderr)
    if not busy:
        sound.parent.mkdir(parents=True, exist_ok=True)
        sound.touch()
