"""Fetch one file of a hub model, at the commit of its listing.  Runs in envs/hub.

Checked against the hub's own hash while it comes in.  What has arrived stays in a hidden file
beside the target, so that the next try, in this process or another, goes on from there.
"""

import errno
import fcntl
import hashlib
import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from ingot.base import digest
from ingot.base.options import step
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.model.hub import session
from ingot.model.hub.client import SILENCE, BrokenTransferError, Floor, Retry, no_longer_than
from ingot.model.hub.listing import read_listing
from ingot.store.blobs import Blobs

CHUNK = 1 << 20  # bytes
RESTARTS = 2  # from nothing, after a whole file of the wrong content


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


class Download:
    """One file on its way into `out`, of which some may be there already."""

    def __init__(self, known: dict, name: str, entry: dict, digest: str, out):
        self.known, self.name, self.entry, self.digest, self.out = known, name, entry, digest, out
        self.size: int = entry["size"]
        self.progress = Progress(name, self.size)
        self.restarts = 0
        self.furthest = 0  # bytes: what comes a second time is no progress
        out.seek(0, os.SEEK_END)
        self.done = out.tell()
        self.hash = hasher(entry)
        if self.done > self.size:
            self._forget()
        elif self.done:
            out.seek(0)
            while data := out.read(CHUNK):
                self.hash.update(data)
            self.progress.resume(self.done)
            print(f"{name}: going on from {self.done / 1e6:.1f} MB", file=sys.stderr)

    def run(self, retry: Retry) -> None:
        session.install()
        self.retry = retry
        retry.run(self._try)

    def _try(self) -> None:
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session

        if self.done < self.size or not self.size:
            url = hf_hub_url(self.known["hub"], self.name, revision=self.known["revision"])
            with no_longer_than(SILENCE):
                head = get_hf_file_metadata(url, token=get_token() or False)
            self._agree(head)
            # the token is for the hub alone, not for the host that a large file lies on
            same = urlsplit(head.location)[:2] == urlsplit(url)[:2]  # scheme and host
            headers = build_hf_headers(token=(get_token() or False) if same else False)
            headers["Accept-Encoding"] = "identity"
            if self.done:
                headers["Range"] = f"bytes={self.done}-"
            with get_session().stream(
                "GET", head.location, headers=headers, follow_redirects=True, timeout=30
            ) as answer:
                self._take(answer)
        if self.done < self.size:
            raise BrokenTransferError(f"the body ended at {self.done} of {self.size} bytes")
        if self.hash.hexdigest() != self.digest:
            self.restarts += 1
            found = self.hash.hexdigest()
            self._forget()
            text = f"{len(found) * 4}-bit hash {found}, expected {self.digest}"
            if self.restarts > RESTARTS:
                raise Refused(
                    f"{self.known['hub']}/{self.name}: {text}, again; the hub's copy is damaged"
                )
            raise BrokenTransferError(text)

    def _agree(self, head) -> None:
        """What the hub says of the file now must be what its listing said."""
        for word, said, listed in (
            ("size", head.size, self.size),
            ("hash", head.etag, self.digest),
            ("commit", head.commit_hash, self.known["revision"]),
        ):
            if said != listed:
                raise Refused(
                    f"{self.known['hub']}/{self.name}: the hub says {word} {said}, its listing "
                    f"{listed}; delete listing.json and fetch again"
                )

    def _take(self, answer) -> None:
        from huggingface_hub.utils import hf_raise_for_status

        if answer.status_code == 416 or (self.done and answer.status_code == 200):
            self._forget()  # no ranges here: from the start
            if answer.status_code == 416:
                raise BrokenTransferError("the server refuses to go on from the middle")
        if answer.status_code >= 400:
            with no_longer_than(SILENCE):
                answer.read()
        hf_raise_for_status(answer)
        floor = Floor()
        for data in answer.iter_raw():
            floor.add(len(data))
            if self.done + len(data) > self.size:
                self._forget()
                raise BrokenTransferError(f"more than {self.size} bytes came")
            self.out.write(data)
            self.out.flush()
            self.hash.update(data)
            self.done += len(data)
            if self.done > self.furthest:
                self.furthest = self.done
                self.retry.progressed()
            self.progress.add(len(data))

    def _forget(self) -> None:
        self.out.truncate(0)
        self.done = 0
        self.hash = hasher(self.entry)
        self.progress.resume(0)


def hasher(entry: dict):
    """SHA-256, or git's SHA-1 of a blob: "blob <size>", a zero byte, the content."""
    if "sha256" in entry:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % entry["size"])


def hash_of(file: Path, entry: dict) -> str:
    found = hasher(entry)
    with file.open("rb") as data:
        while chunk := data.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


if __name__ == "__main__":
    step(fetch_file)
