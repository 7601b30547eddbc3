"""Where Ingot meets Snakemake: the few private names of Snakemake 9.27.1 that the store rests on.

`install` puts six methods of its DAG in place of its own.  Snakemake then schedules what plan.py
says, and hits are restored before a job is handed to any executor.  tests/test_hook.py fails
with a clear text when these names change.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import sys
from pathlib import Path

from ingot.driver.cache import decide as plan
from ingot.driver.cache import drop as rolling
from ingot.driver.cache.differences import nearest
from ingot.driver.catalogue import machine as needs
from ingot.driver.forecast import costs
from ingot.driver.forecast import schedule as forecast
from ingot.store import leases

VERSION = "9.27.1"
LINES = 40  # of the plan that are shown


def install(catalogue: dict, root: Path) -> None:
    """Replace the methods, once a process.  `catalogue` may lie in another file than last time."""
    import snakemake
    from snakemake.dag import DAG

    if snakemake.__version__ != VERSION:
        sys.exit(
            f"snakemake: version {snakemake.__version__}, expected {VERSION}: the store rests on it; "
            "install the version in envs/driver/requirements.lock"
        )
    DAG.ingot_catalogue = (catalogue, root)
    if getattr(DAG, "ingot", None):
        return
    DAG.ingot = {}
    methods = (init, update_needrun, postprocess, finish, check_incomplete, check_and_touch_output)
    for method in methods:
        DAG.ingot[method.__name__] = getattr(DAG, method.__name__)
        setattr(DAG, method.__name__, method)


def ours(dag) -> bool:
    """Does this process decide?  One that runs a job for another, or only touches, does not."""
    return dag.workflow.is_main_process and not dag.workflow.touch


async def init(dag, *arguments, **options) -> None:
    if ours(dag) and not dag.workflow.dryrun:
        _forget_dead_runs(dag)
    await dag.ingot["init"](dag, *arguments, **options)


def _forget_dead_runs(dag) -> None:
    """Lift the lock of a killed Snakemake: when nobody else holds our lock, nobody is alive."""
    place = Path(".snakemake")
    place.mkdir(exist_ok=True)
    dag.ingot_lock = (place / "ingot.busy").open("w")  # held until this process ends
    with contextlib.suppress(OSError):  # somebody is alive, or this file system has no locks
        fcntl.flock(dag.ingot_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for lock in place.glob("locks/*.lock"):
            lock.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(dag.ingot_lock, fcntl.LOCK_SH)


async def check_incomplete(dag) -> None:
    """What a killed job left is judged by what it holds, like all else."""
    if not ours(dag):
        await dag.ingot["check_incomplete"](dag)


async def check_and_touch_output(dag, job, *arguments, **options) -> None:
    """Snakemake would set each output's time and compare it with its inputs'.

    A file's time says nothing here: clocks run backwards, inputs come from the future.  And an output
    that is touched might have changed: it would have to be read again to learn its digest.
    """
    if not dag.workflow.touch:
        options |= {"no_touch": True, "check_output_mtime": False}
    await dag.ingot["check_and_touch_output"](dag, job, *arguments, **options)


async def update_needrun(dag, create_inventory=False) -> None:
    if not ours(dag):
        await dag.ingot["update_needrun"](dag, create_inventory=create_inventory)
        return

    def forced(job) -> bool:
        if job in dag.omitforce or not job.output:
            return False
        return job.rule in dag.forcerules or not dag.forcefiles.isdisjoint(job.output)

    catalogue, root = dag.ingot_catalogue
    dag.plan = plan.Plan(dag, forced)
    dag.plan.costs = costs.Costs(catalogue, root, dag.plan.store)
    dag.rolling = catalogue["keep"] == "targets"
    _decide(dag)


def _decide(dag) -> None:
    """Ask the plan what has to run, and tell Snakemake."""
    running = set(plan.members(dag._running))
    try:
        dag.decision = dag.plan.decide(done=dag._finished | running)
    except (ValueError, OSError) as error:  # a rule without a key, a file that cannot be read
        from snakemake.exceptions import WorkflowError

        raise WorkflowError(str(error)) from None
    again = dag._ready_jobs & dag._running  # jobs that failed and will be tried once more
    dag._needrun.clear()
    dag._n_until_ready.clear()
    dag._ready_jobs.clear()
    dag._ready_jobs.update(again)
    dag._needrun.update(dag.decision.run, running, dag._finished)
    waiting = set(dag.decision.run) | running
    for job, why in dag.decision.run.items():
        dag._reason[job] = _why(why)
        dag._n_until_ready[job] = sum(1 for dep in dag.dependencies[job] if dep in waiting)
    dag._len = len(dag._finished | dag._needrun)


def _why(text: str):
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


async def postprocess(dag, *arguments, check_initial=False, **options) -> None:
    """Before anything is scheduled: show the plan, and restore what is on record."""
    if check_initial and ours(dag):
        dag.cleanup()
        _decide(dag)  # again: --until and --omit-from have changed the targets since
        if not dag.workflow.dryrun:
            _stop_where_it_cannot_run(dag)
        _tell(dag)
        if not dag.workflow.dryrun:
            dag.lease = leases.hold(dag.plan)
            _restore(dag)
            # ours is kept in the store; Snakemake's would fail a finished job on a full disk
            object.__setattr__(dag.workflow.execution_settings, "keep_metadata", False)
    await dag.ingot["postprocess"](dag, *arguments, check_initial=check_initial, **options)


def _stop_where_it_cannot_run(dag) -> None:
    """On this machine, before any work; a cluster's jobs look at their own."""
    for job in dag.decision.run if dag.workflow.local_exec else ():
        if reason := needs.missing(job):
            sys.exit(f"error: {job.output[0]}: {reason}")


