"""A format is one row: what is read from it, what is checked, and that nothing else is needed."""

import json
import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from ingot.driver.catalogue import targets
from ingot.driver.catalogue.formats import rows
from ingot.driver.catalogue.formats.table import CHART
from ingot.driver.catalogue.job import Input, Job, Output
from ingot.driver.catalogue.model import Model
from ingot.driver.catalogue.schema import load

ROW = '''"""The row of tensor lists."""

from ingot.driver.catalogue.formats.table import Cost, Format, read_through, whole_model


def why_not(target):
    return "a list of one tensor is too short" if target.variant == "short" else None


ROWS = (
    Format(
        name="list",
        what="the names of the tensors",
        steps={"list_tensors": read_through(Cost(7.0, 0), size=1234)},
        sizes=whole_model,
        whole="a list is of the whole model",
        variants=lambda catalogue, tp: ["short"],
        why_not=why_not,
        no_record="a list is verified by reading it",
        chart="other",
    ),
)
'''
RULE = """

rule list_tensors:
    input:
        code=code("list_tensors.py"),
        lock=lock("convert"),
        weights=inputs.weights,
    output:
        "artifacts/{model}.list",
    log:
        "logs/list_tensors/{model}.log",
    benchmark:
        "logs/list_tensors/{model}.tsv"
    shell:
        "{sys.executable:q} {input.code[0]:q} --checkpoint {input.weights:q} --list {output:q} >{log:q}"
"""
INGOT = ("-m", "ingot.driver.commands.cli")
STEP = '''"""List the tensors of a checkpoint.  Runs in the driver's environment."""

from pathlib import Path
from typing import Annotated

from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.base.atomic import replacing
from ingot.base.options import step


def list_tensors(checkpoint: Checkpoint, list: Annotated[Path, "the file to write"]) -> None:
    with replacing(list) as partial:
        partial.write_text("\\n".join(read_checkpoint(checkpoint)) + "\\n")


if __name__ == "__main__":
    step(list_tensors)
'''


@pytest.fixture(scope="module")
def catalogue():
    return load(ROOT)


def test_a_new_format_is_a_row_a_line_a_rule_and_a_script(clone, build, store):
    folder = clone("a")
    formats = folder / "scripts/ingot/driver/catalogue/formats"
    (formats / "listing.py").write_text(ROW)
    registry = (formats / "rows.py").read_text()
    line = "from ingot.driver.catalogue.formats import listing\n"
    more = re.sub(r"(\*\w+\.ROWS),?\s*\)", r"\1, *listing.ROWS)", registry)
    assert more != registry
    (formats / "rows.py").write_text(more.replace("\nfrom ", f"\n{line}from ", 1))
    with (folder / "rules/gguf.smk").open("a") as file:
        file.write(RULE)
    (folder / "scripts/list_tensors.py").write_text(STEP)

    def python(*words):
        return subprocess.run(
            [sys.executable, *words], cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder / "scripts")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert "artifacts/demo.list" in python(*INGOT, "targets", "demo").stdout.splitlines()
    planned = json.loads(python(*INGOT, "plan", "--json", "artifacts/demo.list").stdout)["build"]
    (row,) = planned["jobs"]
    assert (row["rule"], row["seconds"], row["disk"]) == ("list_tensors", 7.0, 1234)
    build(folder, "--", "artifacts/demo.list")
    assert "model.norm.weight" in (folder / "artifacts/demo.list").read_text()
    done = python("-c", QUESTIONS, *REFUSED)
    assert done.stdout.splitlines() == [*REFUSED.values(), "list"], done.stderr


