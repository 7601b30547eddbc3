"""Build from the hub without the checkpoint on the disk: `ingot stream artifacts/M_tp8.irpa ...`.

    ingot stream artifacts/M_tp8.irpa artifacts/M.q4_k_m.gguf     both from one read of the hub

The shards are fetched once, in pieces.  Everything asked for that is written from them is written from each
piece as it comes; then the piece goes.  Stopped anywhere, it goes on at the shard that it was in.  Keys and
bytes are those of a build by snakemake, which takes over at the end: records of verification are its part.
"""

import os
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.base import claim, digest, pieces, processes
from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import DETAILS, build, dry_run
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.rules import environment
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.forecast import streamed
from ingot.driver.forecast.schedule import size
from ingot.driver.forecast.streamed import Job
from ingot.driver.toolchains import toolchains
from ingot.model.hub.listing import read_listing
from ingot.store import locks
from ingot.store.records import Action, Store

SPOILT = 75  # of stream_shards.py: what came of a shard was not what the hub says
TRIES = 3
PAUSE = 0.1  # seconds between two looks at the steps


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="+", help="such as artifacts/M.gguf; all of one model")
    parser.add_argument(
        "--window", type=float, default=streamed.WINDOW / 1e6, metavar="MB",
        help="of pieces that are on the disk at once; a tensor that is larger comes whole (default: 256)",
    )  # fmt: skip
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    catalogue = schema.load(root, options.configfile)
    for target in options.target:
        targets.check(target, catalogue)
    wanted, own = options.target, options.configfile

    def asked() -> list[Job]:
        return dry_run(root, wanted, own, **{DETAILS: "1"})

    jobs = asked()
    if coming := streamed.shards(jobs):
        if before := prerequisites(jobs, streamed.readers(jobs, coming), coming):
            build(root, before, own, Path.cwd())
            jobs = asked()
        put_on_record([job for job in jobs if {*job["outputs"]} & coming])
        jobs = asked()
        window = int(options.window * 1e6)
        Stream(root, streamed.readers(jobs, coming), sorted(coming), window).run()
    build(root, wanted, own, Path.cwd())


def prerequisites(jobs: list[Job], readers: list[Job], coming: set[str]) -> list[str]:
    """What readers read beside the shards, and the hub's list of these, as far as it is not here."""
    makers = {path: job for job in jobs for path in job["outputs"]}
    read = {path for job in readers for path in job["inputs"]}
    read |= {path for one in coming for path in makers[one]["inputs"]}
    waiting = [path for path in read - coming if path in makers]
    return sorted(path for path in waiting if makers[path]["action"] in ("run", "restore"))


def put_on_record(fetches: list[Job]) -> None:
    """What fetching each shard gives, by the hub's list: so the keys of what is made of them are known."""
    store = Store()
    if not store.prepare():
        raise Refused(f"{store.root}: cannot be written, expected the store; see INGOT_STORE")
    for job in fetches:
        (path,) = job["outputs"]
        entry = read_listing(Path(path).with_name("listing.json"))["files"].get(Path(path).name, {})
        if "sha256" not in entry:
            raise Refused(
                f"{path}: not in the hub's list with a SHA-256, expected a large file; check shards: in "
                "the catalogue"
            )
        if store.lookup(job["rule"], job["key"]) is None:
            output = {"kind": "file", "digest": f"sha256:{entry['sha256']}", "size": entry["size"]}
            output["title"] = Path(path).name
            fields = job["key_fields"]
            store.record(Action(job["rule"], job["key"], fields, [output], {}, job["about"]))
    store.index()


