"""Write some ranks of a set from their own bytes on the hub: `ingot rank artifacts/M_tp8.irpa 3`.

A node that serves one rank fetches what that is made of: an eighth of the weights for one of eight.  The
hub's list has no hash of a part of a file, so each rank's digest is compared with a record of the whole
set, made where that was built: the set's .verified.json, which is trusted.  Stopped, it goes on.
"""

import contextlib
import platform
import re
import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ingot.base import digest, memo, sealed
from ingot.base.atomic import remove
from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import DETAILS, dry_run
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.rules import environment
from ingot.driver.commands.stream import Stream, with_keys
from ingot.driver.commands.targets import add_catalogue
from ingot.driver.forecast import streamed
from ingot.driver.forecast.streamed import Job
from ingot.store import locks

# by the set's ending: the step that cuts it, its option for what it writes, a rank's file; the file that
# describes the set, and the field of the record that has its digest
SETS = {
    ".irpa": ("shard_irpa", "--root", "{stem}.rank{rank}.irpa", "{name}", "sha256"),
    ".trtllm-ckpt": (
        "safetensors_to_trtllm", "--trtllm-checkpoint", "{name}/rank{rank}.safetensors",
        "{name}/config.json", "config_sha256",
    ),
}  # fmt: skip
WINDOW = 8 * streamed.WINDOW  # bytes of pieces, of which a rank's share is on the disk
OF = "of"  # beside what comes: the folder of the stream that it comes by
STREAM = re.compile(r"/.+/\.coming/[0-9a-f]{12}")  # such a folder: nothing else is removed


class Set:
    """A set of which some ranks are written, in the folder `where`."""

    def __init__(self, target: str, where: Path):
        self.target = Path(target)
        if self.target.suffix not in SETS:
            raise Refused(f"{target}: expected a set of ranks, of {' or '.join(SETS)}")
        self.step, self.option, self._rank, self._about, self.field = SETS[self.target.suffix]
        self.where = where

    def rank(self, number: int, where: Path | None = None) -> Path:
        return self._named(self._rank, where, number)

    def about(self, where: Path | None = None) -> Path:
        """What describes the set: its root, or config.json."""
        return self._named(self._about, where)

    def _named(self, pattern: str, where: Path | None, number: int = 0) -> Path:
        name, stem = self.target.name, self.target.stem
        return (where or self.where) / pattern.format(name=name, stem=stem, rank=number)

    @property
    def coming(self) -> Path:
        """The folder in which its ranks are written, until they are known to be right; each node's own."""
        return self.where / f".{self.target.name}.{platform.node()}.coming"


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("target", help="a set: artifacts/M_tp8.irpa, artifacts/M_tp2.trtllm-ckpt")
    parser.add_argument("rank", nargs="+", type=int, help="from 0")
    parser.add_argument(
        "--to", type=Path, default=Path("ranks"), metavar="FOLDER",
        help="where they are put (default: ranks)",
    )  # fmt: skip
    checked = parser.add_mutually_exclusive_group()
    checked.add_argument(
        "--record", type=Path, metavar="FILE",
        help="of the set: whose digests the ranks must have (default: TARGET.verified.json)",
    )  # fmt: skip
    checked.add_argument("--unverified", action="store_true", help="checked by nothing")
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    targets.check(options.target, schema.load(root, options.configfile))
    its, ranks = Set(options.target, options.to), sorted({*options.rank})
    path = options.record or Path(f"{options.target}.verified.json")
    record = {} if options.unverified else recorded(its, path, ranks)
    environment.prepare(root / "scripts")
    its.where.mkdir(parents=True, exist_ok=True)
    with locks.locked(its.where / f".{its.target.name}.busy") as lock:
        hold_others(its, path, record)
        if record:  # what a run had written that was stopped then
            put(its, [rank for rank in ranks if not here(its, rank, record)], record)
        if left := [rank for rank in ranks if not here(its, rank, record)]:
            fetch(root, options, its, left, record, lock.fileno())
            left = put(its, left, record)
        forget(its)
        if its.about().parent != its.where and its.about().is_file():  # a folder
            sealed.seal(its.about().parent)
    if left:
        raise Refused(
            f"{its.rank(left[0])}: its bytes are not those of {path}, expected them; not kept: run it "
            "again; if that says the same, the record is of other weights"
        )
    said = f"as {path} says" if record else "checked by nothing"
    for rank in ranks:
        print(
            f"{its.rank(rank)}: {its.rank(rank).stat().st_size / 1e6:,.1f} MB, {said}",
            file=sys.stderr,
        )


def recorded(its: Set, path: Path, ranks: list[int]) -> dict[str, Any]:
    """What the record says of the set."""
    if not path.is_file():
        raise Refused(
            f"{path}: missing, expected the set's record; name one by --record, or take the ranks "
            "--unverified"
        )
    found = read_json(path, {f"{its.field}?": str, "ranks_sha256?": [str]})
    if its.field not in found or "ranks_sha256" not in found:
        raise Refused(
            f"{path}: says no digest of a rank, expected one of each; verify the set again"
        )
    count = len(found["ranks_sha256"])
    if odd := [rank for rank in ranks if not 0 <= rank < count]:
        raise Refused(f"{path}: no rank {odd[0]}, expected 0 to {count - 1}")
    return found


