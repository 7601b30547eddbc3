"""Build from the hub without the checkpoint on the disk: `ingot stream artifacts/M_tp8.irpa ...`.

    ingot stream artifacts/M_tp8.irpa artifacts/M.q4_k_m.gguf     both from one read of the hub

The shards are fetched once, in pieces.  Everything asked for that is written from them is written from each
piece as it comes; then the piece goes.  What also needs one of these artifacts takes a second read, such as
GGUF by an importance matrix.  Stopped anywhere, it goes on at the shard that it was in.  Keys and bytes are
those of a build by snakemake, which takes over at the end.
"""

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from ingot.base import claim, digest, pieces, processes
from ingot.base.atomic import remove
from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import DETAILS, build, dry_run
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.rules import environment
from ingot.driver.commands.targets import above_0, add_catalogue
from ingot.driver.forecast import streamed
from ingot.driver.forecast.schedule import size
from ingot.driver.forecast.streamed import Job
from ingot.driver.toolchains import toolchains
from ingot.model.hub.listing import read_listing
from ingot.store import locks
from ingot.store.records import Action, Store

TRIES = 3
PAUSE = 0.1  # seconds between two looks at the steps


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("target", nargs="+", help="such as artifacts/M.gguf; all of one model")
    parser.add_argument(
        "--window", type=above_0(float), default=streamed.WINDOW / 1e6, metavar="MB",
        help="of pieces that are on the disk at once; a tensor that is larger comes whole (default: 128)",
    )  # fmt: skip
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    catalogue = schema.load(root, options.configfile)
    for target in options.target:
        targets.check(target, catalogue)
    wanted, own = options.target, options.configfile

    def asked() -> list[Job]:
        return dry_run(root, wanted, own, **{DETAILS: "1"})

    environment.prepare(root / "scripts")
    jobs = asked()
    read: set[str] = set()  # what the reads before were for
    while True:
        if done := [job["outputs"][0] for job in jobs if finished(job)]:
            build(root, done, own, Path.cwd())
            jobs = asked()
        coming = streamed.shards(jobs)
        if not (reads := streamed.reads(jobs, coming)):
            break
        ready = reads[0]
        if again := read & {job["outputs"][0] for job in ready}:
            raise Refused(f"{min(again)}: written, but on no record; the lines above say why")
        jobs = with_keys(root, own, asked, jobs, ready, coming)
        ready, *later = streamed.reads(jobs, coming) or [[]]
        Stream(root, ready, sorted(coming), int(options.window * 1e6)).run(len(later))
        if not later:
            break
        read |= {job["outputs"][0] for job in ready}
        jobs = asked()
    build(root, wanted, own, Path.cwd())


def finished(job: Job) -> bool:
    """Has a stream written what is on no record yet, of the inputs that it has now?"""
    if job["action"] != "run":
        return False
    wanted = {"key": job.get("key"), "inputs": job["stamps"], "streamed": True}
    return claim.finished(job["outputs"], wanted)


