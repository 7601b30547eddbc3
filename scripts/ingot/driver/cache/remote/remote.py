"""The shared cache, asked and written to; whatever it does, the build goes on.

Records are looked up in parallel, before anything runs; a blob is fetched when something needs it, and
written back behind the build.  What fails ends the matter for this run, in one line.
"""

import fcntl
import hashlib
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.driver.cache.remote import entry
from ingot.driver.cache.remote.entry import Found
from ingot.driver.cache.remote.settings import POLICY, READ, Settings
from ingot.registry import reference, transfer
from ingot.registry.connection import Answer, Connection, Cut
from ingot.store.records import Record, Store

AT_ONCE = 8  # look-ups
PATIENCE = 30.0  # seconds that the look-ups of one moment may take
SILENCE = 15.0  # seconds without a byte
TRIES = 3
NO_WRITES = 405  # of a registry that is a mirror, or read-only
SLOWEST = 100_000  # bytes/s on average, below which building is taken to be quicker
STILL = 60.0  # seconds without a byte sent, at the end of a run
QUIET = 2.0  # seconds of waiting for the registry at the end of a run; longer is said


class Remote:
    """`looks` is for dry runs: nothing is fetched or written, here or there."""

    def __init__(self, settings: Settings, store: Store, looks: bool = False):
        self.settings, self.store = settings, store
        self.writes = settings.writes and not looks
        self.place = reference.parse(settings.reference)
        self.why_not = ""  # it is left alone for the rest of this run
        self.answers: dict[str, Found | None] = {}  # by tag
        self.known: set[str] = set()  # the keys of those records
        self.sending: queue.Queue[tuple[Record, str, list[str]]] = queue.Queue()
        self.sound: dict[
            str, bool
        ] = {}  # blobs that were read before something made of them was sent
        self.sender: threading.Thread | None = None
        self.sent = self.moved = 0  # bytes
        self._connection: Connection | None = None
        self.lock = threading.Lock()

    @property
    def connection(self) -> Connection:
        with self.lock:
            if self._connection is None:
                access = "pull,push" if self.writes else "pull"
                self._connection = Connection(
                    self.place,
                    access,
                    self.settings.plain,
                    silence=SILENCE,
                    tries=TRIES,
                    slowest=SLOWEST,
                    longest_wait=SILENCE,
                    quiet=True,
                )
            return self._connection

    def give_up(self, reason: object) -> None:
        with self.lock:
            told, self.why_not = self.why_not, self.why_not or str(reason)
        if not told:
            print(f"shared cache: left alone in this run ({reason})", file=sys.stderr)

    # Records

    def ask(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Look up what was not looked up yet: pairs of a rule and a tag."""
        new = [pair for pair in dict.fromkeys(wanted) if pair[1] not in self.answers]
        if not new or self.why_not:
            return
        left: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        found: queue.SimpleQueue[tuple[str, Found | None]] = queue.SimpleQueue()
        for pair in new:
            left.put(pair)

        def work() -> None:
            with suppress(queue.Empty):
                while True:
                    rule, tag = left.get_nowait()
                    found.put((tag, self._look_up(rule, tag)))

        for _ in range(min(AT_ONCE, len(new))):  # daemons: nobody waits for one whose answer drips
            threading.Thread(target=work, name="look-up", daemon=True).start()
        end = time.monotonic() + PATIENCE
        for _ in new:
            try:
                tag, one = found.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.give_up(f"{self.place.host} takes more than {PATIENCE:.0f} s to answer")
                return
            self.answers[tag] = one
            self.known |= {one.record.key} if one else set()

    def _look_up(self, rule: str, tag: str) -> Found | None:
        if self.why_not:
            return None
        what = f"{self.place}:{tag[:15]}"
        try:
            return self._found(what, rule, tag)
        except (Answer, Cut, OSError) as error:
            self.give_up(error)
        except Refused as error:
            print(f"shared cache: {error}", file=sys.stderr)
        except Exception as error:  # whatever comes from there, the build goes on
            self.give_up(repr(error))
        return None

    def _found(self, what: str, rule: str, tag: str) -> Found | None:
        found = transfer.find_manifest(self.connection, tag)
        if found is None:
            return None
        one = entry.opened(what, found[0], self.settings.keys, rule, tag)
        manifest = one.manifest or transfer.get_manifest(self.connection, one.digest)[0]
        record = self.store.parsed(digest.canonical(manifest), rule)
        if record is None or record.digest != one.digest:
            raise Refused(f"{what}: a record of another form than ours; not taken")
        if self.store.distrusts(record):
            raise Refused(f"{what}: made of a damaged file; not taken, built again")
        if tag.startswith("ac-") and tag != entry.tag("ac", record.key):
            raise Refused(f"{what}: the record of another action; not taken")
        config = one.config or transfer.get(self.connection, record.manifest["config"])
        if transfer.of_bytes(config).digest != record.manifest["config"]["digest"]:
            raise Refused(f"{what}: another config than its record names; not taken")
        return Found(record, config)

    # Files

    def fetch(self, output: dict[str, Any], title: str) -> None:
        """Bring the files of an output that the store lacks.  Refused or an OSError: they do not come."""
        files = {
            one["digest"]: one["size"] for one in output.get("entries", [output])
            if "digest" in one and not self.store.has(one["digest"])
        }  # fmt: skip
        if self.why_not:
            raise Refused(f"{title}: {self.why_not}")
        progress = Progress(f"fetching {title}", sum(files.values()))

        def one(pair: tuple[str, int], stop: threading.Event) -> None:
            name, size = pair
            self._fetch(name, size, progress, stop)

        try:
            transfer.in_parallel(one, files.items())
        except (Refused, OSError):
            raise
        except Exception as error:  # whatever comes from there, the build goes on
            raise Refused(f"{title}: {error!r}") from None
        total = sum(files.values()) / 1e6
        print(f"{title}: {total:.1f} MB fetched from the shared cache", file=sys.stderr)

    def _fetch(self, name: str, size: int, progress: Progress, stop: threading.Event) -> None:
        """One blob; what a cut left is gone on with, by whichever run comes next."""
        blob = self.store.blob(name)
        coming = blob.with_name(f".{blob.name}.coming")
        with _only_one(coming):
            if self.store.has(name):  # another run fetched it meanwhile
                coming.unlink(missing_ok=True)
                return
            try:
                transfer.pull(self.connection, name, size, coming, progress.add, stop)
                coming.chmod(0o444)
                digest.finished(coming, blob, blob.name)
            finally:
                with suppress(OSError):
                    if not coming.stat().st_size:
                        coming.unlink()
        self.store.persist(name)

    # Written back

    def send(self, record: Record, recipe: str, read: list[str]) -> None:
        """Behind the build: what the action gave, then its record.

        `read` are the blobs that it, and all on the way to it, were made of: they are read once more in a
        run, since others would take what was made of a rotten one for years.
        """
        if not self.writes or self.why_not:
            return
        if self.sender is None:
            self.sender = threading.Thread(target=self._send_all, name="remote", daemon=True)
            self.sender.start()
        self.sending.put((record, recipe, read))

    def _send_all(self) -> None:
        while True:
            record, recipe, read = self.sending.get()
            try:
                going = self.writes and not self.why_not
                if going and self._rests_on_sound(record, read):
                    self._send(record, recipe)
            except Answer as error:
                if error.status == NO_WRITES:
                    self._only_read()
                else:
                    self.give_up(error)
            except (Refused, OSError) as error:
                self.give_up(error)
            except Exception as error:  # the thread goes on: close() waits for its queue
                self.give_up(repr(error))
            self.sending.task_done()

    def _only_read(self) -> None:
        """What the registry has is fetched all the same."""
        self.writes = False
        print(
            f"shared cache: {self.place.host} takes no writes ({NO_WRITES}), so nothing is sent in this "
            f"run; set {POLICY}={READ}",
            file=sys.stderr,
        )

    def _rests_on_sound(self, record: Record, read: list[str]) -> bool:
        """Do the blobs that a record rests on hold what their names say?  Where not, what was made of them
        is dropped, and nothing that rests on it is sent."""
        for name in read:
            if name in self.sound or not self.store.blob(name).exists():
                continue
            self.sound[name] = self._hashed(self.store.blob(name)) in (name, "")
            if not self.sound[name]:
                for one in self.store.quarantine(name):
                    again = "not sent, built again when it is next asked for"
                    print(f"{one.title}: rests on a damaged file; {again}", file=sys.stderr)
        return all(self.sound.get(name, True) for name in read)

    def _hashed(self, blob: Path) -> str:
        """What a blob holds; close() waits while its bytes move.  Empty where it went meanwhile."""
        found = hashlib.sha256()
        with suppress(FileNotFoundError), digest.from_disk(blob) as file:
            while data := file.read(digest.CHUNK):
                found.update(data)
                self._seen(len(data))
            return f"sha256:{found.hexdigest()}"
        return ""

    def _send(self, record: Record, recipe: str) -> None:
        files = (record.manifest["config"], *record.manifest["layers"])
        if not all(self.store.blob(one["digest"]).exists() for one in files):
            return  # dropped meanwhile: keep=targets
        contents = [
            transfer.Content(one["digest"], one["size"], self.store.blob(one["digest"]))
            for one in files
        ]
        self.sent += transfer.push(self.connection, contents, self._seen)
        transfer.put_manifest(self.connection, record.manifest)
        config = self.store.blob(record.manifest["config"]["digest"]).read_bytes()
        index = entry.index(record, config, recipe, self.settings.signs)
        for tag in [entry.tag("ac", record.key), *([entry.tag("re", recipe)] if recipe else [])]:
            transfer.put_manifest(self.connection, index, tag)

    def _seen(self, count: int) -> None:
        self.moved += abs(count)

    def close(self) -> None:
        """The run ends when all that was to be sent is, or cannot be: no byte went for STILL seconds."""
        with self.sending.all_tasks_done:
            if self.sender and not self._done(QUIET):
                left = self.sending.unfinished_tasks
                print(f"shared cache: sending {left} artifacts", file=sys.stderr, flush=True)
                before = -1
                while before != self.moved and not self.why_not:
                    before = self.moved
                    if self._done(STILL):
                        break
        if self.sent:
            print(f"shared cache: {self.sent / 1e6:.1f} MB sent", file=sys.stderr)
            self.sent = 0

    def _done(self, seconds: float) -> bool:
        return self.sending.all_tasks_done.wait_for(
            lambda: not self.sending.unfinished_tasks, seconds
        )


@contextmanager
def _only_one(coming: Path) -> Iterator[None]:
    """One run at a time fetches to a name; the others wait, and find it done."""
    while True:
        coming.touch(exist_ok=True)
        with coming.open("rb") as file:  # it may be read-only: of a run that was killed at its end
            fcntl.flock(file, fcntl.LOCK_EX)
            mine = False
            with suppress(FileNotFoundError):
                mine = coming.stat().st_ino == os.fstat(file.fileno()).st_ino
            if mine:
                if not os.access(coming, os.W_OK):
                    coming.unlink()
                yield
                return
