"""Whether what an index lists is what a trusted key signed: every manifest, and nothing beside them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.base import sealed
from ingot.base.fields import json_of
from ingot.base.refused import Refused
from ingot.registry import envelope, modelpack, provenance, transfer
from ingot.registry.listed import Listed
from ingot.registry.modelpack import IMAGES, MODEL, PROVENANCE, ROLE, TITLE, VERIFICATION

KEYS = "INGOT_TRUSTED_KEYS"  # a public key, or a folder of them: *.pem, *.pub
SIGNS = "INGOT_SIGNING_KEY"  # a private key's path
SUBJECT = "ingot:"  # before a role, among the subjects of the statement
INDEX = {"schemaVersion", "mediaType", "manifests", "annotations"}
ENTRY = {"mediaType", "digest", "size", "annotations", "platform"}
PLATFORM = {"architecture": str, "os": str}
RECORD = {"sha256": str, "result": str, "reference": str, "checks": {}}


@dataclass(frozen=True)
class Trusted:
    """What was found to be so."""

    title: str
    signers: list[str]  # names of the trusted keys
    statement: dict[str, Any]
    record: dict[str, Any]  # of the verification

    @property
    def build(self) -> dict[str, Any]:
        return self.statement["predicate"].get("buildDefinition", {})


def keys(named: list[Path]) -> list:
    """The public keys named, and those that the environment names."""
    places = [*named, *([Path(os.environ[KEYS])] if os.environ.get(KEYS) else [])]
    found = []
    for place in places:
        inside = sorted(path for path in place.glob("*") if path.suffix in (".pem", ".pub"))
        if place.is_dir() and not inside:
            raise Refused(
                f"{place}: has no *.pem and no *.pub, expected public keys; put them there"
            )
        found += [envelope.public_key(path) for path in (inside if place.is_dir() else [place])]
    return found


def signing_key(named: Path | None) -> Any:
    """The private key that is named, or that the environment names; None without one."""
    place = named or (Path(os.environ[SIGNS]) if os.environ.get(SIGNS) else None)
    return envelope.private_key(place) if place else None


def check(listed: Listed, trusted: list) -> Trusted:
    """Refused unless a trusted key signed every manifest of the index, and the verification passed."""
    said, signers = signed(listed, trusted, provenance.KIND)
    return Trusted(listed.title(), signers, said, verification(listed))


def signed(listed: Listed, trusted: list, kind: str) -> tuple[dict[str, Any], list[str]]:
    """The statement over all manifests of an index, and which trusted keys signed one of `kind`."""
    what, said, signers = listed.reference, None, []
    reason = Refused(f"{what}: not signed, expected a signature of a trusted key; not taken")
    for form, text, _ in statements(listed):
        if form != envelope.BUNDLE:
            continue
        try:
            found, key = envelope.opened(what, text, trusted)
        except Refused as error:
            reason = error
            continue
        if said in (None, found):
            said, signers = found, [*signers, envelope.name(key)]
    if said is None:
        raise reason
    if said["predicateType"] != kind:
        raise Refused(f"{what}: signed is a {said['predicateType']}, expected {kind}; not taken")
    return said, signers


def has_signature(listed: Listed) -> bool:
    """Of whomever: nothing is checked."""
    found = (listed.manifest(digest)["layers"] for digest in listed.digests(PROVENANCE))
    return any(one["mediaType"] == envelope.BUNDLE for layers in found for one in layers)


def unchecked(listed: Listed, kind: str = provenance.KIND) -> dict[str, Any]:
    """The statement of an index, whoever made it, signed or not; it is about these manifests."""
    said = [found for _, _, found in statements(listed)]
    if not said:
        raise Refused(f"{listed.reference}: has no provenance, expected it; publish it again")
    if said[0]["predicateType"] != kind:
        raise Refused(
            f"{listed.reference}: says {said[0]['predicateType']}, expected {kind}; not taken"
        )
    return said[0]


def statements(listed: Listed) -> list[tuple[str, bytes, dict[str, Any]]]:
    """Media type, bytes and statement of each provenance; each is about these manifests and no others.

    A signature cannot cover what holds it, nor what others sign later: so the index says nothing but
    manifests and roles, and a provenance is one statement about them, and nothing that runs.
    """
    _stop_on_more(listed)
    found = []
    for digest in listed.digests(PROVENANCE):
        config = listed.manifest(digest)["config"]
        form, text = listed.only_layer(digest)
        empty = config["digest"] == transfer.of_bytes(b"{}").digest
        if not empty or form not in (envelope.BUNDLE, envelope.PAYLOAD):
            raise Refused(
                f"{listed.reference}: {digest} calls itself its provenance, expected one statement and an "
                "empty config; not taken"
            )
        payload = envelope.parts(listed.reference, text)[0] if form == envelope.BUNDLE else text
        said = envelope.read_statement(listed.reference, payload)
        same_manifests(listed, said)
        found.append((form, text, said))
    return found


def _stop_on_more(listed: Listed) -> None:
    """Refuse an index, or an entry of it, with words that no signature covers.

    Tools choose by them: a platform is that of the image's own config, and no other entry has one.
    """
    more = set(listed.index) - INDEX
    for one in listed.index["manifests"]:
        more |= set(one) - ENTRY
        notes = one.get("annotations", {})
        role = notes.get(ROLE, "")
        if notes.get(TITLE, role.partition(":")[2]) != role.partition(":")[2]:
            more.add(TITLE)
        more |= set(notes) - {ROLE, TITLE}
        if one["mediaType"] not in (modelpack.MANIFEST, modelpack.INDEX):
            more.add(one["mediaType"])
        if "platform" in one and (role not in IMAGES or one["platform"] != _platform(listed, role)):
            more.add(f"platform of {role or one['digest']}")
    if more:
        raise Refused(
            f"{listed.reference}: its index says {', '.join(sorted(more))}, which no signature covers, "
            "expected manifests and their roles; not taken"
        )


def _platform(listed: Listed, role: str) -> dict[str, str]:
    """What an image's config says, which its manifest names by digest."""
    text = transfer.get(listed.connection, listed.manifest(listed.one(role))["config"])
    found = json_of(listed.reference, text, PLATFORM)
    return {name: found[name] for name in PLATFORM}


def same_manifests(listed: Listed, said: dict[str, Any]) -> None:
    """The signature covers each manifest of the index, by role, and the index has each of it."""
    signed = {
        name.removeprefix(SUBJECT): digest
        for name, digest in envelope.digests(said).items() if name.startswith(SUBJECT)
    }  # fmt: skip
    roles = [one.get("annotations", {}).get(ROLE, "") for one in listed.index["manifests"]]
    here = {role: listed.one(role) for role in roles if role != PROVENANCE}
    for role in sorted({*signed, *here}):
        if signed.get(role) != here.get(role):
            raise Refused(
                f"{listed.reference}: its {role} is {here.get(role)}, but {signed.get(role)} was signed; "
                "not taken"
            )


def verification(listed: Listed) -> dict[str, Any]:
    """The verification record, which is about the very files that the index lists, and passed."""
    _, text = listed.only_layer(listed.one(VERIFICATION))
    found = json_of(listed.reference, text, RECORD)
    files = modelpack.named(listed.manifest(listed.one(MODEL))["layers"])
    about = files.get(sealed.SUMS, files.get(listed.title(), "")).removeprefix("sha256:")
    if found["result"] != "passed" or found["sha256"] != about:
        raise Refused(
            f"{listed.reference}: its verification {found['result']}, of {found['sha256'][:12]}, expected "
            f"passed, of {about[:12]}; not taken"
        )
    return found
