"""Where Ingot meets Snakemake 9.27.1: what runs.  What is said of it: says.py.

`install` puts eight methods of its DAG in place of its own.  Snakemake then schedules what
cache/decide.py says, and hits are restored before a job is handed to any executor.  Behind this file
a job is a plain value (job.py).  tests/unit/test_hook.py says which name changed.
"""

import contextlib
import fcntl
import os
import secrets
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ingot.base import claim, processes, steps
from ingot.base.refused import Refused, one_line
from ingot.driver.cache.contents import Contents, UnknownInput, stamps
from ingot.driver.cache.decide import Decider, Decision
from ingot.driver.cache.drop import drop
from ingot.driver.cache.dry_run import ANSWER, WHOLE
from ingot.driver.cache.ingest import Ingest, streamed
from ingot.driver.cache.remote.cache import shared
from ingot.driver.cache.restore import make_way, restore
from ingot.driver.catalogue import machine
from ingot.driver.catalogue.job import Graph, Job
from ingot.driver.forecast.costs import CONFIGS, Costs
from ingot.driver.forecast.ending import Ending
from ingot.driver.forecast.past import Past
from ingot.driver.show import decided
from ingot.driver.show.status import Status
from ingot.driver.snakemake import asks as snakemake_asks
from ingot.driver.snakemake import memory, report, values
from ingot.driver.snakemake import says as snakemake_says
from ingot.driver.snakemake.cluster import ask
from ingot.driver.snakemake.cluster import jobs as cluster
from ingot.driver.snakemake.health import doctor
from ingot.driver.toolchains import toolchains
from ingot.store import leases
from ingot.store.records import Store

VERSION = "9.27.1"
SHELL_NAMES = ("PYTHON", "ROOT", "sys")  # of rules/common.smk, that shell texts fill in
ORIGINAL: dict[str, Any] = {}  # Snakemake's own methods, by name


def install(catalogue: dict, root: Path) -> None:
    """Replace the methods, once per process.  `catalogue` may lie in another file than last time."""
    import snakemake
    from snakemake.dag import DAG
    from snakemake.jobs import Job as SnakemakeJob

    if snakemake.__version__ != VERSION:
        raise Refused(
            f"snakemake: version {snakemake.__version__}, expected {VERSION}: the store rests on it; "
            "install the version in envs/driver/requirements.lock"
        )
    Session.catalogue, Session.root = catalogue, root
    if not ORIGINAL:
        from snakemake.persistence import PersistenceBase
        from snakemake.scheduling.job_scheduler import JobScheduler

        ORIGINAL["exit_gracefully"] = JobScheduler.exit_gracefully
        JobScheduler.exit_gracefully = exit_gracefully
        ORIGINAL["run"], ORIGINAL["schedule"] = JobScheduler.run, JobScheduler.schedule
        JobScheduler.run, JobScheduler.schedule = run_jobs, schedule_all
        ORIGINAL["handle_error"] = JobScheduler._handle_error
        JobScheduler._handle_error = handle_error
        ORIGINAL["format_wildcards"] = SnakemakeJob.format_wildcards
        SnakemakeJob.format_wildcards = format_wildcards
        ORIGINAL["prepare"], ORIGINAL["cleanup"] = SnakemakeJob.prepare, SnakemakeJob.cleanup
        SnakemakeJob.prepare, SnakemakeJob.cleanup = prepare, cleanup
        ORIGINAL["cleanup_workdir"] = DAG.cleanup_workdir
        DAG.cleanup_workdir = cleanup_workdir
        ORIGINAL["metadata"] = PersistenceBase.metadata
        PersistenceBase.metadata = metadata
        (cluster if cluster.used() else memory).install()
        snakemake_says.install_lines()
        snakemake_asks.install_lint()
    methods = (
        init, update_needrun, postprocess, finish, check_incomplete, check_and_touch_output,
        get_outputs_with_changes,
    )  # fmt: skip
    for method in () if "init" in ORIGINAL else methods:
        ORIGINAL[method.__name__] = getattr(DAG, method.__name__)
        setattr(DAG, method.__name__, method)


def cleanup_workdir(dag) -> None:
    """Remove empty folders, but for one that is a disk of its own, as artifacts/ may be."""
    with contextlib.suppress(OSError):
        ORIGINAL["cleanup_workdir"](dag)