class Stream:
    """The steps that read one checkpoint, side by side with what fetches it."""

    def __init__(self, root: Path, readers: list[Job], coming: list[str], window: int):
        self.root, self.readers, self.coming, self.window = root, readers, coming, window
        name = digest.of_json(sorted(job["key"] for job in readers))[:12]
        self.folder = Path(coming[0]).parent / ".coming" / name
        self.run_name = f"stream-{name}"
        environment.prepare(root / "scripts")

    def run(self) -> None:
        entries = read_listing(Path(self.coming[0]).with_name("listing.json"))["files"]
        total = sum(entries[Path(path).name]["size"] for path in self.coming)
        self.folder.mkdir(parents=True, exist_ok=True)
        with locks.locked(self.folder.with_suffix(".busy")):
            left = [job for job in self.readers if not self._written(job)]
            print(
                f"stream: {len(self.readers)} artifacts from one read of {len(self.coming)} shards, "
                f"{size(total)}",
                file=sys.stderr,
            )
            for _ in range(TRIES if left else 0):
                if self._once():
                    break
                print("stream: what came is not what the hub says; again", file=sys.stderr)
            else:
                if left:
                    raise Refused(
                        f"{self.coming[0]}: not what the hub says, {TRIES} times; try later"
                    )
            shutil.rmtree(self.folder)
        shutil.rmtree(self.folder.parent, ignore_errors=True)

    def _once(self) -> bool:
        """False where a shard was spoilt on its way.  Refused: a step failed."""
        started: list[tuple[str, subprocess.Popen, Path]] = []
        try:
            left = [(n, job) for n, job in enumerate(self.readers) if not self._written(job)]
            ready = self.folder / "ready"
            ready.unlink(missing_ok=True)
            fetch = self._fetcher([str(number) for number, _ in left])
            while fetch.poll() is None and not ready.exists():
                time.sleep(PAUSE)
            started += [self._reader(number, job) for number, job in left if not fetch.poll()]
            while any(one.poll() is None for _, one, _ in started) or fetch.poll() is None:
                if fetch.poll() == SPOILT:
                    return False
                if fetch.poll():
                    raise Refused(f"{self.coming[0]}: not fetched; the lines above say why")
                for path, process, said in started:
                    if process.poll():
                        raise Refused(f"{path}: {last_line(said)}")
                time.sleep(PAUSE)
            return True
        finally:
            processes.stop_below(os.getpid())
            for _, process, _ in started:
                process.wait()

    def _reader(self, number: int, job: Job) -> tuple[str, subprocess.Popen, Path]:
        """Its step, told of the folder; what it says goes to a file there."""
        for path in job["outputs"]:
            found = {"run": self.run_name, "key": job["key"], "inputs": job["stamps"]}
            claim.claim(path, {**found, "streamed": True})
        if job["benchmark"]:
            Path(job["benchmark"]).unlink(missing_ok=True)
        Path(job["log"]).parent.mkdir(parents=True, exist_ok=True)
        said = self.folder / f"said-{number}"
        told = {
            pieces.FOLDER: str(self.folder.absolute()),
            pieces.WRITER: str(number),
            "INGOT_RUN": self.run_name,
        }
        command = ["bash", "-c", environment.PREFIX + job["command"]]
        with said.open("wb") as file:
            process = subprocess.Popen(command, env=os.environ | told, stderr=file)
        return job["outputs"][0], process, said

    def _fetcher(self, writers: list[str]) -> subprocess.Popen:
        python = toolchains.build(self.root, "hub") / "bin/python"
        names = [Path(path).name for path in self.coming]
        return subprocess.Popen(
            [
                python, self.root / "scripts/stream_shards.py",
                "--listing", Path(self.coming[0]).with_name("listing.json"),
                "--shards", *names, "--folder", self.folder, "--writers", *writers,
                "--window", str(self.window),
            ],
            env=os.environ | {"INGOT_PARENT": str(os.getpid())},
        )  # fmt: skip

    def _written(self, job: Job) -> bool:
        """Has its step put there what stands there, in this stream?"""
        return all(
            claim.left(path).get("run") == self.run_name and claim.untouched(path)
            for path in job["outputs"]
        )


def last_line(said: Path) -> str:
    lines = said.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "its step ended without a word"
