"""A job as Ingot sees it: plain values, without any of Snakemake's types."""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

VOLATILE = "volatile"  # the parameter by which a rule says that its outputs are not cached
ASKED = "asked"  # its value where the rule runs whenever its output is asked for
EACH = "each"  # by which a rule names another, whose outputs are the files of its folder


@dataclass(frozen=True)
class Input:
    """The files that a rule names by one role; those without a name come together as role ""."""

    role: str
    paths: tuple[str, ...]
    listed: bool = False  # named as a list: then the files' names may say what they are
    ancient: tuple[str, ...] = ()  # of the paths, those that affect nothing


@dataclass(frozen=True)
class Output:
    """One file or directory that a job writes."""

    role: str
    path: str
    directory: bool = False


@dataclass(eq=False)  # a job is itself: two may read and write the same
class Job:
    """One job of a run.  `shell` is the rule's shell text, still with its fields in braces."""

    rule: str
    shell: str | None = None
    inputs: tuple[Input, ...] = ()
    outputs: tuple[Output, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    wildcards: dict[str, str] = field(default_factory=dict)
    benchmark: str | None = None
    one: tuple[str, str] | None = None  # the rule that EACH names, and its shell text

    @property
    def parts(self) -> list["Job"]:
        """The jobs of one type each that would write the same as the files of this one's folder."""
        if self.one is None:
            return []
        (rule, shell), start = self.one, self.writes[0].removesuffix(".quants")
        return [
            replace(
                self, rule=rule, shell=shell, benchmark=None, one=None,
                outputs=(Output("", f"{start}.{quant}.gguf"),),
                wildcards={**self.wildcards, "quant": quant},
            )
            for quant in self.params["quants"]
        ]  # fmt: skip

    @property
    def step(self) -> str:
        """The script that it runs, or the rule where it runs none of ours."""
        code = next((one.paths[0] for one in self.inputs if one.role == "code"), self.rule)
        return code.rpartition("/")[2].removesuffix(".py")

    @property
    def reads(self) -> list[str]:
        return [path for one in self.inputs for path in one.paths]

    @property
    def writes(self) -> list[str]:
        return [one.path for one in self.outputs]

    @property
    def cached(self) -> bool:
        """Is what it writes decided by its action alone?"""
        return bool(self.outputs) and not self.params.get(VOLATILE)

    @property
    def asked(self) -> bool:
        """Does it run whenever its output is asked for?"""
        return self.params.get(VOLATILE) == ASKED

    def ancient(self, path: str) -> bool:
        """Does `path` affect nothing that the job writes?"""
        return any(path in one.ancient for one in self.inputs)


@dataclass
class Graph:
    """The jobs of a run, and what was asked of it."""

    jobs: list[Job]
    needs: dict[Job, dict[Job, set[str]]] = field(default_factory=dict)  # job: maker: files
    targets: list[Job] = field(default_factory=list)
    target_files: set[str] = field(default_factory=set)
    forced: set[Job] = field(default_factory=set)  # on the command line

    @functools.cached_property
    def _made(self) -> set[str]:
        return {
            path for makers in self.needs.values() for files in makers.values() for path in files
        }

    def maker(self, job: Job, path: str) -> Job | None:
        """The job that makes input `path` of `job`; None when it is a source."""
        if path not in self._made:  # as of each job the sixty files of its code
            return None
        return next((one for one, files in self.needs.get(job, {}).items() if path in files), None)

    def way(self, job: Job, cached: bool = False) -> list[Job]:
        """Every job that makes something on the way to `job`, once; or the cached ones that it rests on, by
        way of cached ones."""

        def makers(one: Job) -> list[Job]:
            return [maker for maker in self.needs.get(one, {}) if maker.cached or not cached]

        found = makers(job)
        for one in found:  # grows while it is walked
            found += [maker for maker in makers(one) if maker not in found]
        return found

    def asked(self) -> set[str]:
        """The files asked for: what the targets write; of one without output, such as `all`, its inputs."""
        found = set(self.target_files)
        for job in self.targets:
            found |= set(job.writes if job.outputs else job.reads)
        return found
