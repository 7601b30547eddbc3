"""Whether what an index lists is what a trusted key signed: every manifest, and nothing beside them."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingot.fields import held
from ingot.files import sealed
from ingot.publishing import modelpack
from ingot.publishing.listed import Listed
from ingot.publishing.modelpack import MODEL, PROVENANCE, ROLE, VERIFICATION
from ingot.refused import Refused
from ingot.trust import envelope, provenance

KEYS = "INGOT_TRUSTED_KEYS"  # a public key, or a folder of them: *.pem, *.pub
SIGNS = "INGOT_SIGNING_KEY"  # a private key's path
SUBJECT = "ingot:"  # before a role, among the subjects of the statement
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
    documents = [listed.only_layer(digest) for digest in listed.digests(PROVENANCE)]
    reason = Refused(f"{what}: not signed, expected a signature of a trusted key; not taken")
    for bundle in (text for kind, text in documents if kind == envelope.BUNDLE):
        try:
            found, key = envelope.opened(what, bundle, trusted)
        except Refused as error:
            reason = error
            continue
        same_manifests(listed, found)
        if said in (None, found):
            said, signers = found, [*signers, envelope.name(key)]
    if said is None:
        raise reason
    if said["predicateType"] != kind:
        raise Refused(f"{what}: signed is a {said['predicateType']}, expected {kind}; not taken")
    return said, signers


def unchecked(listed: Listed, kind: str = provenance.KIND) -> dict[str, Any]:
    """The statement of an index, whoever made it, signed or not; it is about these manifests."""
    bundles = listed.digests(PROVENANCE)
    if not bundles:
        raise Refused(f"{listed.reference}: has no provenance, expected it; publish it again")
    form, text = listed.only_layer(bundles[0])
    payload = envelope.parts(listed.reference, text)[0] if form == envelope.BUNDLE else text
    found = envelope.read_statement(listed.reference, payload)
    if found["predicateType"] != kind:
        raise Refused(
            f"{listed.reference}: says {found['predicateType']}, expected {kind}; not taken"
        )
    same_manifests(listed, found)
    return found


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
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    held(listed.reference, found, RECORD)
    files = modelpack.named(listed.manifest(listed.one(MODEL))["layers"])
    about = files.get(sealed.SUMS, files.get(listed.title(), "")).removeprefix("sha256:")
    if found["result"] != "passed" or found["sha256"] != about:
        raise Refused(
            f"{listed.reference}: its verification {found['result']}, of {found['sha256'][:12]}, expected "
            f"passed, of {about[:12]}; not taken"
        )
    return found
