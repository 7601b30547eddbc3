"""Who we are to a registry, as docker, podman and skopeo have it: configuration files and helpers.

Source: docker's config.json reference ("auths", "credHelpers", "credsStore") and containers-auth.json(5).
"""

import base64
import binascii
import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ingot.base.fields import read_json
from ingot.base.refused import Refused

CONFIG = {
    "auths?": {str: {"auth?": str, "username?": str, "password?": str, "identitytoken?": str}},
    "credHelpers?": {str: str},
    "credsStore?": str,
}
LIMIT = 30  # seconds that a helper may take


@dataclass(frozen=True)
class Credentials:
    """A user and a password, or a token that a token server gives access for."""

    user: str = ""
    secret: str = field(default="", repr=False)  # in no message, log or traceback
    token: bool = False  # the secret is an identity token

    @property
    def basic(self) -> str:
        return base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def of(place: str) -> Credentials | None:
    """Those for host/repository: of the first file that has some."""
    return next(filter(None, (_of_file(path, place) for path in places() if path.is_file())), None)


def places() -> Iterator[Path]:
    """Configuration files in the order in which they are asked."""
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    if run := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(run, "containers/auth.json")
    if docker := os.environ.get("DOCKER_CONFIG"):
        yield Path(docker, "config.json")
    else:
        with contextlib.suppress(RuntimeError):  # no home
            yield Path.home() / ".docker/config.json"


def _of_file(path: Path, place: str) -> Credentials | None:
    try:
        config = read_json(path, CONFIG)
    except (Refused, OSError):  # whose words may hold a secret
        raise Refused(
            f"{path}: no registry's credentials as docker writes them; log in again"
        ) from None
    host = place.partition("/")[0]
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if helper and (found := _of_helper(path, helper, host)):
        return found
    entries = {_key(key): (key, entry) for key, entry in config.get("auths", {}).items()}
    fitting = [key for key in entries if f"{place}/".startswith(f"{key}/")]
    for key in sorted(fitting, key=len, reverse=True):  # the most specific first
        if found := _of_entry(path, *entries[key]):
            return found
    return None


def _key(key: str) -> str:
    """host, or host/namespace as podman has it; https://host/v1/ as docker once had it."""
    for scheme in ("https://", "http://"):
        if key.startswith(scheme):
            return key.removeprefix(scheme).partition("/")[0]
    return key


def _of_entry(path: Path, key: str, entry: dict) -> Credentials | None:
    if token := entry.get("identitytoken"):
        return Credentials("", token, token=True)
    if "auth" in entry:
        try:
            text = base64.b64decode(entry["auth"], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, ValueError):
            raise Refused(
                f"{path}: auths.{key}.auth is no base64 of user:password; log in again"
            ) from None
        user, _, secret = text.partition(":")
        return Credentials(user, secret)
    if "username" in entry:
        return Credentials(entry["username"], entry.get("password", ""))
    return None


def _of_helper(path: Path, helper: str, host: str) -> Credentials | None:
    """What docker-credential-<helper> has; None when it knows nothing of `host`."""
    if not helper.replace("-", "").replace("_", "").isalnum():
        raise Refused(f"{path}: credential helper {helper!r}, expected a name")
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=host, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        if done.returncode:
            return None
        found = json.loads(done.stdout)
        user, secret = found["Username"], found["Secret"]
    except OSError:
        raise Refused(
            f"{path}: {program} cannot be run, expected it on the PATH; install it"
        ) from None
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        raise Refused(
            f"{path}: {program} gave no credentials for {host} in {LIMIT} s, expected JSON; run it by hand"
        ) from None
    return Credentials("", secret, token=True) if user == "<token>" else Credentials(user, secret)
