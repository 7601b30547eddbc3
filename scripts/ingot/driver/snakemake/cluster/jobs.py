"""What Snakemake's jobs ask of the cluster, which of them stay here, and which are tried again."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from ingot.base import claim
from ingot.base.refused import Refused
from ingot.driver.catalogue import site
from ingot.driver.catalogue.job import Job
from ingot.driver.forecast.costs import Costs
from ingot.driver.snakemake.cluster import ask, slurm, watch
from ingot.driver.toolchains import toolchains
from ingot.store.records import Store

KUBERNETES = "snakemake_executor_plugin_kubernetes"
POD_DISK = 1000  # MB, for temporary files
MAKER = {"gpu_manufacturer": "nvidia"}  # a pod must say; engines are for these alone
ORIGINAL: dict[str, Any] = {}  # Snakemake's own, by name


def install() -> None:
    """Replace what Snakemake asks of a job, and what it does when one has failed."""
    from snakemake.jobs import Job as Theirs
    from snakemake.scheduling.job_scheduler import JobScheduler

    if slurm.used():
        slurm.install()
        executor = sys.modules[slurm.PLUGIN].Executor
        executor.check_active_jobs = watch.check(executor.check_active_jobs, wrote)
        executor.sleep = watch.sleep
    else:
        sys.modules[KUBERNETES].Executor.get_job_exec_prefix = in_the_pod
    ORIGINAL.update(resources=Theirs.resources, is_local=Theirs.is_local)
    Theirs.resources, Theirs.is_local = property(resources), property(is_local)
    ORIGINAL["handle_error"] = JobScheduler._handle_error
    JobScheduler._handle_error = handle_error


def used() -> bool:
    """Does this run submit its jobs?  A plugin is on the path only then."""
    return slurm.used() or KUBERNETES in sys.modules


class Cluster:
    """What one run knows of its jobs on a cluster, by Snakemake's job."""

    def __init__(self, costs: Costs, by_user: Mapping[str, Mapping[str, Any]]):
        self.costs = costs
        self.by_user = by_user  # resources of rules, by --set-resources
        self.site = site.read()
        self.taken: dict[
            Any, dict
        ] = {}  # the claim of an earlier run, whose SLURM job goes on for us
        self.watch = watch.Watch()
        self.submitted: list[str] = []  # ids of SLURM's jobs, those taken over too
        self.causes: dict[Any, str] = {}  # why the last try ended
        self.more: dict[Job, tuple[float, float]] = {}  # times the memory and the time of the first

    def asks(self, job: Job) -> tuple[ask.Ask, ask.Partition | None]:
        """What a job asks: more after a try that was stopped for want of it."""
        forecast = self.costs.of(job)
        memory, time = self.more.get(job, (1, 1))
        wanted = ask.of(job.step, forecast, memory, time)
        role = ask.role(wanted, forecast)
        known = slurm.partitions() if slurm.used() else ()
        try:
            names = self.site.partitions
            return ask.choose(wanted, known, job.writes[0], role, names, again=time > 1)
        except Refused:
            if job.rule in self.by_user:
                return wanted, None  # who names a rule's resources knows the cluster
            raise

    def here(self, job: Job) -> bool:
        """Is the job done where Snakemake runs?"""
        return job.step == "toolchain" or ask.here(self.costs.of(job), self.site.partitions)

    def resources(self, job: Job) -> dict[str, Any]:
        """The same in the words of Snakemake's plugin."""
        wanted, partition = self.asks(job)
        found: dict[str, Any] = {
            "mem_mb": wanted.memory_mb,
            "runtime": wanted.minutes,
            "_cores": wanted.cores,
        }
        found |= {"gpu": wanted.gpus} if wanted.gpus else {}
        if not slurm.used():  # outputs lie on the volume: a pod's own disk stays small
            return found | {"disk_mb": POD_DISK} | (MAKER if wanted.gpus else {})
        found |= {"disk_mb": wanted.disk_mb}
        found |= {"slurm_partition": partition.name} if partition else {}
        found |= {"slurm_account": self.site.account} if self.site.account else {}
        role = ask.role(wanted, self.costs.of(job))
        by_role = {"constraint": self.site.constraints.get(role), "qos": self.site.qos.get(role)}
        by_role["gpu_model"] = self.site.gpu_type if wanted.gpus else ""
        return found | {name: value for name, value in by_role.items() if value}

    def asked(self, job: Job) -> dict[str, Any]:
        """What the job that is done had asked for, to go on record; empty where it was done here."""
        return {} if self.here(job) else dataclasses.asdict(self.asks(job)[0])

    def described(self, job: Job) -> str:
        """What a dry run says that the job would ask."""
        if self.here(job):
            return "  here"
        try:
            wanted, partition = self.asks(job)
        except Refused:  # said already
            return ""
        return f"  asks {wanted}" + (f", partition {partition.name}" if partition else "")

    def stop_where_none_has_it(self, jobs: list[Job]) -> None:
        """Refuse what no partition has, before anything is submitted."""
        if jobs and not slurm.partitions():
            raise Refused(slurm.NONE)
        for job in jobs:
            self.asks(job)

    def take_over(self, job: Job, theirs: Any, found: dict) -> str | None:
        """The run whose SLURM job builds this already, of the same inputs; one of others is cancelled."""
        before = claim.claimed(job.writes[0]) if job.writes else {}
        known = "slurm" in before and before.get("run") != found["run"]
        if not known or not slurm.living([before["slurm"]]):
            return None
        words = f"{job.writes[0]}: SLURM job {before['slurm']} of an earlier run"
        if {**before, "key": found["key"], "inputs": found["inputs"]} == before:
            print(f"{words} builds it already, and goes on for this one", file=sys.stderr)
            self.taken[theirs] = before
            return before["run"]
        print(f"{words} builds it of other inputs, and is cancelled", file=sys.stderr)
        slurm.cancel(before["slurm"])
        return None