def here(its: Set, rank: int, record: dict[str, Any]) -> bool:
    """Is a rank in its place, with what describes the set, and known to be right?"""
    if not record:
        return False
    wanted = {its.rank(rank): record["ranks_sha256"][rank], its.about(): record[its.field]}
    return all(
        path.is_file() and digest.of(path) == f"sha256:{sha256}" for path, sha256 in wanted.items()
    )


def hold_others(its: Set, path: Path, record: dict[str, Any]) -> None:
    """Refused: a rank of another set of that name, which would be taken for one of this."""
    for rank, sha256 in enumerate(record.get("ranks_sha256", ())):
        other = its.rank(rank)
        if other.is_file() and digest.of(other) != f"sha256:{sha256}":
            raise Refused(
                f"{other}: not the rank of {path}, expected ranks of one set in a folder; move it, or "
                "name another folder by --to"
            )


def came_by(its: Set) -> str:
    """The folder of the stream by which the ranks that are not in place come; or nothing."""
    with contextlib.suppress(OSError):
        return (its.coming / OF).read_text()
    return ""


def forget(its: Set) -> None:
    """Remove the ranks that are not in place, and what has come of their weights."""
    if STREAM.fullmatch(found := came_by(its)):
        remove(Path(found))
    remove(its.coming)


def fetch(
    root: Path, options: Namespace, its: Set, ranks: list[int], record: dict[str, Any], lock: int
) -> None:
    """Write ranks into the folder of those that come.  The steps hold the lock, too, till they end."""
    job, shards = planned(root, options, its)
    name = digest.of_json([job["key"], ranks, str(its.where.absolute())])
    place = its.coming / its.target.name
    outputs = [place]
    words = ["--only", *ranks, its.option, place, "--described", record.get(its.field, "")]
    if its.step == "shard_irpa":
        words += ["--ranks"]  # none: they are named as the root
        outputs += [its.rank(rank, its.coming) for rank in ranks]
    command = f"{job['command'].strip()} {shlex.join(map(str, words))}"
    own = {"command": command, "outputs": [*map(str, outputs)], "key": name, "stamps": {}}
    reader = {**job, **own, "benchmark": None}
    stream = Stream(root, [reader], sorted(shards), WINDOW, some=True, held=(lock,))
    said = str(stream.folder.absolute())
    if came_by(its) != said:  # of other ranks, or of another version
        forget(its)
    its.coming.mkdir(exist_ok=True)
    (its.coming / OF).write_text(said)
    stream.run(0)


def planned(root: Path, options: Namespace, its: Set) -> tuple[Job, set[str]]:
    """The job that writes the set, and the shards that it reads, which are not here."""
    own = options.configfile

    def asked() -> list[Job]:
        return dry_run(root, [options.target], own, **{DETAILS: "1"})

    def writer(jobs: list[Job]) -> Job:
        return next(one for one in jobs if options.target in one["outputs"])

    jobs = asked()
    job, shards = writer(jobs), streamed.shards(jobs)
    if job["step"] != its.step:
        raise Refused(f"{options.target}: {job['step']} makes it, expected what cuts a checkpoint")
    if job["action"] != "run" or not shards & {*job["inputs"]}:
        raise Refused(
            f"{options.target}: nothing of it is to be fetched, since it or its checkpoint is here or in "
            "the store; build it by snakemake"
        )
    return writer(with_keys(root, own, asked, jobs, [job], shards)), shards


def put(its: Set, ranks: list[int], record: dict[str, Any]) -> list[int]:
    """What came and is right, in its own place: what describes the set before any rank; the ranks left.

    Each is read again: the step that wrote it does not judge it.
    """
    about, came = its.about(), its.about(its.coming)
    if not came.is_file() or (record and digest.read(came) != record[its.field]):
        return ranks
    if not record and about.is_file() and digest.read(about) != digest.read(came):
        raise Refused(
            f"{about}: of another set, expected ranks of one set in a folder; move it, or name another "
            "folder by --to"
        )
    left = []
    for rank in ranks:
        path, place = its.rank(rank, its.coming), its.rank(rank)
        before = path.stat() if path.is_file() else None
        if not before or (record and digest.read(path) != record["ranks_sha256"][rank]):
            left.append(rank)
            continue
        about.parent.mkdir(exist_ok=True)
        new = about.with_name(f".{about.name}.new")
        shutil.copyfile(came, new)
        new.replace(about)
        path.replace(place)
        if record:  # a rename changes its ctime
            memo.vouch(place, before, f"sha256:{record['ranks_sha256'][rank]}")
    return left
