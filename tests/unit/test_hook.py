"""The names of Snakemake that the store rests on.  When one of these fails, read hook.py."""

import inspect
import re
import threading

import pytest
import snakemake
import snakemake.api  # first: the modules below import each other
from snakemake.common import Rules
from snakemake.dag import DAG
from snakemake.io import IOCache, flag
from snakemake.iocontainers import Namedlist
from snakemake.jobs import Job, Reason
from snakemake.linting.rules import RuleLinter
from snakemake.logging import DefaultFilter, LoggerManager
from snakemake.persistence import PersistenceBase
from snakemake.rules import Rule
from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.settings.enums import ChangeType
from snakemake.workflow import Workflow
from snakemake_interface_logger_plugins.common import LogEvent

from ingot.driver.snakemake import asks as snakemake_asks
from ingot.driver.snakemake import hook as hook
from ingot.driver.snakemake import memory, values
from ingot.driver.snakemake import says as says
from ingot.driver.snakemake.cluster import jobs

PARAMETERS = {
    "init": "self progress",
    "update_needrun": "self create_inventory",
    "postprocess": "self update_needrun update_incomplete_input_expand_jobs check_initial",
    "finish": "self job update_checkpoint_dependencies",
    "check_incomplete": "self",
    "check_and_touch_output": "self job wait ignore_missing_output no_touch wait_for_local "
    "check_output_mtime",
    "get_outputs_with_changes": "self change_type include_needrun",
}
ATTRIBUTES = (
    "_needrun", "_n_until_ready", "_ready_jobs", "_running", "_finished", "_reason", "_len",
    "_dependencies", "targetjobs", "targetfiles", "forcerules", "forcefiles", "omitforce",
)  # fmt: skip


def method(name):
    return hook.ORIGINAL.get(name) or getattr(DAG, name)


def test_snakemake_is_the_version_that_the_hook_was_written_for():
    assert snakemake.__version__ == hook.VERSION, (
        f"hook.py was written for Snakemake {hook.VERSION}; check each name below, then its VERSION"
    )


def method_of_job(name):
    return hook.ORIGINAL.get(name) or getattr(Job, name)


def method_of_scheduler():
    return hook.ORIGINAL.get("run") or JobScheduler.run


def method_of_persistence():
    return hook.ORIGINAL.get("metadata") or PersistenceBase.metadata


@pytest.mark.parametrize("name", PARAMETERS)
def test_snakemake_still_calls_this_method_so(name):
    found = " ".join(inspect.signature(method(name)).parameters)
    assert found == PARAMETERS[name], f"DAG.{name} changed: hook.{name} replaces it"
    assert inspect.iscoroutinefunction(getattr(hook, name)), f"hook.{name} is awaited by Snakemake"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_snakemake_still_keeps_its_plan_here(name):
    source = inspect.getsource(DAG.__init__)
    assert re.search(rf"self\.{name}\b.* = ", source), f"DAG.{name} is gone or renamed"


def test_snakemake_still_has_the_rest():
    assert inspect.iscoroutinefunction(method("finish")), "DAG.finish is no coroutine any more"
    assert isinstance(Workflow.is_main_process, property), "hook.decides asks it who decides"
    assert isinstance(Workflow.main_snakefile, property), "hook asks whether all rules are ours"
    assert "exists_local" in inspect.getsource(IOCache), (
        "Session.restore clears what is known of files"
    )
    assert "_rules" in vars(Rules()), "values.own_name looks there for a rule's own name"
    asked = re.findall(r"await dag\.(\w+)\(", inspect.getsource(values))
    assert {*asked} == {"file2jobs", "update"} and all(
        inspect.iscoroutinefunction(getattr(DAG, name)) for name in asked
    )
    assert "module_globals = " in inspect.getsource(Workflow.rule), (
        "hook.format_wildcards reads them"
    )
    words = list(inspect.signature(method_of_job("format_wildcards")).parameters)
    assert words == ["self", "string", "variables"], "Job.format_wildcards: hook replaces it"
    assert hasattr(JobScheduler, "exit_gracefully"), "what Snakemake does on SIGTERM"
    words = list(inspect.signature(method_of_scheduler()).parameters)
    assert words == ["self", "jobs", "executor"], "JobScheduler.run: hook.run_jobs replaces it"
    whole = hook.ORIGINAL.get("schedule") or JobScheduler.schedule
    assert list(inspect.signature(whole).parameters) == ["self"], "hook.schedule_all replaces it"
    assert "get_names" in vars(Reason), "hook._reason puts its own words there"
    assert list(inspect.signature(method_of_persistence()).parameters) == ["self", "target"], (
        "PersistenceBase.metadata: hook.metadata replaces it"
    )
    execute = inspect.getsource(Workflow.execute)
    assert "self.persistence.lock()" in execute and "check_initial=True" in execute, (
        "restoring rests on this: postprocess(check_initial=True) is called once, under the lock"
    )


