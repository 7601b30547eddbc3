"""Every format there is, in the order of the data.  A new one: one row in a file here, one line below."""

import re

from ingot.driver.catalogue.formats import (
    checkpoint,
    gguf,
    iree,
    onnx,
    quantised,
    serving,
    tensorrt,
)
from ingot.driver.catalogue.formats.table import Cost, Format, Step, Work, written
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model
from ingot.driver.toolchains import toolchains

ROWS = (
    *checkpoint.ROWS,
    *gguf.ROWS,
    *quantised.ROWS,
    *iree.ROWS,
    *tensorrt.ROWS,
    *onnx.ROWS,
    *serving.ROWS,
)
FORMATS: dict[str, Format] = {row.name: row for row in ROWS}
OFFERED = tuple(row for row in ROWS if not row.intermediate)
FINAL = tuple(row.name for row in ROWS if row.final)
RECORD, PUBLISHED = ".verified.json", ".published.json"
STEPS: dict[str, Step] = {step: work for row in ROWS for step, work in row.steps.items()}
VARIES = {step: why for row in ROWS for step, why in row.varies.items()}


def toolchain(job: Job, model: Model) -> Work:
    """By envs/sizes.json, or next to nothing where it is built already."""
    name, (mark,) = job.params["name"], job.writes
    if (toolchains.place(model.root, name) / "ready").exists():
        return Work(Cost(0.4), 0, {mark: 0})
    found = toolchains.size(model.root, name)
    if found is None:
        return Work(Cost(60), 0, {mark: 0})
    return Work(Cost(found.seconds), 0, {mark: found.disk}, download=found.download)


STEPS |= {"toolchain": toolchain, "publish": written(Cost(5), 500)}
_ENDINGS = sorted(FORMATS, key=len, reverse=True)  # .trtllm-ckpt before .trtllm


def row_of(path: str) -> Format | None:
    """The row of an artifact's path; None of a record, and of what is no artifact."""
    if re.search(r"\.hf/[^/]+$", path):
        return FORMATS["hf"]
    return next((FORMATS[name] for name in _ENDINGS if path.endswith(f".{name}")), None)


def chart_of(path: str) -> str:
    """The key of CHART that a path's bytes are drawn as."""
    row = row_of(path)
    if row is None:
        return "other"
    return row.chart_of_ranks if row.chart_of_ranks and re.search(r"_tp\d", path) else row.chart


def gpus(step: str, entry: dict, tp: int) -> int:
    """How many GPUs a job of `step` needs, for a model's entry of the catalogue at a size."""
    needs = next((row.gpus[step] for row in ROWS if step in row.gpus), None)
    return needs(entry, tp) if needs else 0
