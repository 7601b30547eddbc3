"""The shared cache that the environment, or the site file, names; and what of it is believed.

INGOT_REMOTE=oci://host/repository     oci+http:// without TLS to a host that is not this machine
INGOT_REMOTE_POLICY=read-only          or read-write, the default where CI is set; or off
INGOT_TRUSTED_KEYS=FILE-or-folder      public keys: no record counts but what one of them signed
INGOT_REMOTE_TRUST=registry            or: whoever may write the registry is trusted
INGOT_SIGNING_KEY=FILE                 what is written is signed by it
"""

import contextlib
import os
from dataclasses import dataclass

from ingot.base.refused import Refused
from ingot.store.records import Store

NAME, POLICY, TRUST = "INGOT_REMOTE", "INGOT_REMOTE_POLICY", "INGOT_REMOTE_TRUST"
READ, WRITE, OFF = "read-only", "read-write", "off"
REGISTRY = "registry"
PLAIN = "oci+http://"
PUBLISHED, MOUNTED = (
    "published",
    3,
)  # a file of the store; of how many repositories blobs are mounted


@dataclass(frozen=True)
class Settings:
    reference: str
    writes: bool
    keys: tuple  # public ones; empty where the registry is trusted
    signs: object = None  # our private key
    plain: bool = False


def read(looks: bool = False) -> Settings | None:
    """None where there is no shared cache.  Refused: one that nobody vouches for, or that a run which does
    more than look could not sign for."""
    place = os.environ.get(NAME, "")
    policy = os.environ.get(POLICY) or (WRITE if os.environ.get("CI") else READ)
    if not place or policy == OFF:
        return None
    from ingot.registry import reference, trusted

    if policy not in (READ, WRITE):
        raise Refused(f"{POLICY}: {policy}, expected {READ}, {WRITE} or {OFF}")
    trust, keys = os.environ.get(TRUST, ""), tuple(trusted.keys([]))
    if trust not in ("", REGISTRY):
        raise Refused(f"{TRUST}: {trust}, expected {REGISTRY} or nothing")
    if not keys and not trust:
        raise Refused(
            f"{NAME}: {place}, but nobody's records are trusted; name public keys in {trusted.KEYS}, or "
            f"set {TRUST}={REGISTRY} if all who may write there are"
        )
    signs = trusted.signing_key(None)
    if policy == WRITE and not looks and keys and signs is None:
        raise Refused(
            f"{trusted.SIGNS}: missing, expected the key to sign by; name it, or set {POLICY}={READ}"
        )
    plain = place.startswith(PLAIN)
    found = reference.parse(place.replace(PLAIN, reference.SCHEME, 1))
    if found.tag or found.digest:
        raise Refused(f"{NAME}: {place}, expected no tag; leave it out")
    return Settings(str(found), policy == WRITE, keys, signs, plain)


def repositories(host: str, store: Store) -> list[str]:
    """Repositories of the registry `host` that hold blobs of this store: of the shared cache, and those
    that were published to last.  What is there is mounted, not sent."""
    found = []
    if place := os.environ.get(NAME, "").replace(PLAIN, "oci://", 1):
        from ingot.registry import reference

        shared = reference.parse(place)
        found += [shared.repository] if shared.host == host else []
    with contextlib.suppress(OSError, ValueError):
        pairs = [line.split() for line in (store.root / PUBLISHED).read_text().splitlines()]
        found += [pair[1] for pair in reversed(pairs) if len(pair) == 2 and pair[0] == host]
    return list(dict.fromkeys(found))[:MOUNTED]


def published_to(host: str, repository: str, store: Store) -> None:
    """Keep it in mind for the next publication."""
    place, line = store.root / PUBLISHED, f"{host} {repository}"
    with contextlib.suppress(OSError):
        known = place.read_text().splitlines() if place.exists() else []
        with store.temporary(place) as partial:
            partial.write_text("\n".join([*(one for one in known[-99:] if one != line), line, ""]))
