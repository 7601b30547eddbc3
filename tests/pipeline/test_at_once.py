"""How many jobs run at once on one machine: what its memory holds, by their forecasts."""

import re

import pytest

TWO = ("artifacts/demo.bf16.gguf", "artifacts/demo.f32.gguf")  # of 40 MB each, by forecast
SIDE_BY_SIDE = ["start", "start", "done", "done"]
IN_TURN = ["start", "done", "start", "done"]
OWN = """
rule both:
    input: "a.txt", "b.txt"
rule own:
    output: "{n,[ab]}.txt"
    resources: mem_mb=90000000
    params: heap=lambda wildcards, resources: resources.mem_mb
    shell: "sleep 1; echo {params.heap} {resources.mem_mb} >{output}"
"""


def order(said):
    """start and done lines of the two, in their order."""
    return re.findall(r"^(start|done) +artifacts/demo\.(?:bf16|f32)\.gguf ", said, re.M)


@pytest.mark.parametrize("words, wanted", [
    ([], SIDE_BY_SIDE),
    (["--resources", "mem_mb=60"], IN_TURN),
    (["--resources", "mem=5MB"], IN_TURN),  # less than one takes
    (["--resources", "mem_mb=60", "--default-resources", "mem_mb=1"], IN_TURN),  # as profiles have them
    (["--resources", "mem_mb=60", "--set-resources", "safetensors_to_gguf:mem_mb=10"], SIDE_BY_SIDE),
    (["--cores", "1"], IN_TURN),
    (["-j", "1"], IN_TURN),
])  # fmt: skip
def test_jobs_that_do_not_fit_side_by_side_run_in_turn_and_the_forecast_knows(
    clone, build, words, wanted
):
    folder, own = clone("a"), "safetensors_to_gguf:mem_mb=10" in words
    forecast = build(folder, "-n", *words, "--", *TWO)
    (memory,) = re.findall(r"^takes about .*?, (\d+) MB of memory", forecast, re.M)
    assert int(memory) == (10 if own else 40) * (2 if wanted == SIDE_BY_SIDE else 1), forecast
    said = build(folder, *words, "--", *TWO)
    assert order(said) == wanted, said


def test_a_small_machine_does_one_after_another_and_says_so(clone, tmp_path, snakemake):
    """As in a control group of 60 MB, and of 30: by the files that the kernel has."""
    for megabytes, said in (
        (60, "60 MB of memory are free: jobs that take more together run in turn"),
        (30, "takes some 40 MB of memory, and this machine has 30 MB; the kernel may end it"),
    ):
        groups = tmp_path / f"groups{megabytes}"
        groups.mkdir()
        (groups / "memory.max").write_text(f"{megabytes * 10**6}\n")
        patch = f"""
from pathlib import Path
from ingot.base import machine
machine.GROUPS, machine.OWN = Path({str(groups)!r}), Path("/none")
"""
        folder = clone(f"m{megabytes}")
        snakefile = folder / "Snakefile"
        snakefile.write_text(patch + snakefile.read_text())
        place = {"INGOT_STORE": str(tmp_path / f"store{megabytes}")}
        words = ("-s", snakefile, "--", *TWO)
        done = snakemake(folder, *words[:2], "-n", *words[2:], environment=place)
        assert done.returncode == 0 and said in done.stderr, done.stderr
        done = snakemake(folder, *words, environment=place)
        assert done.returncode == 0 and said in done.stderr, done.stderr
        assert order(done.stderr) == IN_TURN


def test_what_a_rule_of_ones_own_says_of_memory_is_as_its_author_wrote_it(clone, build):
    """A limit under Snakemake's own name would cap it, in the shell and not in the key."""
    folder = clone("a")
    with (folder / "Snakefile").open("a") as file:
        file.write(OWN)
    said = build(folder, "--", "both")
    assert re.findall("^(start|done) +[ab].txt", said, re.M) == SIDE_BY_SIDE, said
    assert (folder / "a.txt").read_text() == "90000000 90000000\n"
