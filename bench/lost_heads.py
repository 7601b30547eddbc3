"""Kill the head of a run on SLURM at ten points of its job, edit the model or not, and run again.

    .venv/bin/python bench/lost_heads.py [--only POINT] [--json]

Needs Debian's SLURM and root, as tests/cluster does.  The first job goes on either before the second run
starts, or once that has begun.  A wrong hit is a record whose bytes are not those of its key's model;
`twice` are jobs that built again for equal inputs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/doubles")]

import slurm  # noqa: E402
from checkout import checkout  # noqa: E402
from ingot.store.records import Store  # noqa: E402

GGUF = "artifacts/demo.gguf"
HOLD = """
def hold(point):
    import os, time
    if not os.path.exists("hold") or open("hold").read() != point:
        return
    try:
        os.close(os.open("at", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return  # only the first job is held
    end = time.monotonic() + 120
    while not os.path.exists("go") and time.monotonic() < end:
        time.sleep(0.05)
"""
ATOMIC, STEP = "scripts/ingot/base/atomic.py", "scripts/safetensors_to_gguf.py"
POINTS = {  # where the first job is held: a file, the line that it is held before, and how deep
    "sbatch": None,
    "pending": None,
    "parsing": ("rules/common.smk", "inputs = Inputs(", 0),
    "starting": (STEP, "    config = read_config(", 4),
    "unclaimed": (ATOMIC, "    claim.stop_if_taken(path)\n    with partial_of", 4),
    "writing": (ATOMIC, "        yield partial\n        _stop", 8),
    "written": (ATOMIC, "        _stop_if_orphaned(path)\n", 8),
    "unnoted": (ATOMIC, "        claim.leave(path, place)", 8),
    "noted": (ATOMIC, "        if place.is_dir():", 8),
    "in place": (ATOMIC, "\n\n@contextmanager\ndef partial_of", 4),
    "done": None,
}
PATIENCE = 150.0  # seconds for each thing that is waited for


class Case:
    """One folder, one point, one order."""

    def __init__(self, place: Path, cluster: slurm.Slurm, point: str, edited: bool, late: bool):
        self.folder, self.cluster, self.point, self.edited, self.late = (
            place,
            cluster,
            point,
            edited,
            late,
        )
        self.said = place / "said"

    def prepare(self) -> None:
        checkout(self.folder)
        self.insert(STEP, "    config = read_config(", "    open('started', 'a').write('x')\n")
        if found := POINTS[self.point]:
            file, line, depth = found
            where = "'SLURM_JOB_ID' in os.environ"  # not on the head
            call = f"import os, holding; {where} and holding.hold({self.point!r})"
            self.insert(file, line, f"{' ' * depth}{call}\n")
        (self.folder / "scripts/holding.py").write_text(HOLD)
        (self.folder / "hold").write_text(self.point)
        shim = self.folder / "bin/sbatch"
        shim.parent.mkdir()
        first = {
            "sbatch": "touch at; while [ ! -e go ]; do sleep 0.05; done",
            "pending": 'set -- --hold "$@"',
        }.get(self.point, ":")
        real = shutil.which("sbatch")
        job = 'case "$*" in *ingot-doctor*) ;; *) if mkdir held 2>/dev/null; then'
        shim.write_text(f'#!/bin/sh\n{job} {first}; fi;; esac\nexec {real} "$@"\n')
        shim.chmod(0o755)

    def insert(self, file: str, before: str, text: str) -> None:
        path = self.folder / file
        found = path.read_text()
        assert found.count(before) == 1, (file, before)
        path.write_text(found.replace(before, text + before))

    def start(self) -> subprocess.Popen:
        more = ["--slurm-init-seconds-before-status-checks", "90"] if self.point == "done" else []
        if (self.folder / "at").exists():
            more = []
        path = f"{self.folder}/bin:{self.cluster.environment['PATH']}"
        return subprocess.Popen(
            [ROOT / ".venv/bin/snakemake", GGUF, "--profile", "slurm", *more], cwd=self.folder,
            env={**os.environ, **self.cluster.environment, "PATH": path, "INGOT_SUBMIT": "all",
                 "INGOT_STORE": str(self.folder / "store")},
            stdout=self.said.open("a"), stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def jobs(self, states: str = "PENDING,RUNNING,COMPLETING") -> list[str]:
        shown = self.cluster.call(
            "squeue", "-h", f"--states={states}", "-o", "%i|%Z|%j"
        ).splitlines()
        rows = [line.split("|") for line in shown]
        return [row[0] for row in rows if row[1] == str(self.folder) and row[2] != "ingot-doctor"]

    def wait(self, until, what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not until():
            if time.monotonic() > end:
                raise TimeoutError(f"{self.point}: {what}\n{self.said.read_text()[-2000:]}")
            time.sleep(0.1)

    def run(self) -> dict:
        self.prepare()
        head = self.start()
        if self.point == "pending":
            self.wait(lambda: self.jobs("PENDING"), "the first job")
        elif self.point == "done":
            self.wait(lambda: self.jobs("COMPLETED"), "the end of the first job")
        else:
            self.wait((self.folder / "at").exists, "the first job")
        (self.folder / "at").touch()
        head.kill()
        head.wait()
        if self.edited:
            catalogue = self.folder / "models.yaml"
            text = catalogue.read_text()
            catalogue.write_text(text.replace("name: Ingot Demo", "name: Another Demo", 1))
        if not self.late:
            self.go()
            time.sleep(1)
            self.wait(lambda: not self.jobs(), "the end of the first job")
        before = len(self.said.read_text())
        again = self.start()
        if self.late:
            began = (f"start    {GGUF}", "goes on for this one", "is cancelled", "taken in")
            self.wait(
                lambda: (
                    again.poll() is not None
                    or any(word in self.said.read_text()[before:] for word in began)
                ),
                "the second run",
            )
            self.go()
        again.wait(PATIENCE)
        for _ in range(100):  # one whose output was taken in is about to end
            if self.jobs():
                time.sleep(0.1)
        return self.judged(again.returncode)

    def go(self) -> None:
        (self.folder / "go").touch()
        for job in self.jobs("PENDING"):
            self.cluster.call("scontrol", "release", job)

    def judged(self, status: int) -> dict:
        store = Store(self.folder / "store")
        wrong = 0
        for record in store.records("safetensors_to_gguf"):
            another = "Another Demo" in json.dumps(store.config(record)["fields"])
            with store.blob(record.outputs[0]["digest"]).open("rb") as file:
                wrong += another != (b"Another Demo" in file.read(1 << 16))
        place = self.folder / GGUF
        final = b"Another Demo" in (place.read_bytes() if place.exists() else b"")
        built = (
            len((self.folder / "started").read_text()) if (self.folder / "started").exists() else 0
        )
        return {
            "point": self.point, "edited": self.edited, "late": self.late, "status": status,
            "wrong": wrong + (final != self.edited), "built": built,
            "left": len(self.jobs()),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=POINTS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, slurm.Slurm(Path(folder) / "slurm") as cluster:

        def one(numbered: tuple[int, tuple[str, bool, bool]]) -> dict:
            number, (point, edited, late) = numbered
            row = Case(Path(folder) / f"case{number}", cluster, point, edited, late).run()
            how = f"{'edited' if edited else 'equal':7} {'late' if late else 'early'}"
            good = not (row["wrong"] or row["status"] or row["left"])
            words = f"{point:10} {how:13} built {row['built']}  {'ok' if good else row}"
            print(words, file=sys.stderr, flush=True)
            return row

        every = [
            (point, edited, late)
            for point in POINTS
            for edited in (False, True)
            for late in (False, True)
            if options.only in (None, point)
        ]
        with ThreadPoolExecutor(2) as pool:
            rows = list(pool.map(one, enumerate(every)))
    equal = [row for row in rows if not row["edited"]]
    found = {
        "runs": len(rows),
        "wrong": sum(row["wrong"] for row in rows),
        "failed": sum(row["status"] != 0 for row in rows),
        "left": sum(row["left"] for row in rows),
        "twice": sum(row["built"] > 1 for row in equal),
        "equal": len(equal),
    }
    print(
        json.dumps({**found, "rows": rows})
        if options.json
        else "{runs} runs: {wrong} wrong hits, {failed} failed, {left} jobs left; "
        "of {equal} with equal inputs {twice} were built twice".format(**found)
    )


if __name__ == "__main__":
    main()