def with_keys(
    root: Path,
    own: str | None,
    asked: Callable[[], list[Job]],
    jobs: list[Job],
    readers: list[Job],
    coming: set[str],
) -> list[Job]:
    """The jobs `asked` for again, once all that readers read beside the shards is here: with their keys."""
    if before := prerequisites(jobs, readers, coming):
        build(root, before, own, Path.cwd())
        jobs = asked()
    put_on_record([job for job in jobs if {*job["outputs"]} & coming])
    return asked()


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

    def __init__(
        self,
        root: Path,
        readers: list[Job],
        coming: list[str],
        window: int,
        some: bool = False,
        held: tuple[int, ...] = (),
    ):
        """`some`: of one reader, which says the bytes that it wants; `held`: locks that steps hold, too."""
        self.root, self.readers, self.coming, self.window = root, readers, coming, window
        self.some, self.held = some, held
        entries = read_listing(Path(coming[0]).with_name("listing.json"))["files"]
        self.entries = {Path(path).name: entries[Path(path).name] for path in coming}
        keys = sorted(job["key"] for job in readers)
        self.name = digest.of_json([keys, self.entries])[:12]
        self.folder = Path(coming[0]).parent / ".coming" / self.name

    def run(self, more: int) -> None:
        """`more`: reads of the same shards that follow."""
        total, count = sum(entry["size"] for entry in self.entries.values()), len(self.readers)
        read = f"one read of {len(self.coming)} shards, {size(total)}"
        if self.some:
            read = f"a part of each of {len(self.coming)} shards, which have {size(total)}"
        print(
            f"stream: {count} artifact{'s' * (count > 1)} from {read}"
            + f"; {more} more after it" * bool(more),
            file=sys.stderr,
        )
        with locks.locked(pieces.busy(self.name)) as self.lock:
            if not self.some:  # which goes on beside others of this checkpoint
                self._remove_older()
            self.folder.mkdir(parents=True, exist_ok=True)
            tries, whole = 0, 0
            while why := self._once():
                now = pieces.Pieces(self.folder).come["whole"]
                tries, whole = (tries + 1 if now <= whole else 1), now
                if tries == TRIES:
                    raise Refused(f"{why}, {TRIES} times; try later")
                print(f"stream: {why}; again", file=sys.stderr)
            shutil.rmtree(self.folder)
            with contextlib.suppress(OSError):  # another stream's is there
                self.folder.parent.rmdir()

    def _once(self) -> str:
        """Why it has to go on from an earlier piece, or nothing: a shard was spoilt on its way, or a step
        found that its file is gone.  Refused: a step failed."""
        left = [job for job in self.readers if not self._written(job)]
        if not left:
            return ""
        ready, lost = self.folder / "ready", self.folder / "lost"
        for path in (ready, lost):
            path.unlink(missing_ok=True)
        fetch = self._fetcher([writer(job) for job in left])
        readers: list[tuple[str, subprocess.Popen, Path]] = []
        try:
            while (status := fetch.poll()) is None and not ready.exists():
                time.sleep(PAUSE)
            readers += [self._reader(job) for job in left if not status]
            going = True
            while going:
                time.sleep(PAUSE)
                going = fetch.poll() is None or any(one.poll() is None for _, one, _ in readers)
                if fetch.poll() == pieces.SPOILT:
                    return f"{self.coming[0]} or one behind it: not what the hub says"
                if fetch.poll():
                    raise Refused(f"{self.coming[0]}: not fetched; the lines above say why")
                for path, process, said in readers:
                    if process.poll() and lost.exists():
                        return f"{path}: what was written of it is gone"
                    if status := process.poll():
                        if self.some and status > 0:  # no hash covers what it read: all comes again
                            (self.folder / "plan.json").unlink(missing_ok=True)
                        raise Refused(f"{path}: {last_line(said)}")
            return ""
        finally:
            processes.stop_below(os.getpid())
            for process in (fetch, *(one for _, one, _ in readers)):
                process.wait()

    def _reader(self, job: Job) -> tuple[str, subprocess.Popen, Path]:
        """Its step, told of the folder; what it says goes to a file there."""
        for path in job["outputs"]:
            if self._placed(path):  # of several, not all were
                Path(path).rename(pieces.partial(Path(path), self.name) or path)
            found = {"run": self._run, "key": job["key"], "inputs": job["stamps"]}
            claim.claim(path, {**found, "streamed": True})
        if job["benchmark"]:  # of an earlier build
            Path(job["benchmark"]).unlink(missing_ok=True)
        Path(job["log"]).parent.mkdir(parents=True, exist_ok=True)
        said = self.folder / f"said-{writer(job)}"
        told = {pieces.FOLDER: str(self.folder.absolute()), pieces.WRITER: writer(job)}
        # exec: what is told to end is the step itself
        command = ["bash", "-c", f"{environment.PREFIX} exec {job['command'].strip()}"]
        with said.open("wb") as file:
            environ = os.environ | told | {"INGOT_RUN": self._run}
            # a stream that follows a killed one waits for its steps to end
            held = (self.lock.fileno(), *self.held)
            process = subprocess.Popen(command, env=environ, stderr=file, pass_fds=held)
        return job["outputs"][0], process, said

    def _fetcher(self, writers: list[str]) -> subprocess.Popen:
        python = toolchains.build(self.root, "hub") / "bin/python"
        names = [Path(path).name for path in self.coming]
        return subprocess.Popen(
            [
                python, self.root / "scripts/stream_shards.py",
                "--listing", Path(self.coming[0]).with_name("listing.json"),
                "--shards", *names, "--folder", self.folder, "--writers", *writers,
                "--window", str(self.window), *["--some"] * self.some,
            ],
            env=os.environ | {"INGOT_PARENT": str(os.getpid())},
            pass_fds=(self.lock.fileno(), *self.held),
        )  # fmt: skip

    def _written(self, job: Job) -> bool:
        return all(map(self._placed, job["outputs"]))

    def _placed(self, path: str) -> bool:
        """Has a step of this stream put there what stands there?"""
        return claim.left(path).get("run") == self._run and claim.untouched(path)

    @property
    def _run(self) -> str:
        """A name of its run, the same for those that go on with it."""
        return f"stream-{self.name}"

    def _remove_older(self) -> None:
        """What streams of other keys left of this checkpoint and these outputs, unless they go on."""
        outputs = [Path(path) for job in self.readers for path in job["outputs"]]
        found = [path for path in self.folder.parent.glob("*") if path != self.folder]
        for path in found:
            if not pieces.locked(pieces.busy(path.name)):
                remove(path)
        for path in outputs:
            for left in path.parent.glob(f".{glob.escape(path.name)}.stream-*.partial"):
                if left != pieces.partial(path, self.name) and not pieces.goes_on(left):
                    remove(left)


def writer(job: Job) -> str:
    """By which its step reports: the same in each process."""
    return job["key"][:12]


def last_line(said: Path) -> str:
    lines = said.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "its step ended without a word"
