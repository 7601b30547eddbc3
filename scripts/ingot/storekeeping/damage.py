"""What rests on a damaged blob: what read it may be wrong, whatever its own bytes and its own key say.

A record says what its action read and what it gave.  The actions that read the damaged bytes are dropped
with those whose bytes they are.  What rests on these in turn is right of what it read: it is found again
where a new build gives the same bytes, and not where it gives others.
"""

from collections.abc import Iterable
from typing import Any

from ingot.checkpoint import identity
from ingot.store.records import Record, Store


def drop(store: Store, names: Iterable[str]) -> list[Record]:
    """Drop the records that rest on the blobs `names`; in the shared cache they are not believed either.

    To be called while the blobs still stand where they were: a shard is known by that, too.
    """
    bad = set(names)
    shards = {identity.known(store.blob(name)) for name in bad} - {None}
    records = list(store.records())
    trees = {
        output["digest"]
        for record in records
        for output in record.outputs
        if bad & {entry.get("digest") for entry in output.get("entries", ())}
    }
    known, found = bad | shards | trees, []
    for record in records:
        read = set(_digests(store.config(record).get("fields", {}).get("inputs", {})))
        own = {record.digest, record.manifest["config"]["digest"], *record.files}
        if bad & own or known & read:
            store.distrust(record)
            record.path.unlink(missing_ok=True)
            found.append(record)
    return found


def _digests(value: Any) -> Iterable[str]:
    """Every text of a JSON value: a name that is no digest is equal to none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _digests(one)