REFUSED = {
    "demo_tp2.list": "a list is of the whole model",
    "demo.short.list": "a list of one tensor is too short",
    "demo.long.list": "unknown variant long, expected one of short",
    "demo.list.verified.json": "a list is verified by reading it",
}
QUESTIONS = """
import sys; from pathlib import Path
from ingot.driver.catalogue import schema, targets; from ingot.driver.catalogue.formats import rows
catalogue, text = schema.load(Path()), Path("Snakefile").read_text()
print(*(targets.why_not(f"artifacts/{name}", catalogue) for name in sys.argv[1:]), sep="\\n")
print(*(row.name for row in rows.OFFERED if f".{row.name}" not in text))  # what the documents lack
"""
DOCUMENTS = ("docs/targets.md", "Snakefile", "artifacts/README.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_format_is_in_the_table_of_each_document_and_no_other(document):
    text = (ROOT / document).read_text()
    lines = [line for line in text.splitlines() if re.match(r"(\| `|    )(artifacts/)?M[._]", line)]
    named = set()
    for line in lines:
        name = re.search(r"M[^`\s,|]*", line)[0].rstrip("/")
        named.add(re.sub(r"^M(_tp\w+)?(\.(bf16|q8_0|gfx942|fp8|w4a16_gptq|rank0|HW))?\.", "", name))
    named -= {row.name for row in rows.ROWS if row.intermediate}
    # config.json stands beside the program that it belongs to
    assert named | {"config.json"} == {row.name for row in rows.OFFERED}


def test_every_step_that_a_rule_runs_has_a_row():
    scripts = {path.stem for path in (ROOT / "scripts").glob("*.py")}
    by_command = {"answer_question", "measure_speed", "stream_shards"}  # ask, speed, stream
    assert set(rows.STEPS) - {"toolchain", "publish"} == scripts - by_command


def test_every_row_is_drawn_and_says_why_it_has_no_record():
    for row in rows.ROWS:
        assert row.chart in CHART and row.chart_of_ranks in ("", *CHART)
        assert row.intermediate or bool(row.record) != bool(row.no_record), row.name
        assert set(row.gpus) <= set(row.steps)


def test_the_bytes_of_every_target_are_drawn_as_its_rows(catalogue):
    drawn = {target: rows.chart_of(target) for target in targets.legal(catalogue)}
    assert drawn["artifacts/demo.irpa"] == "irpa" and drawn["artifacts/demo_tp2.irpa"] == "ranks"
    assert drawn["artifacts/demo_tp2.triton"] == drawn["artifacts/demo_tp2.trtllm"] == "engine"
    assert drawn["artifacts/demo_tp2.trtllm-ckpt"] == "engine"
    assert rows.chart_of("artifacts/llama8b.hf/config.json") == "checkpoint"
    assert rows.chart_of("artifacts/demo.gguf.verified.json") == "other"


@pytest.mark.parametrize(
    "step, tp, pp, gpus",
    [("build_engine", 2, 1, 1), ("verify_triton", 2, 2, 4), ("compile_vmfb", 8, 1, 0)],
)
def test_gpus_of_a_step(step, tp, pp, gpus, catalogue):
    entry = {**catalogue["models"]["demo"], "trtllm": {"pp": pp}}
    assert rows.gpus(step, entry, tp) == gpus


def test_a_job_without_a_script_is_known_by_its_rule():
    assert Job("toolchain").step == "toolchain"
    code = Input("code", ("../scripts/shard_irpa.py", "x.py"), listed=True)
    assert Job("shard_irpa_tp4", inputs=(code,)).step == "shard_irpa"


def test_the_archives_of_a_set_are_forecast_to_the_byte(catalogue):
    paths = [f"artifacts/demo_tp2{part}.irpa" for part in ("", ".rank0", ".rank1")]
    code = Input("code", ("scripts/shard_irpa.py",))
    job = Job("shard_irpa_tp2", inputs=(code,), outputs=tuple(Output("", path) for path in paths))
    work = rows.STEPS["shard_irpa"](job, Model("demo", catalogue, ROOT))
    assert sum(work.files.values()) == 11_591_680


def test_what_is_offered_has_a_rule_that_is_included():
    """A reader's `ingot targets` offered what no included rule makes."""
    included = re.findall(r'^include: "(rules/.*)"$', (ROOT / "Snakefile").read_text(), re.M)
    assert sorted(included) == sorted(
        f"rules/{path.name}" for path in (ROOT / "rules").glob("*.smk")
    )
    text = "".join((ROOT / path).read_text() for path in included)
    for row in rows.OFFERED:
        assert re.search(rf"artifacts/[^\"]*\.{re.escape(row.name)}\"", text), row.name