def _cluster(dag: Any) -> Cluster | None:
    """Only of the process that decides, once it is known what has to run."""
    session = getattr(dag, "ingot", None)
    return session and session.cluster


def in_the_pod(executor: Any, job: Any) -> str:
    """A pod starts in an empty folder, with none of our variables."""
    known = {"INGOT_RUN": os.environ["INGOT_RUN"], "INGOT_STORE": Store().root}
    known |= {"INGOT_ENVS": toolchains.cache()}
    words = " ".join(f"{name}={shlex.quote(str(word))}" for name, word in known.items())
    return f"cd {shlex.quote(str(executor.workflow.workdir_init))} && export {words}"


def wrote(session: Any, theirs: Any) -> bool:
    """Did the job put all its outputs in place, as its step says?"""
    job = session.job(theirs)
    owner = session.owners.get(job, session.run)
    return all(claim.left(path) and claim.given(path, owner) for path in job.writes)


def resources(job) -> Any:
    """A rule's own, what the forecast asks of the cluster, and what the command line sets; of each try."""
    fresh = job._resources is None
    found = ORIGINAL["resources"].fget(job)
    cluster = _cluster(job.dag)
    if fresh and (granted := os.environ.get("SLURM_CPUS_PER_TASK")) and cluster is None:
        found._cores = int(granted)  # on the node: the step is given what the job was
    if not fresh or cluster is None or not job.output or job.is_local:
        return found
    from snakemake.exceptions import WorkflowError
    from snakemake.iocontainers import ResourceList

    try:
        ours = cluster.resources(job.dag.ingot.job(job))
    except Refused as reason:  # now that config.json is here
        raise WorkflowError(str(reason)) from None
    set_by_user = cluster.by_user.get(job.rule.name, {})
    ours = {name: value for name, value in ours.items() if name not in set_by_user}
    job._resources = ResourceList(fromdict={**found, **ours})
    return job._resources


def is_local(job) -> bool:
    """Also what is done in seconds, and downloads."""
    cluster, local = _cluster(job.dag), ORIGINAL["is_local"].fget(job)
    return local or (cluster is not None and cluster.here(job.dag.ingot.job(job)))


def handle_error(scheduler, job, *arguments, **options) -> None:
    """Try again what more of something helps, or another node; never a step's own error."""
    if cluster := _cluster(scheduler.workflow.dag):
        cause = cluster.causes.pop(job, "step")
        if cause in slurm.AGAIN:
            for ours in scheduler.workflow.dag.ingot.jobs([job]):
                memory, minutes = cluster.more.get(ours, (1, 1))
                times = slurm.AGAIN[cause]
                cluster.more[ours] = (memory * times[0], minutes * times[1])
                try:
                    cluster.asks(ours)
                except Refused as reason:  # the other jobs go on
                    print(f"{reason}; not tried again", file=sys.stderr)
                    job.attempt = job.restart_times + 1
        elif not job.is_group():
            job.attempt = job.restart_times + 1
    ORIGINAL["handle_error"](scheduler, job, *arguments, **options)
