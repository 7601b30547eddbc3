"""What a person reads of a run: a line per job, why one failed, and what Snakemake's questions answer."""

import json
import re

import pytest

import checkpoints
from conftest import IRPA, lasting, ran

GGUF = "artifacts/demo.gguf"


def edited(folder, path, old, new):
    text = (folder / path).read_text()
    assert old in text
    (folder / path).write_text(text.replace(old, new, 1))


def test_a_job_is_a_line_when_it_starts_and_a_line_when_it_ends(clone, build):
    said = build(clone("a")).splitlines()
    assert f"start    {GGUF}  (safetensors_to_gguf)" in said
    done = re.compile(rf"done     {GGUF}  \(\d+\.\d s, 11\.6 MB, 2 of 3\)")
    assert [line for line in said if done.fullmatch(line)]
    assert said[1].startswith("plan     3 jobs: ")
    assert said[-1].startswith(f"built    {IRPA}  (3 jobs in ")
    assert len(lasting("\n".join(said))) <= 10, said


def test_a_failed_job_is_a_few_lines_what_and_why_and_where_its_log_is(clone, build):
    folder = clone("a")
    checkpoints.of_another_size(folder / "models/demo")
    said = build(folder, "--", GGUF, fails=True)
    after = said.partition(f"start    {GGUF}")[2].strip().splitlines()[1:]
    shard = "models/demo/model-00001-of-00002.safetensors"
    reason = f"{shard}: {checkpoints.OTHER_SIZE} by config.json; the two do not belong together"
    assert after[0] == f"failed   {GGUF}: {reason}"
    assert after[1] == "log      logs/safetensors_to_gguf/demo.log"
    assert len(after) == 4, after
    own = next(folder.glob(".snakemake/log/*.log")).read_text()
    assert "Error in rule safetensors_to_gguf" in own, "Snakemake's own words are in its log"


def test_a_key_of_config_json_acts_on_no_terminal(clone, build):
    """A line of a step, said of a key that neither Ingot nor transformers reads."""
    folder = clone("a")
    odd = '"\\u001b[2J\\n::error::x": 1, '
    edited(folder, "models/demo/config.json", "{", "{" + odd)
    said = build(folder, "--", GGUF, GITHUB_ACTIONS="true")
    assert "\x1b" not in said and "neither Ingot nor transformers reads this" in said
    assert not [line for line in said.splitlines() if line.lstrip().startswith("::error::x")]


def test_a_step_that_was_killed_says_by_what_and_shows_the_end_of_its_log(clone, build):
    folder = clone("a")
    edited(
        folder,
        "scripts/safetensors_to_gguf.py",
        'if __name__ == "__main__":',
        'if __name__ == "__main__":\n    print("the last words", flush=True)\n'
        "    import os; os.kill(os.getpid(), 9)",
    )
    said = build(folder, "--", GGUF, fails=True)
    assert "safetensors_to_gguf was ended by SIGKILL, as the kernel does where memory runs" in said
    assert "    the last words" in said and "CalledProcessError" not in said


def test_p_shows_what_snakemake_says_itself(clone, build):
    said = build(clone("a"), "-n", "-p", "--", GGUF)
    assert "rule safetensors_to_gguf:" in said and "--pre-tokenizer" in said


def test_lint_finds_nothing_here_and_a_rule_without_a_lock(clone, build):
    folder = clone("a")
    assert "Congratulations" in build(folder, "--lint")
    with (folder / "rules/gguf.smk").open("a") as file:
        file.write(
            '\n\nrule bare:\n    output:\n        "bare",\n    shell:\n        "touch {output}"\n'
        )
    said = build(folder, "--lint", fails=True)
    assert said.count("    * ") == 2 and "No input `lock`" in said and "No log directive" in said


CHANGES = {
    "code": ("scripts/safetensors_to_gguf.py", '"of the matrices"', '"of each matrix"'),
    "input": ("models/demo/generation_config.json", "{", '{"x": 1, '),
    "params": ("models.yaml", "name: Ingot Demo", "name: Another Demo"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_list_changes_names_what_stands_and_would_be_built_anew(kind, built, build):
    folder = built("a")
    build(folder, "--", GGUF)
    edited(folder, *CHANGES[kind])
    for asked in CHANGES:
        said = build(folder, "--list-changes", asked, "--", GGUF).splitlines()
        assert (GGUF in said) == (asked == kind), said


def test_a_report_has_the_jobs_of_the_store_with_their_times(built, build, store):
    folder = built("a")
    said = build(folder, "--report", "report.html", "--", IRPA, GGUF)
    assert "Missing metadata" not in said and not ran(said)
    page = (folder / "report.html").read_text()
    rows = [json.loads(row) for row in re.findall(r'\{"rule": "\w+", "runtime": [\d.]+\}', page)]
    found = {row["rule"]: row["runtime"] for row in rows}
    assert found.keys() >= {"safetensors_to_gguf", "gguf_to_irpa"}
    assert 0 < found["gguf_to_irpa"] < 60
