"""A statement that somebody signed: in-toto, in a DSSE envelope, in a Sigstore bundle; offline, by a key.

Source: DSSE 1.0 (secure-systems-lab/dsse), Sigstore's bundle v0.3 (sigstore/protobuf-specs).  Keys are
ECDSA over P-256, as PEM; `openssl ecparam -name prime256v1 -genkey -noout` makes one.
"""

import base64
import binascii
import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ingot.base.digest import canonical
from ingot.base.fields import held, json_of
from ingot.base.refused import Refused

BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
ENVELOPE = {
    "mediaType": str,
    "dsseEnvelope": {"payload": str, "payloadType": str, "signatures": [{"sig": str}]},
}
FORM = {
    "_type": str,
    "subject": [{"name?": str, "digest": {str: str}}],
    "predicateType": str,
    "predicate": {},
}
MAKE = "docs/publishing.md, Signatures, has the commands that make one"
SHA256 = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)  # RFC 6979


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Refused: what is no key of P-256 without a password."""
    text = _pem(path, "private")
    try:
        found = serialization.load_pem_private_key(text, None)
    except TypeError:
        raise Refused(
            f"{path}: a key with a password, expected PEM of P-256 without one; name another"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey) or found.curve.name != "secp256r1":
        what = "no private key that we can read"
        if found is None and b"-----BEGIN PUBLIC KEY-----" in text:
            what = "a public key, which signs nothing"
        raise Refused(
            f"{path}: {_kind(found) or what}, expected PEM of P-256, the private key; {MAKE}"
        )
    return found


def _pem(path: Path, kind: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise Refused(
            f"{path}: no such file, expected PEM of P-256, a {kind} key; name another"
        ) from None
    except OSError as error:
        raise Refused(
            f"{path}: {error.strerror}, expected PEM of P-256, a {kind} key; name another"
        ) from None


def _kind(key: Any) -> str:
    """What a key of another kind is; empty of none."""
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return "an RSA key"
    return f"a key of {getattr(getattr(key, 'curve', None), 'name', 'another kind')}" if key else ""


def public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Of its file, or of the private key's."""
    text = _pem(path, "public")
    try:
        found = serialization.load_pem_public_key(text)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        try:
            found = serialization.load_pem_private_key(text, None).public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm, AttributeError):
            found = None
    if not isinstance(found, ec.EllipticCurvePublicKey) or found.curve.name != "secp256r1":
        raise Refused(
            f"{path}: {_kind(found) or 'no public key that we can read'}, expected PEM of P-256, a public "
            "key; name another"
        )
    return found


def name(key: ec.EllipticCurvePublicKey) -> str:
    """What a bundle calls it: `sha256sum` of the public key's file, as openssl writes it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.PEM, form)).hexdigest()


def statement(subjects: dict[str, str], kind: str, predicate: dict[str, Any]) -> dict[str, Any]:
    """in-toto's; `subjects` are SHA-256 in hex, by name."""
    listed = [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()]
    return {"_type": STATEMENT, "subject": listed, "predicateType": kind, "predicate": predicate}


def sign(said: dict[str, Any], key: ec.EllipticCurvePrivateKey) -> bytes:
    """The bundle: the same bytes for one statement and key, so that a registry has it already."""
    payload = canonical(said)
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD,
        "signatures": [{"sig": base64.b64encode(key.sign(_encoded(payload), SHA256)).decode()}],
    }
    by = {"publicKey": {"hint": name(key.public_key())}, "tlogEntries": []}
    return canonical({"mediaType": BUNDLE, "verificationMaterial": by, "dsseEnvelope": envelope})


def opened(
    what: str, bundle: bytes, keys: list[ec.EllipticCurvePublicKey]
) -> tuple[dict[str, Any], ec.EllipticCurvePublicKey]:
    """The statement in a bundle that one of `keys` signed, and which.  Refused: any other."""
    payload, signature = parts(what, bundle)
    for key in keys:
        try:
            key.verify(signature, _encoded(payload), SHA256)
        except InvalidSignature:
            continue
        return read_statement(what, payload), key
    known = ", ".join(name(key)[:12] for key in keys) or "none"
    raise Refused(f"{what}: no signature of a trusted key ({known}), expected one; not taken")


def parts(what: str, bundle: bytes) -> tuple[bytes, bytes]:
    """Payload and signature of a bundle, nothing of which is believed yet."""
    try:
        found = json.loads(bundle)
        held(what, found, ENVELOPE)
        envelope = found["dsseEnvelope"]
        if found["mediaType"] != BUNDLE or envelope["payloadType"] != PAYLOAD:
            raise ValueError
        (signature,) = envelope["signatures"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        return payload, base64.b64decode(signature["sig"], validate=True)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise Refused(
            f"{what}: no Sigstore bundle of one signature, expected one; not taken"
        ) from None


def read_statement(what: str, payload: bytes) -> dict[str, Any]:
    """The statement that a payload is.  Refused: what is none."""
    found = json_of(what, payload, FORM)
    if found["_type"] != STATEMENT:
        raise Refused(f"{what}: a statement of {found['_type']}, expected {STATEMENT}; not taken")
    return found


def digests(said: dict[str, Any]) -> dict[str, str]:
    """sha256:<hex> of the subjects of a statement, by name."""
    return {
        one.get("name", ""): f"sha256:{one['digest'].get('sha256', '')}" for one in said["subject"]
    }


def _encoded(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD), PAYLOAD.encode(), len(payload), payload)
