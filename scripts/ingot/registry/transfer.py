"""Blobs and manifests to a registry and back: streamed, by digest, and never twice."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TypeVar
from urllib.parse import urljoin

import urllib3

from ingot.base.digest import canonical
from ingot.base.refused import Refused
from ingot.registry.connection import AGAIN, Answer, Connection, Cut
from ingot.registry.reference import DIGEST

BLOCK = 1 << 20
WORKERS = 4  # blobs at once
SETTLED = 10.0  # seconds until a connection's speed says something
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json", "application/vnd.oci.image.manifest.v1+json",
)  # fmt: skip
OCTETS = {"Content-Type": "application/octet-stream"}
Seen = Callable[[int], None]  # told of bytes as they go
T = TypeVar("T")
R = TypeVar("R")


class Stopped(Refused):
    """Another transfer failed, so this one need not go on."""


@dataclass(frozen=True)
class Content:
    """What a blob holds: a file, or a few bytes.  `digest` is sha256:<hex>."""

    digest: str
    size: int
    source: Any  # a Path, bytes, or what opens as a file: a TarLayer, a part of a file


def of_bytes(data: bytes) -> Content:
    return Content(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), data)


class _Counted:
    """A content as urllib3 sends it: at most its size, a block at a time, until it is stopped."""

    def __init__(self, content: Content, seen: Seen, stop: Event):
        source = content.source
        self.file = source.open("rb", buffering=0) if isinstance(source, Path) else source.open()
        self.left, self.seen, self.stop = content.size, seen, stop

    def read(self, size: int = BLOCK) -> bytes:
        if self.stop.is_set():
            raise Stopped("stopped")
        data = self.file.read(min(size, self.left))
        self.left -= len(data)
        self.seen(len(data))
        if not data:
            self.file.close()
        return data


def in_parallel(work: Callable[[T, Event], R], items: Iterable[T]) -> list[R]:
    """work(item, stop) of each; the first failure stops the others, and is raised."""
    stop = Event()
    with ThreadPoolExecutor(WORKERS) as pool:
        jobs = [pool.submit(work, item, stop) for item in items]
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [job.result() for job in jobs]


def push(
    connection: Connection,
    contents: Iterable[Content],
    seen: Seen | None = None,
    sources: Iterable[str] = (),
) -> int:
    """Put every blob into the repository; how many bytes were sent.

    `sources` are other repositories of this registry, out of which a blob may be mounted.
    """
    known = {content.digest: content for content in contents}
    tell: Seen = seen or (lambda count: None)
    mounted = tuple(sources)

    def one(content: Content, stop: Event) -> int:
        if _is_there(connection, content, mounted):
            tell(content.size)
            return 0
        return _put(connection, content, tell, stop)

    return sum(in_parallel(one, known.values()))


def _is_there(connection: Connection, content: Content, sources: tuple[str, ...]) -> bool:
    repository = connection.reference.repository
    found = connection.ask("HEAD", f"{repository}/blobs/{content.digest}", (200, 404))
    if found.status == 200:
        return True
    for source in sources:
        path = f"{repository}/blobs/uploads/?mount={content.digest}&from={source}"
        with suppress(
            Refused
        ):  # of a repository that is gone, or that we may not read: then it is sent
            found = connection.ask("POST", path, (201, 202), source=source)
            if found.status == 201:
                return True
            # it opened an upload, which ends by itself, too
            connection.ask("DELETE", _place(connection, found), (204,), tries=1)
    return False


def _put(connection: Connection, content: Content, tell: Seen, stop: Event) -> int:
    """One streamed PUT.  A cut upload cannot be gone on with: the blob is begun again."""
    repository, source = connection.reference.repository, content.source
    headers = {**OCTETS, "Content-Length": str(content.size)}
    for attempt in range(connection.tries):
        done = 0

        def counted(count: int) -> None:
            nonlocal done
            done += count
            tell(count)

        opened = connection.ask("POST", f"{repository}/blobs/uploads/", (202,))
        place = _place(connection, opened)
        place += ("&" if "?" in place else "?") + f"digest={content.digest}"

        def body():
            return source if isinstance(source, bytes) else _Counted(content, counted, stop)

        try:
            connection.ask("PUT", place, (201,), body, headers, tries=1)
            return content.size
        except (Answer, Cut) as error:
            tell(-done)
            status, wait = getattr(error, "status", 0), getattr(error, "wait", None)
            if attempt + 1 == connection.tries or (status and status not in AGAIN):
                raise
            if not stop.is_set():
                stop.wait(connection.again(str(error), attempt, wait))
            if stop.is_set():
                raise Stopped("stopped") from None
    raise AssertionError("unreached")


def _place(connection: Connection, answer) -> str:
    """Where an upload goes on: on this registry, whatever it says."""
    root = connection.base.removesuffix("v2/")
    try:
        place = urljoin(connection.base, answer.headers.get("Location", ""))
    except ValueError:
        place = "no address"
    if not place.startswith(root):
        raise Refused(
            f"{connection.reference.host}: uploads go to {place.partition('?')[0]}, expected itself; use "
            "another registry"
        )
    return place


def put_manifest(connection: Connection, manifest: dict, name: str = "") -> tuple[str, int]:
    """The digest and size of a manifest or index, once the registry has it; `name` may be a tag."""
    content = of_bytes(canonical(manifest))
    path = f"{connection.reference.repository}/manifests/{name or content.digest}"
    headers = {"Content-Type": manifest["mediaType"]}
    connection.ask("PUT", path, (201,), lambda: content.source, headers)
    return content.digest, content.size


def find_manifest(connection: Connection, name: str) -> tuple[dict, str] | None:
    """The manifest that a tag or digest names, and its digest; None where there is none.  Refused: other
    bytes than a digest's."""
    path = f"{connection.reference.repository}/manifests/{name}"
    found = connection.ask("GET", path, (200, 404), headers={"Accept": ", ".join(MANIFESTS)})
    if found.status == 404:
        return None
    digest = f"sha256:{hashlib.sha256(found.content).hexdigest()}"
    if DIGEST.fullmatch(name) and digest != name:
        raise Refused(
            f"{connection.reference}: a manifest of {digest}, expected {name}; use another registry"
        )
    try:
        manifest = json.loads(found.content)
        if manifest["schemaVersion"] != 2 or manifest["mediaType"] not in MANIFESTS:
            raise KeyError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused(
            f"{connection.reference}: no OCI manifest, expected one; check its name"
        ) from None
    return manifest, digest