def _restore(dag) -> None:
    while not dag.plan.restore(dag.decision):  # each time round, one more record is known to be bad
        _decide(dag)
    for path in (Path(path) for job in dag.decision.run for path in job.output):
        # a hard link into the store is read-only: Snakemake would take it for a protected output
        if path.is_file() and not path.is_symlink() and not os.access(path, os.W_OK):
            path.unlink()


async def finish(dag, job, *arguments, **options):
    """A job is done: keep what it wrote, then see whether that changes what is left to do."""
    if not ours(dag) or dag.workflow.dryrun:
        return await dag.ingot["finish"](dag, job, *arguments, **options)
    for member in plan.members([job]):
        dag.plan.finished(member)
    await dag.ingot["finish"](dag, job, *arguments, **options)
    before = set(dag.decision.run)
    _decide(dag)
    _restore(dag)
    if dag.rolling:
        rolling.drop(dag)
    for spared in before - dag._finished - set(plan.members(dag._running)) - set(dag.decision.run):
        text = "as before: restored" if spared in dag.decision.restore else "not needed any more"
        print(f"{spared.output[0]}: {text}", file=sys.stderr)
    dag.update_priority()
    dag.update_ready(dag.decision.run)
    return True


def _tell(dag) -> None:
    """The plan, a line a job; as JSON too when `ingot explain` asks."""
    decision, lines = dag.decision, []
    for job, files in decision.restore.items():
        for path, output in files.items():
            lines.append(f"restore  {path}  ({output['size'] / 1e6:,.1f} MB, {job.rule.name})")
    for job, why in decision.run.items():
        lines.append(f"run      {', '.join(job.output)}  ({why})")
    for line in lines[:LINES] if dag.workflow.dryrun or len(lines) <= LINES else ():
        print(line, file=sys.stderr)
    if len(lines) > LINES:
        restored = sum(map(len, decision.restore.values()))
        print(f"in all: {restored} files restored, {len(decision.run)} jobs run", file=sys.stderr)
    place = os.environ.get("INGOT_EXPLAIN")
    if place or (dag.workflow.dryrun and decision.run):
        jobs = [_described(dag, job) for job in dag.jobs]
        if place:
            Path(place).write_text(json.dumps(jobs))
        else:
            print(forecast.summary(jobs, rolling.targets(dag), os.cpu_count()), file=sys.stderr)


def _described(dag, job) -> dict:
    decision, found = dag.decision, {"rule": job.rule.name, "outputs": list(job.output)}
    found |= {"inputs": list(job.input), "model": job.wildcards.get("model")}
    if job in dag.plan.keys:
        key, fields = dag.plan.keys[job]
        found |= {"key": key}
        if job in decision.run:
            near = nearest(dag.plan.store, job, fields)
            found |= {"differences": near.differences}
            if near.record:
                found |= {"nearest": {"key": near.record.key, "outputs": [
                    output["title"] for output in near.record.outputs]}}  # fmt: skip
    if job in decision.run:
        expected = dag.plan.costs.of(job)
        found |= {"forecast": dataclasses.asdict(expected) if expected else None}
        return {**found, "action": "run", "why": decision.run[job]}
    if job in decision.restore:
        return {**found, "action": "restore", "files": list(decision.restore[job])}
    here = bool(job.output) and all(os.path.exists(path) for path in job.output)
    return {**found, "action": "none", "why": "up to date" if here else "not needed"}
