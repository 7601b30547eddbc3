"""Many small jobs on SLURM: CPU seconds per job, of the head and of the nodes, beside the plain plugin.

    .venv/bin/python bench/small_jobs.py [--jobs 200] [--json]

Each job converts the demo model under another name.  Ingot does what takes seconds where it runs itself;
INGOT_SUBMIT=all submits it, too.  The plain plugin runs the same script from a rule of its own.  Needs
Debian's SLURM and root; the nodes' share is what the whole machine took, less the head's: run it alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/doubles")]

import slurm  # noqa: E402
from checkout import checkout  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402

ENTRY = {
    "path": "models/demo", "architecture": "LlamaForCausalLM", "pre_tokenizer": "llama-bpe",
    "license": "apache-2.0", "tp": [1], "hardware": "cpu",
}  # fmt: skip
PLAIN = """
rule all:
    input: [f"artifacts/m{{n}}.gguf" for n in range({jobs})]
rule convert:
    output: "artifacts/m{{n}}.gguf"
    shell:
        "{python} {root}/scripts/safetensors_to_gguf.py --checkpoint {files} --dtype f16 "
        "--name {{wildcards.n}} --pre-tokenizer llama-bpe --license apache-2.0 --gguf {{output}}"
"""
FLAGS = (
    "--executor", "slurm", "--jobs", "50", "--latency-wait", "60", "--slurm-status-command", "squeue",
    "--slurm-init-seconds-before-status-checks", "5", "--default-resources", "mem_mb=700", "runtime=10",
)  # fmt: skip


def machine() -> float:
    """CPU seconds of all processes since the start."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def run(folder: Path, cluster: slurm.Slurm, command: list, jobs: int, **environment) -> dict:
    before, submitted, start = machine(), cluster.submitted(), time.monotonic()
    process = subprocess.Popen(
        list(map(str, command)), cwd=folder, stdout=(folder / "said").open("w"), stderr=subprocess.STDOUT,
        env={**os.environ, **cluster.environment, "INGOT_STORE": str(folder / "store"), **environment},
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    made = len(list(folder.glob("artifacts/m*.gguf")))
    if status or made != jobs:
        sys.exit(f"{folder}: {made} of {jobs} built:\n{(folder / 'said').read_text()[-2000:]}")
    head = used.ru_utime + used.ru_stime
    return {
        "head": head / jobs, "nodes": max(0.0, machine() - before - head) / jobs,
        "submitted": cluster.submitted() - submitted, "seconds": time.monotonic() - start,
    }  # fmt: skip


def catalogue(folder: Path, jobs: int) -> Path:
    """Add a catalogue of so many models to a checkout."""
    models = {f"m{n}": {**ENTRY, "name": f"Model {n}"} for n in range(jobs)}
    (folder / "mine.yaml").write_text(json.dumps({"models": models}))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    python, jobs = toolchains.build(ROOT, "convert") / "bin/python", options.jobs
    targets = [f"artifacts/m{n}.gguf" for n in range(jobs)]
    snakemake = ROOT / ".venv/bin/snakemake"
    rows = {}
    if not options.json:
        print(
            f"{jobs} jobs{'head, CPU s/job':>37}{'nodes, CPU s/job':>19}{'submitted':>12}{'wall':>9}"
        )

    def add(name: str, row: dict) -> None:
        rows[name] = row
        numbers = f"{row['head']:>16.3f}{row['nodes']:>19.2f}{row['submitted']:>12}"
        if not options.json:
            print(f"{name:28}{numbers}{row['seconds']:>7.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as place, slurm.Slurm(Path(place) / "slurm") as cluster:
        ours = [snakemake, "--configfile", "mine.yaml", "--profile", "slurm", "--", *targets]
        folder = catalogue(checkout(Path(place) / "here"), jobs)
        add("Ingot", run(folder, cluster, ours, jobs))
        folder = Path(place) / "plain"
        folder.mkdir()
        files = " ".join(map(str, sorted((ROOT / "models/demo").glob("*.[js]*"))))
        text = PLAIN.format(jobs=jobs, python=python, root=ROOT, files=files)
        (folder / "Snakefile").write_text(text)
        add("the plain plugin", run(folder, cluster, [snakemake, *FLAGS], jobs))
        folder = catalogue(checkout(Path(place) / "there"), jobs)
        add("Ingot, INGOT_SUBMIT=all", run(folder, cluster, ours, jobs, INGOT_SUBMIT="all"))
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