def get_manifest(connection: Connection, name: str) -> tuple[dict, str]:
    """The same.  Refused where there is none."""
    if found := find_manifest(connection, name):
        return found
    raise Refused(f"{connection.reference}: missing, expected a manifest; check its name")


def get(connection: Connection, descriptor: dict) -> bytes:
    """A small blob, whole.  Refused: other bytes than the descriptor's digest and size say."""
    digest = descriptor["digest"]
    if not DIGEST.fullmatch(digest):
        raise Refused(f"{connection.reference}: {digest!r:.80} is no sha256 digest; not taken")
    found = connection.ask(
        "GET", f"{connection.reference.repository}/blobs/{digest}", (200,)
    ).content
    if len(found) != descriptor["size"] or of_bytes(found).digest != digest:
        raise Refused(f"{connection.reference}: other bytes come as {digest}; not taken")
    return found


def pull(
    connection: Connection,
    digest: str,
    size: int,
    target: Path,
    seen: Seen | None = None,
    stop: Event | None = None,
) -> None:
    """Write a blob to `target`, a name that nobody reads; what a cut left there is gone on with.

    Refused: other bytes than the digest's, more or fewer than `size`.
    """
    path, told = f"{connection.reference.repository}/blobs/{digest}", 0
    stop, started, came = stop or Event(), time.monotonic(), 0
    for attempt in range(connection.tries):
        found = hashlib.sha256()
        with target.open("a+b") as out:
            done = _hashed(out, found, size)
            if done < size or not size:
                asked = {"Range": f"bytes={done}-"} if done else {}
                answer = connection.ask("GET", path, (200, 206), headers=asked, stream=True)
                if done and answer.status == 200:  # it knows no ranges
                    out.truncate(0)
                    found, done = hashlib.sha256(), 0
                for data in _body(answer, size - done, stop):
                    out.write(data)  # buffered: all of it, or an OSError
                    found.update(data)
                    done, came = done + len(data), came + len(data)
                    took = time.monotonic() - started
                    if took > SETTLED and came < connection.slowest * took:
                        raise Refused(
                            f"{connection.reference.host}: {came / took:.0f} bytes/s, expected "
                            f"{connection.slowest:.0f} at least; not waited for"
                        )
                    if seen:
                        seen(done - told)
                        told = done
        if stop.is_set():
            raise Stopped("stopped")
        whole = done == size == target.stat().st_size
        if whole and found.hexdigest() == digest.removeprefix("sha256:"):
            return
        if done >= size:
            target.unlink()
            word = "other bytes" if done == size else f"more than {size} bytes"
            raise Refused(
                f"{connection.reference}: {word} come as {digest}; tell who runs the registry, publish "
                "it again"
            )
        if 0 < attempt < connection.tries - 1:
            stop.wait(connection.again(f"{connection.reference}: {digest} was cut", attempt))
    raise Cut(
        f"{connection.reference}: {digest} was cut {connection.tries} times; pull again, it goes on"
    )


def _hashed(out, found, size: int) -> int:
    """How much of a blob lies in `out`, hashed; what is longer than the blob is none of it."""
    if os.fstat(out.fileno()).st_size > size:
        out.truncate(0)
    out.seek(0)
    done = 0
    while data := out.read(BLOCK):
        found.update(data)
        done += len(data)
    return done


def _body(answer, most: int, stop: Event) -> Iterator[bytes]:
    """A body's blocks, one beyond `most` bytes at the longest; it ends early where it is cut."""
    try:
        came = 0
        while came <= most and not stop.is_set() and (data := answer.read1(BLOCK)):
            came += len(data)
            yield data
    except (urllib3.exceptions.HTTPError, OSError):
        pass
    finally:
        answer.close()
        answer.release_conn()
