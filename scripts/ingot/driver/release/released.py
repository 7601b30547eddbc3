"""A release in a registry: an index of its cells' indexes, its document, and a signature over both."""

from dataclasses import dataclass, replace
from typing import Any

from ingot.base.digest import canonical
from ingot.base.refused import Refused
from ingot.driver.release import document
from ingot.driver.release.document import Document
from ingot.registry import envelope, listed, modelpack, parts, published, transfer, trusted
from ingot.registry.connection import Connection
from ingot.registry.listed import Listed
from ingot.registry.modelpack import PROVENANCE, ROLE, TITLE, described
from ingot.registry.published import Artifact, Origin
from ingot.registry.reference import Reference
from ingot.registry.trusted import SUBJECT

RELEASE, CELL = "release", "cell:"  # roles
KIND = "urn:ingot:release:1"
FORM = "application/vnd.ingot.release.v1+json"
SHOWN = 20  # cells in a message, beside the first


@dataclass(frozen=True)
class Released:
    document: Document
    signers: list[str]
    digest: str


def cell(
    connection: Connection,
    artifact: Artifact,
    origin: Origin,
    tag: str,
    image: bool,
    sources: list[str],
) -> tuple[dict[str, Any], int]:
    """Publish one cell: its index's descriptor in the release, and how many bytes were sent."""
    rule = parts.rule_for(connection.reference.host, parts.NONE)
    digest, sent = published.publish(connection, artifact, tag, None, origin, rule, image, sources)
    index, _ = transfer.get_manifest(connection, digest)
    notes = {ROLE: CELL + artifact.title, TITLE: artifact.title}
    return described(modelpack.INDEX, digest, len(canonical(index)), **notes), sent


def publish(
    connection: Connection, said: Document, cells: dict[str, dict[str, Any]], key: Any
) -> str:
    """Put the release's own index, at its version; the digest."""
    one = published.Index()
    one.document(RELEASE, said.text(), FORM, f"{said.name}.json")
    subjects = {SUBJECT + RELEASE: one.digest(RELEASE)}
    subjects |= {f"{SUBJECT}{CELL}{title}": entry["digest"] for title, entry in cells.items()}
    if key is not None:
        bare = {name: digest.removeprefix("sha256:") for name, digest in subjects.items()}
        statement = envelope.statement(bare, KIND, {"release": said.name})
        text = envelope.sign(statement, key)
        one.document(PROVENANCE, text, envelope.BUNDLE, f"{said.name}.sigstore.json")
    transfer.push(connection, one.contents)
    entries = list(cells.values())
    for role, manifest in one.manifests.items():
        digest, size = transfer.put_manifest(connection, manifest)
        entries.append(described(modelpack.MANIFEST, digest, size, **{ROLE: role}))
    index = modelpack.index(entries, **{TITLE: said.name})
    return transfer.put_manifest(connection, index, said.version)[0]


def named(found: Listed) -> list[tuple[str, str]]:
    """The target and the digest of each cell's index; none where it is no release."""
    roles = [(one.get("annotations", {}).get(ROLE, ""), one) for one in found.index["manifests"]]
    return [
        (role.removeprefix(CELL), one["digest"]) for role, one in roles if role.startswith(CELL)
    ]


def cells(found: Listed) -> list[str]:
    """The digests of the cells' indexes."""
    return [digest for _, digest in named(found)]


def pulled_by(place: Reference, name: str, titles: list[str], only: list[str]) -> str:
    """What is said of a release, named MODEL@VERSION, where one artifact is asked for: as which reference
    each cell is there, or those that `only` names."""
    version = name.rpartition("@")[2] or place.tag
    wanted = sorted({*only} & {*titles}) or sorted(titles)
    first, *others = [f":{version}-{title}" for title in wanted]
    more = f", and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    listed = ", ".join([f"{replace(place, tag='', digest='')}{first}", *others[:SHOWN]]) + more
    count = f"{len(titles)} cell{'' if len(titles) == 1 else 's'}"
    which = f"pull {'one of ' if others else ''}{listed}"
    return f"{place}: a release of {count}, expected one artifact; {which}"


def stop_on_release(found: Listed, only: list[str]) -> None:
    """Refuse a release where one artifact is asked for; nothing of it is believed."""
    if titles := [title for title, _ in named(found)]:
        name = found.index.get("annotations", {}).get(TITLE, "")
        raise Refused(pulled_by(found.connection.reference, name, titles, only))


def read(connection: Connection, keys: list) -> Released:
    """The release behind a reference; its signature is checked where there are keys to trust."""
    found = listed.read(connection)
    if not found.digests(RELEASE) and not cells(found):
        raise Refused(
            f"{connection.reference}: one artifact, expected a release (MODEL@VERSION of `ingot release`); "
            "`ingot show` says what it is made from"
        )
    signers = trusted.signed(found, keys, KIND)[1] if keys else []
    _, text = found.only_layer(found.one(RELEASE))
    said = document.read(found.reference, text)
    here = {title for title, _ in named(found)}
    if here != set(said.cells):
        odd = sorted(here ^ set(said.cells))
        raise Refused(f"{found.reference}: {odd[0]} is in its index or its document, not in both")
    return Released(said, signers, found.digest)
