"""Snakemake's jobs and DAG as the plain values (job.py) that Ingot decides by."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ingot.base.refused import one_line
from ingot.driver.catalogue.job import EACH, Graph, Input, Job, Output
from ingot.driver.catalogue.rules.sources import sources_of
from ingot.driver.catalogue.targets import FOLDER


def modules(path: str, root: Path) -> list[str]:
    """A step of ours with what it imports; of a rule of somebody's own the code that it names."""
    if Path(path).parent.resolve() != (root / "scripts").resolve():
        return [path]
    with one_line("error: "):
        return [str(one) for one in sources_of(Path(path))]


def plain(job: Any, root: Path) -> Job:
    """A job of Snakemake's as Ingot sees it: with the modules that its script imports, sixty of them, of
    which Snakemake would ask each time which rule makes them.  `root` is the repository."""
    inputs, unnamed = [], []
    ancient = {str(path) for path in job.input if path.is_ancient}

    def role(name: str, paths: list[str], listed: bool) -> Input:
        kept, old = [], []
        for path in map(str, paths):
            found = modules(path, root) if name == "code" else [path]
            kept += found
            old += found if path in ancient else []
        return Input(name, tuple(kept), listed, tuple(old))

    for name, value in job.input._allitems():
        if name is None:
            unnamed.append(value)
        elif isinstance(value, str):
            inputs.append(role(name, [value], False))
        else:
            inputs.append(role(name, list(value), True))
    if unnamed:
        inputs.append(role("", unnamed, True))
    outputs = [
        Output(name or "", str(path), path.is_directory)
        for name, value in job.output._allitems()
        for path in ([value] if isinstance(value, str) else value)
    ]
    params = {name: value for name, value in job.params._allitems() if name}
    one = proxies(job.rule).get(str(params.get(EACH))) if "quants" in params else None
    return Job(
        rule=own_name(job.rule),
        shell=job.rule.shellcmd,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        params=params,
        wildcards={name: str(value) for name, value in job.wildcards.items()},
        benchmark=str(job.benchmark) if job.benchmark else None,
        one=(params[EACH], one.rule.shellcmd) if one else None,
    )


def own_name(rule: Any) -> str:
    """The rule's name where it is written, whatever `use rule ... as x_*` makes of it."""
    named = proxies(rule).items()
    return next((name for name, proxy in named if proxy.rule is rule), rule.name)


def proxies(rule: Any) -> dict[str, Any]:
    """The rules of the file that a rule is written in, by their names there."""
    return rule.module_globals["rules"]._rules


def graph_of(dag: Any) -> Graph:
    """The DAG of Snakemake's as Ingot sees it, with what the command line forces."""
    session = dag.ingot
    jobs = list(members(dag.jobs))

    def forced(job: Any) -> bool:
        if job in dag.omitforce or not job.output:
            return False
        return job.rule in dag.forcerules or not dag.forcefiles.isdisjoint(job.output)

    return Graph(
        jobs=[session.job(job) for job in jobs],
        needs={
            session.job(job): {
                session.job(maker): set(map(str, files))
                for maker, files in dag.dependencies[job].items()
            }
            for job in jobs
        },
        targets=[session.job(job) for job in dag.targetjobs],
        target_files=set(map(str, dag.targetfiles)),
        forced={session.job(job) for job in jobs if forced(job)},
    )


def members(jobs: Iterable[Any]) -> Iterator[Any]:
    """The jobs, those of groups one by one."""
    for job in jobs:
        yield from job if job.is_group() else [job]


async def stop_on_hidden(dag: Any) -> None:
    """Raise what keeps a rule from making an artifact that is here, such as a source that is missing: the
    artifact would count as a source itself, whatever it was made from."""
    from snakemake import exceptions

    # what Snakemake itself lets pass, where the file is here
    passed = (
        exceptions.MissingRuleException, exceptions.CyclicGraphException, exceptions.PeriodicWildcardError,
    )  # fmt: skip
    made = {path for job in members(dag.jobs) for path in job.output}
    read = {path for job in members(dag.jobs) for path in job.input if path.startswith(FOLDER)}
    for path in sorted(read - made):
        with contextlib.suppress(*passed):
            await dag.update(await dag.file2jobs(path), file=path)
