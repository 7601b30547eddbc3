"""Snakemake's own questions, answered: `--report`, `--summary`, `--list-changes` and `--lint`.

From the store's records and the locks: Snakemake keeps no metadata of ours, and knows no toolchain but
conda's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingot.driver.cache.contents import Contents
from ingot.driver.cache.decide import Decision
from ingot.driver.cache.differences import nearest
from ingot.driver.catalogue.job import VOLATILE, Job

FIELDS = {
    "code": ("command", "outputs", "code", "lock"),
    "input": ("inputs",),
    "params": ("params", "wildcards"),
}  # of a key, by Snakemake's word for a change
OURS = {"PYTHON", "ROOT", "sys"}  # of rules/common.smk; what they decide is in the key by `lock`


def install_lint() -> None:
    """Snakemake asks for conda and for params; here a lock names a rule's software, by its digest."""
    from snakemake.linting import Lint
    from snakemake.linting.rules import RuleLinter

    names = RuleLinter.lint_not_used_params.__defaults__
    if names and not names[0] >= OURS:
        RuleLinter.lint_not_used_params.__defaults__ = (names[0] | OURS, *names[1:])

    def lint_missing_software_definition(_, rule: Any) -> Iterator[Any]:
        named = {name for name, _ in (*rule.input._allitems(), *rule.params._allitems())}
        if not rule.norun and not named & {"lock", VOLATILE}:
            yield Lint(
                title="No input `lock`",
                body="The lock of its toolchain is what tells one version of a rule's software from "
                "another: without it a result of the old one is served for the new.",
            )

    RuleLinter.lint_missing_software_definition = lint_missing_software_definition


def changed(contents: Contents, decision: Decision, kind: str) -> list[str]:
    """Outputs that stand and would be built again, since what `--list-changes` names has changed."""
    found = []
    for job in decision.run:
        if job not in contents.keys:
            continue
        now = contents.keys[job][1]
        record = nearest(contents.store, job, now, any_model=True).record
        then = contents.store.config(record).get("fields", now) if record else now
        if any(then[name] != now[name] for name in FIELDS[kind]):
            found += [path for path in job.writes if Path(path).exists()]
    return found


def metadata(contents: Contents, job: Job, path: str, log: str) -> Any:
    """What `--report` and `--summary` ask of an output: how, of what and when it was built.

    A blob's time is the end of the job that gave it first, and a restored file is that blob.
    """
    record = contents.records.get(job)
    if Path(path).exists():
        end = Path(path).stat().st_mtime
    elif record:
        end = record.used
    else:
        return None
    seconds = contents.store.config(record).get("cost", {}).get("seconds", 0.0) if record else 0.0
    from snakemake.persistence import MetadataRecord

    return MetadataRecord(
        rule=job.rule, input=sorted(job.reads), log=[log] if log else [], shellcmd=job.shell,
        job_hash=hash(job), starttime=end - seconds, endtime=end,
    )  # fmt: skip
