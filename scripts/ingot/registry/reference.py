"""Where an artifact is, or goes, in an OCI registry: oci://host[:port]/repository[:tag][@digest]."""

import ipaddress
import re
from dataclasses import dataclass, replace

from ingot.base.refused import Refused

SCHEME = "oci://"
# The distribution specification's rules of a repository's and a tag's name; registries answer names
# beyond them by 404 or 500.
NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
REPOSITORY = re.compile(rf"{NAME}(?:/{NAME})*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
HOST = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
LONGEST = 200  # characters of a repository's name
EXPECTED = "oci://host/repository:tag, or @sha256:<hex>"


@dataclass(frozen=True)
class Reference:
    host: str  # with its port
    repository: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        tag, digest = f":{self.tag}" if self.tag else "", f"@{self.digest}" if self.digest else ""
        return f"{SCHEME}{self.host}/{self.repository}{tag}{digest}"

    @property
    def name(self) -> str:
        """What a manifest is asked for by; the digest where both are said."""
        return self.digest or self.tag

    @property
    def loopback(self) -> bool:
        """Whether the host is this machine: then it may be spoken to without TLS."""
        return is_loopback(self.host)

    def at(self, digest: str) -> "Reference":
        """The same repository, by digest."""
        return replace(self, tag="", digest=digest)


def is_loopback(host: str) -> bool:
    """Whether `host`, perhaps with a port, is this machine."""
    name = re.sub(r":[0-9]+$", "", host).strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def lacks_scheme(text: str) -> bool:
    """Is it a reference as docker has it, host/repository:tag?  A path is none."""
    host, _, _ = text.partition("/")
    if not (
        HOST.fullmatch(host) and host.strip(".") and ({".", ":"} & set(host) or host == "localhost")
    ):
        return False
    try:
        return bool(parse(f"{SCHEME}{text}"))
    except Refused:
        return False


def parse(text: str) -> Reference:
    """Refused: what is no reference, by the part that is wrong."""
    if not text.startswith(SCHEME):
        remedy = f"; put {SCHEME} before it: {SCHEME}{text}" if lacks_scheme(text) else ""
        raise Refused(f"{text}: no reference, expected {EXPECTED}{remedy}")
    host, _, path = text.removeprefix(SCHEME).partition("/")
    path, _, digest = path.partition("@")
    repository, _, tag = path.partition(":")
    wrong = [
        part
        for part, rule in ((host, HOST), (repository, REPOSITORY), (tag, TAG), (digest, DIGEST))
        if (part or part in (host, repository)) and not rule.fullmatch(part)
    ]
    if len(repository) > LONGEST:
        wrong.append(f"{repository[:20]}...")
    if wrong:
        raise Refused(f"{text}: {wrong[0]!r} is not valid, expected {EXPECTED}")
    return Reference(host, repository, tag, digest)
