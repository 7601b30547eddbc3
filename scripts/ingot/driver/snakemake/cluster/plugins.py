"""Snakemake's cluster plugins, on Python's path only when the command names one: see envs/README.

Snakemake imports every plugin that it finds, on every start: SLURM's, with pandas, take as long as all
the rest.  `make setup` has Python import this module first, whatever it runs; it does nothing then.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve()
NAMES = {  # of executors and profiles: the toolchain
    "slurm": "slurm",
    "slurm-jobstep": "slurm",
    "kubernetes": "kubernetes",
}
AT_START = "ingot_plugins"  # this module's name, when Python runs it on its start
HEAVY = ("pandas", "numpy")  # imported by the plugin for a report that nobody asked for


def asked(words: list[str]) -> set[str]:
    """The toolchains of the executors and profiles that a Snakemake's command line names."""
    if not any(word.rpartition("/")[2] == "snakemake" for word in words[:4]):
        return set()
    values = {word.partition("=")[2] or word for word in words}
    ends = {value.rstrip("/").rpartition("/")[2] for value in values}
    return {NAMES[name] for name in ends & NAMES.keys()}


def add() -> None:
    """Add to Python's path what this process needs; build it first where it is missing."""
    for name in asked(sys.orig_argv):
        from ingot.base.entry import end_at_start
        from ingot.base.refused import Refused
        from ingot.driver.catalogue import site
        from ingot.driver.toolchains import toolchains

        try:
            site.apply()
            place = toolchains.build(HERE.parents[5], name)
        except Refused as reason:
            end_at_start(f"error: {reason}")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        sys.path.append(
            str(place / "lib" / version / "site-packages")
        )  # last: the driver's own win
        sys.modules.update({heavy: Later(heavy) for heavy in HEAVY if heavy not in sys.modules})
        if name == "kubernetes":
            share()
        for module in [one for one in sys.modules if one.partition(".")[0] == "ingot"]:
            del sys.modules[module]  # a Snakefile brings its own


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


def install() -> None:
    """Have this interpreter run `add` whenever it starts."""
    named = {"__file__": str(HERE), "__name__": AT_START}
    run = f"exec(open({str(HERE)!r}).read(), {named})"
    asked = " or ".join(f"{name!r} in word" for name in sorted(set(NAMES.values())))
    line = f"import sys; any({asked} for word in sys.orig_argv) and {run}"
    place = Path(sysconfig.get_path("purelib"), "ingot-plugins.pth")
    place.write_text(f"{line}\n")


if __name__ == "__main__":
    import sysconfig

    install()
elif __name__ == AT_START:
    add()
