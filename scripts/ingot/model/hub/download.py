"""One file of a hub model on its way: resumed where a connection broke, hashed while it comes in."""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.model.hub import session
from ingot.model.hub.client import SILENCE, BrokenTransferError, Floor, Retry, no_longer_than

CHUNK = 1 << 20  # bytes
RESTARTS = 2  # from nothing, after a whole file of the wrong content


class Download:
    """One file on its way into `out`, of which some may be there already."""

    backoff = 1.0  # seconds before the first retry

    def __init__(self, known: dict, name: str, entry: dict, digest: str, out, progress: Any = None):
        self.known, self.name, self.entry, self.digest, self.out = known, name, entry, digest, out
        self.size: int = entry["size"]
        self.progress = progress or Progress(name, self.size)
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

    def first(self, count: int) -> bytes:
        """The file's first bytes alone, checked by nothing: the whole file is, when it comes."""

        def ask() -> bytes:
            found = b""
            with self._answer(f"bytes=0-{count - 1}") as answer:
                hold_status(answer)
                for data in answer.iter_raw():
                    found += data
                    if len(found) >= count:
                        break
            if len(found) < min(count, self.size):
                raise BrokenTransferError(f"the body ended at {len(found)} of {count} bytes")
            return found[:count]

        session.install()
        return Retry(f"{self.known['hub']}/{self.name}", self.backoff).run(ask)

    def address(self) -> tuple[str, dict[str, str]]:
        """Where the file's bytes are now, and what a request for them says; checked against the listing."""
        from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(self.known["hub"], self.name, revision=self.known["revision"])
        with no_longer_than(SILENCE):
            head = get_hf_file_metadata(url, token=get_token() or False)
        self._agree(head)
        # the token is for the hub alone, not for the host that a large file lies on
        same = urlsplit(head.location)[:2] == urlsplit(url)[:2]  # scheme and host
        headers = build_hf_headers(token=(get_token() or False) if same else False)
        return head.location, {**headers, "Accept-Encoding": "identity"}

    @contextmanager
    def _answer(self, span: str) -> Iterator[Any]:
        """The hub's answer for a range of the file's bytes; all of them where `span` is empty."""
        where, headers = self.address()
        with asked(where, headers | ({"Range": span} if span else {})) as answer:
            yield answer

    def _try(self) -> None:
        if self.done < self.size or not self.size:
            with self._answer(f"bytes={self.done}-" if self.done else "") as answer:
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
        if answer.status_code == 416 or (self.done and answer.status_code == 200):
            self._forget()  # no ranges here: from the start
            if answer.status_code == 416:
                raise BrokenTransferError("the server refuses to go on from the middle")
        hold_status(answer)
        floor = Floor()
        for data in answer.iter_raw():
            floor.add(len(data))
            if self.done + len(data) > self.size:
                self._forget()
                raise BrokenTransferError(f"more than {self.size} bytes came")
            with floor.paused():
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


def asked(where: str, headers: dict[str, str]) -> Any:
    """The answer to a GET, as a context, whose body is read as it comes."""
    from huggingface_hub.utils import get_session

    session = get_session()
    return session.stream("GET", where, headers=headers, follow_redirects=True, timeout=30)


def hold_status(answer) -> None:
    """Raise what huggingface_hub raises of an answer that is an error."""
    from huggingface_hub.utils import hf_raise_for_status

    if answer.status_code >= 400:
        with no_longer_than(SILENCE):
            answer.read()
    hf_raise_for_status(answer)


def hasher(entry: dict):
    """SHA-256, or git's SHA-1 of a blob: "blob <size>", a zero byte, the content."""
    if "sha256" in entry:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % entry["size"])
