"""Which runs use the store, and where: so that gc deletes nothing that they need.

A run that is alive holds a lock on its lease.  A working folder has a note that lists the actions
that it asked for: they are kept while the folder cannot be seen, whatever the reason.
"""

import contextlib
import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ingot.base import digest, memo
from ingot.base.durable import regular_bytes
from ingot.base.fields import held
from ingot.base.refused import Refused
from ingot.base.shared import make_folder
from ingot.store.locks import opened
from ingot.store.records import Store

LOOK = os.R_OK | os.X_OK
MACHINE = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
LEASE = {"folder": str, "keys": [str]}
NOTE = {"machine": str, "folder": str, "identity": str}


@dataclass(frozen=True)
class Note:
    """A working folder that used the store."""

    place: Path
    machine: str
    folder: str
    identity: str  # of the folder's file system, and inode there
    keys: frozenset[str]  # of the actions that were asked for there

    @property
    def seen(self) -> bool:
        """Can we look into it?  Another disk at its path is not it, nor another machine's folder."""
        if self.machine != machine() or self.identity != _identity(self.folder):
            return False
        artifacts = Path(self.folder, "artifacts")
        return os.access(self.folder, LOOK) and (
            not artifacts.exists() or os.access(artifacts, LOOK)
        )


def hold(store: Store, keys: Iterable[str]) -> IO[bytes] | None:
    """Put down which actions this run uses; the lease ends with the process.  None if it cannot."""
    keys = list(keys)
    with contextlib.suppress(OSError), store.locked("content", shared=True):  # gc waits meanwhile
        note_folder(store, keys)
        place = store.root / "leases" / uuid.uuid4().hex  # no pid: containers share them
        make_folder(place.parent, store.root)
        lease = opened(place)
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _ours.add(place.name)
        lease.write(json.dumps({"folder": str(Path.cwd()), "keys": keys}).encode())
        return lease
    return None


def note_folder(store: Store, keys: Iterable[str]) -> None:
    """Remember this working folder, and that these actions were asked for there."""
    here, ours = str(Path.cwd()), machine()
    identity = _identity(here)
    place = _place(store, identity)
    known = _note(place)
    if known is None or known.folder != here:
        make_folder(place.parent, store.root)
        text = json.dumps({"machine": ours, "folder": here, "identity": identity})
        old = known.keys if known else ()
        with store.temporary(place) as partial:
            partial.write_text("\n".join([text, *sorted(old)]) + "\n")
    if fresh := set(keys) - (known.keys if known else frozenset()):
        with place.open("a") as note:
            note.write("".join(f"{key}\n" for key in sorted(fresh)))


def keys(store: Store, folder: Path) -> frozenset[str]:
    """The actions that runs in this working folder asked for."""
    found = _note(_place(store, _identity(str(folder.absolute()))))
    return found.keys if found else frozenset()


def _place(store: Store, identity: str) -> Path:
    return store.root / "folders" / digest.of_json([machine(), identity])[:16]


def _note(place: Path) -> Note | None:
    try:
        first, *keys = regular_bytes(place).decode().splitlines()
        found = json.loads(first)
        held(place, found, NOTE)
    except (OSError, ValueError, Refused, RecursionError):
        return None
    return Note(place, found["machine"], found["folder"], found["identity"], frozenset(keys))


def notes(store: Store) -> Iterator[Note]:
    """The working folders that are on record, seen or not."""
    for place in sorted(store.root.glob("folders/[0-9a-f]*")):
        if found := _note(place):
            yield found


def machine() -> str:
    """What names this machine, whatever it calls itself today."""
    for place in MACHINE:
        with contextlib.suppress(OSError):
            if text := place.read_text().strip():
                return text
    return socket.gethostname()


def _identity(folder: str) -> str:
    try:
        state = Path(folder).stat()
    except OSError:
        return ""
    return f"{memo.file_system(folder, state.st_dev)}-{state.st_ino:x}"


_ours: set[str] = set()  # names of this process's leases


def alive(store: Store, but_ours: bool = False) -> Iterator[dict]:
    """The leases of runs that are alive; those of the dead are removed.

    Refused when a live one cannot be read: nobody can say what it needs.
    """
    for place in sorted(store.root.glob("leases/[0-9a-f]*")):
        if but_ours and place.name in _ours:
            continue
        if (lease := _lease(place)) is not None:
            yield lease


def _lease(place: Path) -> dict | None:
    try:
        with os.fdopen(os.open(place, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                place.unlink()
                return None
            except BlockingIOError:
                found = json.loads(regular_bytes(place))
                held(place, found, LEASE)
                return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, Refused) as error:
        raise Refused(
            f"{place}: a lease that cannot be read ({error}), expected what a running build needs; "
            "wait for the build, or delete the file when there is none"
        ) from None