def format_wildcards(job, text, **variables) -> str:
    """A shell text's names are those of the file that its rule is in, also where that is a module."""
    known = job.rule.module_globals
    ours = {name: known[name] for name in SHELL_NAMES if name in known}
    return ORIGINAL["format_wildcards"](job, text, **{**ours, **variables})


async def prepare(job) -> None:
    """Leave alone what another run builds; use no toolchain that is not seen, or not as it was built."""
    if path := overtaken(job):
        raise _stop(f"{path}: another run of Snakemake builds it now; this job ends")
    try:
        if not job.dag.workflow.is_main_process:
            toolchains.stop_where_unseen(map(str, job.input))
        toolchains.stop_where_altered(map(str, job.input))
    except Refused as reason:
        raise _stop(str(reason)) from None
    await ORIGINAL["prepare"](job)


async def cleanup(job, *arguments, **options) -> None:
    """The same when the job has failed."""
    if not overtaken(job):
        await ORIGINAL["cleanup"](job, *arguments, **options)


def overtaken(job) -> str | None:
    """An output of a job elsewhere that a later run has claimed."""
    if not job.dag.workflow.is_main_process:
        for path in map(str, job.output):
            if claim.claimed(path).get("run", "") not in ("", os.environ.get("INGOT_RUN", "")):
                return path
    return None


def exit_gracefully(scheduler, *arguments) -> None:
    """Told to end, Snakemake would wait for the running steps: they are told, too.

    In a thread: the main one, which the signal stopped, may hold the lock that Snakemake's own takes.
    """
    snakemake_says.stopped()
    if cluster.used() and decides(scheduler.workflow.dag):
        raise KeyboardInterrupt  # as Ctrl-C: the scheduler cancels what it submitted

    def end() -> None:
        os.write(2, b"stopped by SIGTERM: the running steps are stopped\n")
        ORIGINAL["exit_gracefully"](scheduler, *arguments)
        processes.stop_below(os.getpid())

    threading.Thread(target=end, name="end").start()


def handle_error(scheduler, job, *arguments, **options) -> None:
    if decides(dag := scheduler.workflow.dag):
        for member in values.members([job]):
            ours = dag.ingot.job(member)
            dag.ingot.status.stopped(ours, log_of(member))
            for path in dag.ingot.stood.intersection(ours.writes):
                if not os.path.lexists(path):
                    said = "what stood there is removed, and comes back with what it was made from"
                    print(f"{path}: {said}", file=sys.stderr)
    ORIGINAL["handle_error"](scheduler, job, *arguments, **options)


def run_jobs(scheduler, jobs, executor=None) -> None:
    dag = scheduler.workflow.dag
    if decides(dag) and not dag.workflow.dryrun:
        for job in values.members(jobs):
            try:
                dag.ingot.claim(job)
            except Refused as reason:  # of a config.json that was fetched meanwhile
                raise _stop(str(reason)) from None
    ORIGINAL["run"](scheduler, jobs, executor)


def schedule_all(scheduler) -> bool:
    """The whole run, failed or not; what was built of it is then sent to the shared cache."""
    done = False
    # all that was asked is answered: a sixth of the time of a matrix of all targets
    if scheduler.workflow.dryrun and os.environ.get(ANSWER):
        return True
    dag = scheduler.workflow.dag
    try:
        if decides(dag) and dag.ingot.ending:  # of a run that does something
            memory.limit(scheduler, dag.ingot.ending.most)
        done = ORIGINAL["schedule"](scheduler)
        if decides(dag) and (remote := dag.ingot.contents.shared.remote):
            remote.close()
        return done
    finally:
        snakemake_says.end(done)


