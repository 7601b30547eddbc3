"""Where Ingot meets SLURM, by snakemake-executor-plugin-slurm 2.8.0: its private names are here.

What each job asks comes from its forecast.  A run that finds the SLURM job of one before it, still
alive, takes it over, or cancels it when the inputs have changed.  However a run ends, its jobs end
too; a job that failed says by which limit, and is tried again only where that helps.
"""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ingot.base import claim
from ingot.driver.snakemake.cluster.ask import Partition

PLUGIN = "snakemake_executor_plugin_slurm"
QUERY = "query_job_status_squeue"  # of the plugin
WAIT = 60.0  # seconds that a command of SLURM may take, and that a cancelled job may take to end
NONE = (
    "--profile slurm: sinfo names no partition that is up, expected a SLURM cluster; run it on a login "
    "node, or without the profile"
)
FIRST = 15.0  # seconds until a cluster that does not answer is none
ALIVE = {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING"}
AGAIN = {"memory": (2, 1), "time": (1, 2), "node": (1, 1)}  # cause: times the memory, the time
STATUS = "ended with status"  # of a step that failed by itself: its log says why
MEMORY = re.compile(r"exceeded memory limit|\boom[ -]?kill|out of memory", re.I)
ORIGINAL: dict[str, Any] = {}  # the plugin's own methods, by name


def used() -> bool:
    """Does this run submit to SLURM?  The plugin is on the path only then; a node's own process, too."""
    return PLUGIN in sys.modules


def call(*words: str, seconds: float = WAIT, errors: bool = False) -> str:
    """What a command of SLURM says; empty, or its `errors`, when it fails or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            start_new_session=True,
        )
        return done.stdout if done.returncode == 0 else done.stderr.strip() if errors else ""
    return ""


@functools.cache
def partitions() -> list[Partition]:
    """What there is; nothing where no cluster answers."""
    return parsed(call("sinfo", "-h", "-e", "-o", "%P|%l|%m|%c|%G|%a", seconds=FIRST))


def parsed(text: str) -> list[Partition]:
    """The partitions that are up, the default one first."""
    found = []
    for line in text.splitlines():
        name, limit, memory, cores, gres, up = line.split("|")
        if up == "up":
            gpus = sum(int(n) for n in re.findall(r"gpu(?::[^:,()]+)?:(\d+)", gres))
            size = int(memory.rstrip("+")), int(cores.rstrip("+"))
            found.append(
                (not name.endswith("*"), Partition(name.rstrip("*"), *size, gpus, minutes(limit)))
            )
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def minutes(limit: str) -> int | None:
    """Of 1:30:00, 2-00:00:00, 30:00 or infinite."""
    if not (found := re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)):
        return None
    days, hours, rest, _ = (int(part or 0) for part in found.groups())
    return (days * 24 + hours) * 60 + rest


def living(ids: Iterable[str]) -> list[str]:
    """Those of these jobs that have not ended."""
    rows = call("squeue", "-h", "-t", "all", "-u", str(os.getuid()), "-o", "%i|%T").splitlines()
    shown = {one: state for one, _, state in (row.partition("|") for row in rows)}
    return [one for one in ids if shown.get(one) in ALIVE]


def cancel(job_id: str) -> None:
    """Cancel a job and wait until it is gone."""
    call("scancel", job_id)
    end = time.monotonic() + WAIT
    while living([job_id]) and time.monotonic() < end:
        time.sleep(0.5)


def install() -> None:
    """Replace the plugin's methods, once per process."""
    executor = sys.modules[PLUGIN].Executor
    methods = (get_account_arg, submit_job, report_job_submission, report_job_error, cancel_jobs)
    for method in () if ORIGINAL else methods:
        name = {"submit_job": "_submit_job"}.get(method.__name__, method.__name__)
        ORIGINAL[method.__name__] = getattr(executor, name)
        setattr(executor, name, method)
    setattr(sys.modules[PLUGIN], QUERY, query)
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def query(_: str) -> str:
    """Also the jobs that were taken over, whose run had another name."""
    return f"squeue --format='%i|%T' --states=all --noheader --user={os.getuid()}"


def get_account_arg(_, job: Any):
    """The account that is asked for, or else SLURM's own default for the user."""
    account = job.resources.get("slurm_account")
    yield f" -A '{account}'" if account else ""


def submit_job(executor: Any, job: Any) -> None:
    taken = executor.workflow.dag.ingot.cluster.taken.pop(job, None)
    if not taken:
        ORIGINAL["submit_job"](executor, job)
        return
    from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

    executor.run_job_pre(job)
    info = SubmittedJobInfo(job, taken["slurm"], aux={"slurm_logfile": Path(taken["log"])})
    executor.report_job_submission(info)


def report_job_submission(executor: Any, info: Any) -> None:
    """A later run finds this one's jobs by what stands in their claims."""
    session = executor.workflow.dag.ingot
    more = {"slurm": info.external_jobid, "log": str(info.aux["slurm_logfile"])}
    session.cluster.submitted.append(str(info.external_jobid))
    for path in session.job(info.job).writes:
        claim.add(path, more)
    ORIGINAL["report_job_submission"](executor, info)


def report_job_error(executor: Any, info: Any, msg: str | None = None, **more: Any) -> None:
    session, words = executor.workflow.dag.ingot, (msg or "").partition("\n")[0]
    if info.external_jobid:
        log = Path((info.aux or {}).get("slurm_logfile", "/dev/null"))
        cause, found = failure(info.external_jobid, log)
        words = found if cause != "unknown" else words
        session.cluster.causes[info.job] = cause
    ORIGINAL["report_job_error"](executor, info, words, **more)


def failure(job_id: str, log: Path) -> tuple[str, str]:
    """Why a job ended: `memory`, `time`, `node`, `cancelled`, `step` or `unknown`; and that in a line."""
    shown = call("scontrol", "show", "job", job_id)
    if not shown:
        return "unknown", ""
    told = dict(re.findall(r"(\w+)=(\S+)", shown))
    state, node = told.get("JobState", "unknown"), told.get("NodeList", "")
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    telling = next((line for line in lines if MEMORY.search(line)), "")
    if state == "OUT_OF_MEMORY" or telling:
        asked = re.search(r"mem=(\w+)", shown)
        cause, words = "memory", f"more memory than the {asked[1] if asked else '?'} it asked for"
        if used := re.search(r"memory limit \((\d+) > \d+\)", telling):
            words += f": {int(used[1]) / 1e6:,.0f} MB"
    elif state == "TIMEOUT":
        cause, words = "time", f"longer than the {told.get('TimeLimit')} it asked for"
    elif state in ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED"):
        cause, words = "node", f"its node failed ({state})"
    elif state == "CANCELLED":
        cause, words = "cancelled", "cancelled by somebody else"
    else:
        cause, words = "step", f"{STATUS} {told.get('ExitCode', '?').partition(':')[0]}"
    return cause, f"SLURM job {job_id} on {node or 'no node'}: {words}"


def cancel_jobs(executor: Any, _: list[Any]) -> None:
    """All of this run, those just being submitted too, whatever is pressed meanwhile.

    Snakemake's own list is empty while it asks SLURM what became of the jobs.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError):
            signal.signal(number, signal.SIG_IGN)
    executor._job_submission_executor.shutdown(wait=True)
    submitted = executor.workflow.dag.ingot.cluster.submitted
    ids = left = living(submitted)
    call("scancel", "--name", executor.run_uuid)
    if submitted:
        call("scancel", *submitted)
    end = time.monotonic() + WAIT / 2
    while (left := living(left)) and time.monotonic() < end:
        time.sleep(0.5)
    state = f"{len(left)} are not gone yet: {' '.join(left)}" if left else "none is left"
    print(f"stopped: SLURM jobs cancelled: {len(ids)}, {state}", file=sys.stderr, flush=True)
