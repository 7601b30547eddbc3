"""Fetch one file of a hub model, at the commit of its listing.  Runs in envs/hub.

Checked against the hub's own hash while it comes in.  What has arrived stays in a hidden file
beside the target, so that the next try, in this process or another, goes on from there.
"""

import errno
import fcntl
import os
import sys
from pathlib import Path
from typing import Annotated

from ingot.base import digest
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.model.hub.client import Retry
from ingot.model.hub.download import CHUNK, Download, hasher
from ingot.model.hub.listing import read_listing
from ingot.store.blobs import Blobs


def fetch_file(
    listing: Annotated[Path, "by fetch_listing.py"],
    name: Annotated[str, "the file's name on the hub"],
    file: Annotated[Path, "the file to write"],
    backoff: Annotated[float, "seconds before the first retry"] = 1.0,
) -> None:
    known = read_listing(listing)
    entry = known["files"].get(name)
    what = f"{known['hub']}/{name}"
    if entry is None:
        raise Refused(
            f"{what}: not among the files at revision {known['revision']}; check shards: in the "
            "catalogue"
        )
    wanted = entry.get("sha256") or entry["git_sha1"]
    if "sha256" in entry and Blobs().place(f"sha256:{wanted}", file):
        print(f"{what}: in the store already, under another model or revision", file=sys.stderr)
        return
    partial = file.with_name(f".{file.name}.{wanted[:16]}.partial")
    with only_one(partial) as out:
        if (
            file.exists()
            and file.stat().st_size == entry["size"]
            and hash_of(file, entry) == wanted
        ):
            partial.unlink()
            return  # another process fetched it meanwhile
        try:
            Download(known, name, entry, wanted, out).run(Retry(what, backoff))
            os.fsync(out.fileno())
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise Refused(
                f"{file}: the disk is full; free some space and run again: the download resumes"
            ) from None
        partial.chmod(0o644)
        digest.finished(partial, file, entry.get("sha256"))


def only_one(partial: Path):
    """The partial file, open and locked: of two processes the second waits, then finds it done."""
    while True:
        out = partial.open("a+b")
        fcntl.flock(out, fcntl.LOCK_EX)
        try:
            if partial.stat().st_ino == os.fstat(out.fileno()).st_ino:
                return out
        except FileNotFoundError:
            pass  # the other one finished it and renamed it
        out.close()


def hash_of(file: Path, entry: dict) -> str:
    found = hasher(entry)
    with file.open("rb") as data:
        while chunk := data.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


if __name__ == "__main__":
    step(fetch_file)