class Session:
    """What Ingot knows of one run of Snakemake, at the one attribute of its DAG that is ours."""

    catalogue: dict
    root: Path
    idle = False  # this process's run, of rules of ours alone, had nothing to do: noop.py

    def __init__(self):
        self.busy: Any = None  # our lock on the working folder
        self.lease: Any = None  # our lease on the store
        self.ours: dict[Any, Job] = {}  # by Snakemake's job
        self.theirs: dict[Job, Any] = {}
        self.decision = Decision()
        self.run = ""  # a name of ours for this run, once it decides
        self.owners: dict[Job, str] = {}  # the run whose step may put the job's outputs in place
        self.stood: set[str] = set()  # outputs of the store that were there when their job began
        self.adopted: set[Job] = set()  # taken in from a run that was killed
        self.status = Status()
        self.ending: Any = None  # once it is known what has to run
        self.cluster: Any = None  # once it is known what has to run

    def begin(self, graph: Graph, dry: bool, by_user: dict) -> None:
        """`by_user`: resources of rules that the command line sets."""
        store = Store()
        with one_line("error: "):
            remote = shared(store, dry)
        self.contents = Contents(graph, store, dry, remote)
        self.decider = Decider(self.contents)
        past = Past(store, ask.cores) if cluster.used() else Past(store)
        folders = [Path(os.environ[CONFIGS])] if os.environ.get(CONFIGS) else []
        self.costs = Costs(self.catalogue, self.root, past, folders, settled=dry)
        self.cluster = cluster.Cluster(self.costs, by_user) if cluster.used() else None
        self.costs.memory = {} if self.cluster else memory.by_rule(by_user)
        asks = self.cluster.asked if self.cluster else lambda _: {}
        short = self.catalogue["keep"] == "targets"
        self.ingest = Ingest(self.contents, self.costs, asks, short)
        self.run = self.run or secrets.token_hex(8)
        self.status.run = self.run
        os.environ["INGOT_RUN"] = self.run  # of each step, on whichever machine

    def job(self, job: Any) -> Job:
        """Our value of Snakemake's job."""
        if job not in self.ours:
            self.ours[job] = found = values.plain(job, self.root)
            self.theirs[found] = job
        return self.ours[job]

    def jobs(self, jobs: Iterable[Any]) -> set[Job]:
        return {self.job(job) for job in values.members(jobs)}

    def claim(self, theirs: Any) -> None:
        """Make the job's outputs ours, but for what SLURM builds already for an earlier run."""
        job = self.job(theirs)
        found = {"run": self.run, "key": self.contents.known_key(job), "inputs": stamps(job)}
        self.stood.update(filter(os.path.islink, job.writes))
        owner = self.cluster.take_over(job, theirs, found) if self.cluster else None
        self.owners[job] = owner or self.run
        for path in () if owner else job.writes:
            claim.claim(path, found)
        if not owner:
            steps.forget(job.writes)
        expected = self.costs.of(job)
        self.status.started(job, log_of(theirs), expected)

    def expect(self, room: memory.Room) -> None:
        """Note what is to be done and what it will take."""
        self.ending = Ending(self.costs, *room)
        jobs = list(self.decision.run)
        self.status.targets = sorted(self.contents.graph.asked())
        self.status.restored = sum(map(len, self.decision.restore.values()))
        graph, keeps = self.contents.graph, self.catalogue["keep"]
        store = self.contents.store.root
        self.status.expect(
            jobs, decided.plan(graph, self.decision, self.costs, keeps, store, *room)
        )
        self.status.ends = self.ending.at(graph, jobs, self.status.running)

    def size(self, job: Job) -> int:
        """Bytes of what a finished job wrote, where the store has them; else 0."""
        record = self.contents.records.get(job)
        return sum(output["size"] for output in record.outputs) if record else 0

    def adopt(self) -> list[Job]:
        """Take in, once, what an earlier run had its steps build of the same inputs."""
        found = []
        for job in self.decision.run:
            if job in self.contents.graph.forced or job in self.adopted:
                continue
            key = self.contents.known_key(job)
            if key and claim.finished(job.writes, {"key": key, "inputs": stamps(job)}):
                how = "built here before and on no record"
                if streamed(job):
                    how = "written by ingot stream"
                self.ingest.finished(job)
                if job in self.contents.records:
                    print(f"{job.writes[0]}: {how}, taken into the store", file=sys.stderr)
                self.adopted.add(job)
                found.append(job)
        return found

    def restore(self, dag: Any) -> None:
        while bad := restore(self.contents, self.decision):
            self.decider.bad |= bad
            decide(dag)
        make_way(self.contents, self.decision)
        dag.workflow.iocache.exists_local.clear()  # files have come and gone

    def share(self) -> None:
        """Write to the shared cache what it lacks of the targets that need not be built."""
        remote = self.contents.shared.remote
        if remote and remote.writes:
            self.contents.shared.share(
                job for job in self.contents.graph.targets if job not in self.decision.run
            )
            if not self.decision.run:
                remote.close()


