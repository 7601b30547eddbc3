"""What rests on a damaged blob: what read it may be wrong, whatever its own bytes and its own key say.

A record says what its action read and what it gave.  Those whose actions read the damaged bytes are
dropped; the one whose bytes they are stays, since its bytes come again.  What rests on the dropped ones in
turn is right of what it read, and is found again where a new build gives the same bytes; but a recipe names
no bytes, so that what the shared cache says of any of them is not believed.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ingot.model.checkpoint import identity


def drop(store: Any, names: Iterable[str]) -> list[Any]:
    """Drop the records of a store (records.Store) whose actions read the blobs `names`; those records.

    To be called while the blobs still stand where they were: a shard is known by that, too.
    """
    bad = set(names)
    known = bad | ({identity.known(store.blob(name)) for name in bad} - {None})
    records = [(record, _read(store, record)) for record in store.records()]
    for record, _ in records:
        known |= {
            output["digest"]
            for output in record.outputs
            if bad & {entry.get("digest") for entry in output.get("entries", ())}
        }
    found = [record for record, read in records if read is None or known & read]
    resting = list(found)
    for record in resting:  # grows while it is walked
        given = {output["digest"] for output in record.outputs}
        resting += [one for one, read in records if read and given & read and one not in resting]
    for record in resting:
        with suppress(OSError):  # another user's store
            store.distrust(record)
    for record in found:
        with suppress(OSError):
            record.path.unlink(missing_ok=True)
    return found


def _read(store: Any, record: Any) -> set[str] | None:
    """The digests of what an action read; None where nobody knows any more."""
    fields = store.config(record).get("fields")
    return set(texts(fields.get("inputs", {}))) if isinstance(fields, dict) else None


def texts(value: Any) -> Iterable[str]:
    """Every text of a JSON value, such as the digests among the inputs of a key's fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from texts(one)
