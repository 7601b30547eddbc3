"""Which runs use the store, and where: so that gc deletes nothing that they need."""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from ingot.files import digest
from ingot.store.records import Store


def hold(store: Store, keys: Iterable[str]) -> IO[str] | None:
    """Put down which actions this run uses; the lease ends with the process.  None if it cannot."""
    with contextlib.suppress(OSError), store.locked("content", shared=True):  # gc waits meanwhile
        _note_folder(store)
        place = store.root / "leases" / f"{socket.gethostname()}-{os.getpid()}"
        place.parent.mkdir(exist_ok=True)
        lease = place.open("w")
        fcntl.flock(lease, fcntl.LOCK_EX)
        json.dump({"folder": str(Path.cwd()), "keys": list(keys)}, lease)
        lease.flush()
        return lease
    return None


def _note_folder(store: Store) -> None:
    """Remember this working folder: what its artifacts point to is kept."""
    here = f"{socket.gethostname()} {Path.cwd()}"
    place = store.root / "folders" / digest.of_json(here)[:16]
    if not place.exists():
        place.parent.mkdir(exist_ok=True)
        with store.temporary(place) as partial:
            partial.write_text(here)


def folders(store: Store) -> Iterator[Path]:
    """The working folders of this host; those of other hosts cannot be seen from here."""
    for note in store.root.glob("folders/*"):
        host, _, folder = note.read_text().partition(" ")
        if host != socket.gethostname():
            continue
        if Path(folder).is_dir():
            yield Path(folder)
        else:
            note.unlink(missing_ok=True)


def alive(store: Store, but_ours: bool = False) -> Iterator[dict]:
    """The leases of runs that are alive; those of the dead are removed."""
    for place in store.root.glob("leases/*"):
        if but_ours and place.name == f"{socket.gethostname()}-{os.getpid()}":
            continue
        with contextlib.suppress(OSError), place.open() as lease:
            try:
                fcntl.flock(lease, fcntl.LOCK_SH | fcntl.LOCK_NB)
                place.unlink()
            except BlockingIOError:
                yield json.loads(lease.read() or '{"keys": []}')
