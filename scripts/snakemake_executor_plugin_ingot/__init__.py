"""Has Snakemake find the plugins of the cluster that its command line names; as an executor it is `local`.

Snakemake imports every plugin that it finds, on every start: SLURM's, with pandas, take as long as all the
rest.  So they are in toolchains of their own.  Snakemake finds this plugin by itself, and while it looks
through Python's path (pkgutil.iter_modules), this adds the toolchain to the path's end.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from snakemake.executors.local import Executor, common_settings

__all__ = ["Executor", "common_settings"]

ROOT = Path(__file__).resolve().parents[2]
NAMES = {  # of executors and profiles: the toolchain
    "slurm": "slurm",
    "slurm-jobstep": "slurm",
    "kubernetes": "kubernetes",
}
HEAVY = ("pandas", "numpy")  # imported by the plugin for a report that nobody asked for


def asked(words: list[str]) -> set[str]:
    """The toolchains of the executors and profiles that a Snakemake's command line names."""
    if not any(word.rpartition("/")[2] == "snakemake" for word in words[:4]):
        return set()
    values = {word.partition("=")[2] or word for word in words}
    ends = {value.rstrip("/").rpartition("/")[2] for value in values}
    return {NAMES[name] for name in ends & NAMES.keys()}


def add(name: str) -> None:
    """Add a toolchain to Python's path; build it first where it is missing."""
    before = set(sys.modules)
    from ingot.base import entry
    from ingot.base.refused import Refused
    from ingot.driver.catalogue import site
    from ingot.driver.toolchains import toolchains

    try:
        site.apply()
        place = toolchains.build(ROOT, name)
    except Refused as reason:
        entry.end(f"error: {reason}")
    for module in set(sys.modules) - before:
        if module.partition(".")[0] == "ingot":
            del sys.modules[module]  # a Snakefile brings its own
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sys.path.append(str(place / "lib" / version / "site-packages"))  # last: the driver's own win
    sys.modules.update({heavy: Later(heavy) for heavy in HEAVY if heavy not in sys.modules})
    if name == "kubernetes":
        share()


def share() -> None:
    """The plugin for Kubernetes takes it that nothing is shared; our pods mount one volume."""
    plugin = importlib.import_module("snakemake_executor_plugin_kubernetes")
    for setting in ("implies_no_shared_fs", "job_deploy_sources"):
        object.__setattr__(plugin.common_settings, setting, False)


class Later(ModuleType):
    """A module that is imported when something of it is used; importlib's own is at `import` already."""

    def __getattr__(self, name: str):
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


for name in asked(sys.orig_argv):
    add(name)