def log_of(theirs: Any) -> str:
    return str(next(iter(theirs.log), ""))


def decides(dag: Any) -> bool:
    """Does this process decide?  One that runs a job for another does not."""
    return dag.workflow.is_main_process


async def init(dag, *arguments, **options) -> None:
    if dag.workflow.touch:
        with one_line("error: "):
            raise Refused(
                "--touch: has no effect, since Ingot compares contents, not times; leave it out"
            )
    dag.ingot = Session()
    if decides(dag) and not dag.workflow.dryrun:
        _forget_dead_runs(dag.ingot)
        processes.heed()
    await ORIGINAL["init"](dag, *arguments, **options)


def _forget_dead_runs(session: Session) -> None:
    """Lift the lock of a killed Snakemake: when nobody else holds our lock, nobody is alive."""
    place = Path(".snakemake")
    place.mkdir(exist_ok=True)
    session.busy = (place / "ingot.busy").open("w")  # held until this process ends
    with contextlib.suppress(OSError):  # somebody is alive, or this file system has no locks
        fcntl.flock(session.busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for lock in place.glob("locks/*.lock"):
            lock.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(session.busy, fcntl.LOCK_SH)


async def check_incomplete(dag) -> None:
    """What a killed job left is judged by what it holds, like all else."""
    if not decides(dag):
        await ORIGINAL["check_incomplete"](dag)


async def check_and_touch_output(dag, job, *arguments, **options) -> None:
    """Snakemake would set each output's time and compare it with its inputs'.

    A file's time says nothing here, and an output that is touched would have to be read again.
    """
    options |= {"no_touch": True, "check_output_mtime": False}
    if decides(dag):
        ours = dag.ingot.job(job)
        for path in ours.writes:
            if not claim.given(path, dag.ingot.owners.get(ours, dag.ingot.run)):
                raise _stop(
                    f"{path}: another run put it there, expected this one's; ask for it again"
                )
        # gone: whoever needs it next says so; unknown: of a job of the same group
        with contextlib.suppress(OSError, UnknownInput):
            if ours.cached and (torn := dag.ingot.ingest.torn(ours)):
                raise _stop(f"{torn}: changed while {ours.writes[0]} was built; ask for it again")
    await ORIGINAL["check_and_touch_output"](dag, job, *arguments, **options)


async def update_needrun(dag, create_inventory=False) -> None:
    if not decides(dag):
        await ORIGINAL["update_needrun"](dag, create_inventory=create_inventory)
        return
    await values.stop_on_hidden(dag)
    by_user = dag.workflow.resource_settings.overwrite_resources
    dag.ingot.begin(values.graph_of(dag), dag.workflow.dryrun, by_user)
    decide(dag)


def decide(dag: Any) -> None:
    """Ask what has to run, and tell Snakemake."""
    session = dag.ingot
    running = set(values.members(dag._running))
    try:
        done = session.jobs(dag._finished | running) | session.adopted
        session.decision = session.decider.decide(done)
    except OSError as error:
        place = error.filename and os.path.realpath(
            error.filename
        )  # of a link into the store, the file
        named = place and f"{place}: {error.strerror}, expected to read it; see ls -l"
        raise _stop(named or str(error)) from None
    except ValueError as error:  # a rule without a key
        raise _stop(str(error)) from None
    run = {session.theirs[job]: why for job, why in session.decision.run.items()}
    again = dag._ready_jobs & dag._running  # jobs that failed and will be tried once more
    dag._needrun.clear()
    dag._n_until_ready.clear()
    dag._ready_jobs.clear()
    dag._ready_jobs.update(again)
    dag._needrun.update(run, running, dag._finished)
    waiting = set(run) | running
    for job, why in run.items():
        dag._reason[job] = _reason(why)
        dag._n_until_ready[job] = sum(1 for dep in dag.dependencies[job] if dep in waiting)
    dag._len = len(dag._finished | dag._needrun)


def _stop(text: str) -> Exception:
    from snakemake.exceptions import WorkflowError

    return WorkflowError(text)


def _reason(text: str) -> Any:
    """In place of Snakemake's Reason, whose words speak of times."""
    from snakemake.jobs import Reason

    class Why(Reason):
        __slots__ = ()

        def __str__(self) -> str:
            return text

        def __bool__(self) -> bool:
            return not self.finished

        def get_names(self):
            yield "not on record"

    return Why()


async def get_outputs_with_changes(dag, change_type, *_, **__) -> list[str]:
    session = dag.ingot
    return snakemake_asks.changed(session.contents, session.decision, change_type.name.lower())


def metadata(persistence, target) -> Any:
    """What Snakemake has on record of an output, or else what the store has."""
    if found := ORIGINAL["metadata"](persistence, target):
        return found
    session = persistence.dag.ingot
    for job in session.contents.graph.jobs:
        if str(target) in job.writes:
            log = log_of(session.theirs[job])
            return snakemake_asks.metadata(session.contents, job, str(target), log)


async def postprocess(dag, *arguments, check_initial=False, **options) -> None:
    """Before anything is scheduled: show the decisions, and restore what is on record."""
    if check_initial and decides(dag):
        session, dry = dag.ingot, dag.workflow.dryrun
        dag.cleanup()
        session.contents.graph = values.graph_of(dag)  # --until and --omit-from change the targets
        decide(dag)
        with one_line("error: "):
            if dag.workflow.local_exec:  # a cluster's jobs look at their own machine
                machine.stop_where_it_cannot_run(session.decision.run, dry)
            if session.cluster:
                doctor.look(session.cluster, session.decision.run, dry)
        room = memory.room(dag.workflow, session.cluster)  # once: what is said is what holds
        if not dry:
            if session.contents.writable:
                keys = filter(None, map(session.contents.known_key, session.contents.graph.jobs))
                session.lease = leases.hold(session.contents.store, keys)
            while session.adopt():
                decide(dag)
        if dry or not snakemake_says.quiet():
            report.tell(
                session.contents, session.decision, session.costs, dry, room, session.cluster,
                session.theirs,
            )  # fmt: skip
        if not dry:
            session.restore(dag)
            if os.environ.get(WHOLE) or any(job.asked for job in session.decision.run):
                while session.contents.shared.look_up(session.contents.graph.jobs):
                    pass  # of every action, though nobody needs what it gave
            session.share()
            did = session.decision.run or session.decision.restore or session.adopted
            others = dag.workflow.main_snakefile != str(Session.root / "Snakefile")
            Session.idle = not (did or others or session.contents.shared.remote or cluster.used())
            if session.decision.run:
                session.expect(room)
                snakemake_says.begin(session.status)
            # ours is kept in the store; Snakemake's would fail a finished job on a full disk
            object.__setattr__(dag.workflow.execution_settings, "keep_metadata", False)
    await ORIGINAL["postprocess"](dag, *arguments, check_initial=check_initial, **options)


async def finish(dag, job, *arguments, **options):
    """A job is done: keep what it wrote, then see whether that changes what is left to do."""
    if not decides(dag) or dag.workflow.dryrun:
        return await ORIGINAL["finish"](dag, job, *arguments, **options)
    session = dag.ingot
    for member in values.members([job]):
        session.ingest.finished(session.job(member))
    await ORIGINAL["finish"](dag, job, *arguments, **options)
    before = set(session.decision.run)
    decide(dag)
    session.restore(dag)
    finished, running = session.jobs(dag._finished), session.jobs(dag._running)
    waiting = (set(session.decision.run) | running) - finished
    if session.catalogue["keep"] == "targets":
        drop(session.contents, session.ingest, waiting)
    begun = session.status.running
    session.status.ends = session.ending.at(session.contents.graph, waiting, begun)
    for member in values.members([job]):
        ours = session.job(member)
        session.status.finished(ours, len(waiting), session.size(ours))
        snakemake_says.finished(ours)
    if not waiting:
        session.ingest.close()
    report.spared(before - finished - waiting, session.decision)
    dag.update_priority()
    dag.update_ready([session.theirs[one] for one in session.decision.run])
    return True