@pytest.mark.parametrize("name", ["input", "output", "params", "wildcards", "benchmark", "rule"])
def test_a_job_of_snakemake_still_has_what_ours_is_made_of(name):
    assert hasattr(Job, name), f"Job.{name} is gone or renamed: values.plain reads it"


def test_what_snakemake_says_still_comes_by_these_names():
    events = {event.value for event in LogEvent}
    assert events > says.PARAGRAPHS, "an event is renamed: its paragraph is on the terminal again"
    for name in ("job_info", "job_error"):
        assert name in events and hasattr(says.Lines, f"_{name}")
    assert 'name = "DefaultStreamHandler"' in inspect.getsource(LoggerManager)
    assert vars(DefaultFilter)["__annotations__"].keys() >= {"printshellcmds", "verbose", "dryrun"}
    assert {one.name.lower() for one in ChangeType} == set(snakemake_asks.FIELDS)
    names = RuleLinter.lint_not_used_params.__defaults__[0]
    assert {"input", "wildcards"} <= names and hasattr(
        RuleLinter, "lint_missing_software_definition"
    )


def test_what_a_cluster_asks_still_goes_by_these_names():
    for name in ("resources", "is_local"):
        original = jobs.ORIGINAL.get(name) or getattr(Job, name)
        assert isinstance(original, property), f"Job.{name}: snakemake/cluster/jobs.py replaces it"
    source = inspect.getsource(jobs.ORIGINAL.get("handle_error") or JobScheduler._handle_error)
    assert "job.restart_times > job.attempt - 1" in source, "jobs.handle_error decides by these"
    assert '"_resources"' in inspect.getsource(Job), "jobs.resources sets them"


def test_what_runs_at_once_still_goes_by_these_names():
    original = memory.ORIGINAL.get("scheduler_resources") or Job.scheduler_resources
    assert isinstance(original, property), (
        "Job.scheduler_resources: snakemake/memory.py replaces it"
    )
    source = inspect.getsource(JobScheduler)
    assert (
        "for name in self.global_resources" in source and "self.resources[name] -= sum(" in source
    ), "memory.limit adds a name to both"
    assert source.count("job.scheduler_resources") >= 2, "memory.asked says it"
    assert isinstance(Workflow.local_exec, property), "memory.room asks it who works"


def test_named_files_still_come_with_their_names_and_flags():
    found = Namedlist(fromdict={"code": "a.py"})
    assert list(found._allitems()) == [("code", "a.py")], "Namedlist._allitems changed"
    ancient = snakemake.io.IOFile(flag("a", "ancient"), rule=None)
    assert ancient.is_ancient and not ancient.is_directory, "an input's flags are read otherwise"
    assert "self.shellcmd" in inspect.getsource(Rule), "a rule's shell text lies elsewhere"


def test_a_run_that_is_told_to_end_while_it_holds_a_lock_ends(monkeypatch):
    lock, ended = threading.Lock(), threading.Event()

    def theirs(*_):
        with lock:
            ended.set()

    monkeypatch.setitem(hook.ORIGINAL, "exit_gracefully", theirs)
    monkeypatch.setattr(hook.processes, "stop_below", lambda _: None)
    with lock:  # as the main thread does, when the signal comes
        hook.exit_gracefully(None)
    assert ended.wait(5)
