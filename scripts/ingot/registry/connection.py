"""One registry, spoken to: who we are, what it allows, and when to ask again.

Source: the distribution specification 1.1 (opencontainers/distribution-spec), and docker's token
authentication.  Answers name no secret; a token is asked for once per scope, and again when it ends.
"""

import json
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import urllib3

from ingot.base.refused import Refused
from ingot.registry import credentials
from ingot.registry.reference import Reference, is_loopback

TRIES = 6  # of one request
REFUSED = 3  # where the connection is refused, and no answer ever came: nobody is there
LONG = 5.0  # seconds of a wait that is said although one was said before
WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds before the first retry, and at most
SILENCE = 60.0  # seconds without a byte
BLOCK = 1 << 20  # bytes of a body sent at once
HOPS, MOVED = 5, (301, 302, 303, 307, 308)
AGAIN = (408, 425, 429, 500, 502, 503, 504)
CHALLENGE = re.compile(r'([a-z_]+)="([^"]*)"')
AGENT = {"User-Agent": "ingot"}
TOKEN = re.compile(r"[\x21-\x7e]+")
FORM = "application/x-www-form-urlencoded"
SMALL = 4 << 20  # bytes of an answer that is no blob: the largest manifest that registries take
Body = Callable[[], Any]  # a new one per try: bytes, or a file object at its start


class Answer(Refused):
    """An answer that is none of those expected.  `wait` is what it says of when to ask again."""

    def __init__(self, status: int, what: str, said: str, wait: str | None = None):
        word = f"{status} ({said})" if said else str(status)
        advice = "; it takes no writes, name another" if status == 405 else "; check the reference"
        super().__init__(f"{what}: the registry answers {word}{'' if said else advice}")
        self.status, self.wait = status, wait


class Cut(Refused):
    """No answer, or half of one: the same may be asked again."""


class Connection:
    """To the registry of `reference`; `access` is pull, or pull,push.  Threads may share it."""

    def __init__(
        self,
        reference: Reference,
        access: str = "pull",
        plain: bool = False,
        silence: float = SILENCE,
        tries: int = TRIES,
        slowest: float = 0,
        longest_wait: float = LONGEST_WAIT,
        quiet: bool = False,
    ):
        """`plain` permits HTTP without TLS to a host that is not this machine; `silence` in seconds;
        `slowest` in bytes/s, below which a download is refused; `longest_wait` in seconds, whatever the
        registry asks for; `quiet`: what is tried again is not said."""
        self.quiet = quiet
        self.tries, self.slowest, self.longest_wait = tries, slowest, longest_wait
        self.reference, self.access, self.plain = reference, access, plain
        self.pool = urllib3.PoolManager(
            maxsize=8, block=True, retries=False, blocksize=BLOCK,
            timeout=urllib3.Timeout(connect=min(15, silence), read=silence),
        )  # fmt: skip
        self.lock, self.logging_in = threading.Lock(), threading.Lock()
        self.tokens: dict[str, str] = {}  # Authorization by scope
        self.known: credentials.Credentials | None = None
        self.asked = False
        self.requests = 0
        self.answered = self.gone = False  # did it ever; was it given up, as nobody is there
        self.told = False  # that it is asked again, since the last answer
        self.told_until = 0.0  # monotonic seconds
        self.base = f"{'http' if plain else self._scheme()}://{reference.host}/v2/"

    def _scheme(self) -> str:
        """https; of this machine's own registry, whichever it speaks."""
        if not self.reference.loopback:
            return "https"
        try:
            self.pool.request("GET", f"https://{self.reference.host}/v2/", redirect=False)
        except urllib3.exceptions.SSLError as error:
            return "http" if "CERTIFICATE" not in str(error).upper() else "https"
        except (urllib3.exceptions.HTTPError, OSError):
            return "http"
        return "https"

    def scope(self, source: str = "") -> str:
        """What a token is for; `source` is a repository that a blob is mounted from."""
        found = [f"repository:{self.reference.repository}:{self.access}"]
        return " ".join(found + ([f"repository:{source}:pull"] if source else []))

    def ask(
        self,
        method: str,
        path: str,
        expected: tuple[int, ...],
        body: Body | None = None,
        headers: dict[str, str] | None = None,
        source: str = "",
        stream: bool = False,
        tries: int | None = None,
    ):
        """The answer to one request below /v2/, or to a whole URL; tried again where that may help.

        An Answer for any other status.  Of a streamed answer the caller reads the body.
        """
        what, tries = (
            f"{self.reference.host}: {method} {path.partition('?')[0]}",
            tries or self.tries,
        )
        url = path if "://" in path else self.base + path
        scope, renewed = self.scope(source), False
        for attempt in range(tries):
            last, token = attempt + 1 == tries, self.tokens.get(scope)
            try:
                found = self._once(method, url, token, body, headers or {}, stream, expected)
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                nobody = isinstance(error.__cause__, ConnectionRefusedError) and not self.answered
                self.gone |= nobody and attempt + 1 >= REFUSED
                if last or (nobody and self.gone):
                    raise Cut(f"{what}: {_reason(error)}, expected an answer; try again") from None
                time.sleep(self.again(f"{what}: {_reason(error)}", attempt))
                continue
            self.answered = True
            if found.status in expected:
                self.told = False
                return found
            said, wait = _said(found), found.headers.get("Retry-After")
            if found.status in (401, 403) and not found.ours:
                raise Answer(found.status, what, "of another host, to which no password goes")
            if found.status == 401 and not renewed:  # also in the middle of an upload: it has ended
                renewed = True
                self._log_in(found, scope, token)
            elif found.status in (401, 403):
                raise Answer(
                    found.status,
                    what,
                    f"expected access as {self.access}: docker login {self.reference.host}, or "
                    "REGISTRY_AUTH_FILE",
                )
            elif found.status not in AGAIN or last:
                raise Answer(found.status, what, said, wait)
            else:
                time.sleep(self.again(str(Answer(found.status, what, said)), attempt, wait))
        raise Cut(f"{what}: no answer but 401, expected one; try again")

    def again(self, why: str, attempt: int, asked: str | None = None) -> float:
        """Say that something is tried again, once for all that wait; the seconds until then."""
        seconds = pause(attempt, asked, self.longest_wait)
        with self.lock:
            now = time.monotonic()
            known = self.told and (seconds < LONG or now < self.told_until)
            if not known:
                self.told, self.told_until = True, now + (seconds if seconds >= LONG else 0)
        if not (self.quiet or known):
            why = re.split(", expected|; ", why)[0]  # what a user would do, we do
            print(f"{why}; trying again in {seconds:.1f} s", file=sys.stderr, flush=True)
        return seconds

    def _once(
        self,
        method: str,
        url: str,
        token: str | None,
        body: Body | None,
        headers: dict[str, str],
        stream: bool,
        expected: tuple[int, ...],
    ):
        """One answer, redirections followed; what is no stream, or not expected, is read."""
        mine = self.base.removesuffix("v2/")
        for _ in range(HOPS):
            # blobs may be kept elsewhere: there no token is sent
            known = {"Authorization": token} if token and url.startswith(mine) else {}
            with self.lock:
                self.requests += 1
            found: Any = self.pool.request(
                method, url, body=body() if body else None, headers={**AGENT, **headers, **known},
                redirect=False, preload_content=False,
            )  # fmt: skip
            if found.status not in MOVED or method not in ("GET", "HEAD"):
                break
            url = urljoin(url, found.headers.get("Location", ""))
            found.drain_conn()
            found.release_conn()
            if not url.startswith(("https://", mine)):
                raise Refused(
                    f"{self.reference.host}: leads to {url.partition('?')[0]}, expected https; use "
                    "another registry"
                )
        found.ours = url.startswith(mine)  # only the registry itself may ask who we are
        if not stream or found.status not in expected:
            found.content = self._read(found)
        return found

    def _read(self, found) -> bytes:
        """The body of an answer that is no blob, and its place in the pool given back."""
        try:
            content = found.read(SMALL + 1)
        finally:
            found.close()
            found.release_conn()
        if len(content) > SMALL:
            raise Refused(
                f"{self.reference.host}: answers more than {SMALL} bytes, expected a manifest; use "
                "another registry"
            )
        return content

    def _log_in(self, answer, scope: str, token: str | None) -> None:
        """As the registry's challenge asks: our password to itself, or a token of its token server.

        `token` is the one that was refused; another thread may have a new one already.
        """
        challenge = answer.headers.get("WWW-Authenticate", "")
        with self.logging_in:
            if self.tokens.get(scope) != token:
                return
            if not self.asked:
                place = f"{self.reference.host}/{self.reference.repository}"
                self.known, self.asked = credentials.of(place), True
            kind, fields = challenge.partition(" ")[0].lower(), dict(CHALLENGE.findall(challenge))
            if kind == "basic" and self.known:
                self.tokens[scope] = f"Basic {self.known.basic}"
            elif kind == "bearer" and "realm" in fields:
                self.tokens[scope] = f"Bearer {self._token(fields, scope)}"

    def _token(self, challenge: dict[str, str], scope: str) -> str:
        realm = challenge["realm"]
        try:
            host = urlsplit(realm).netloc
        except ValueError:
            host, realm = "", "no address"
        ours = host == self.reference.host if self.plain else is_loopback(host)
        if not realm.startswith("https://") and not (realm.startswith("http://") and ours):
            raise Refused(
                f"{self.reference.host}: its token server is {realm}, expected https; use another registry"
            )
        headers, service = {}, challenge.get("service", "")
        if self.known and self.known.token:
            fields = {"grant_type": "refresh_token", "refresh_token": self.known.secret}
            fields |= {"service": service, "scope": scope, "client_id": "ingot"}
            method, url, body = "POST", realm, urlencode(fields).encode()
            headers["Content-Type"] = FORM
        else:
            if self.known:
                headers["Authorization"] = f"Basic {self.known.basic}"
            words = [("service", service), *(("scope", one) for one in scope.split(" "))]
            method, url, body = "GET", f"{realm}?{urlencode(words)}", None
        for attempt in range(self.tries):
            try:
                found = self.pool.request(
                    method, url, body=body, headers={**AGENT, **headers}, redirect=False,
                    preload_content=False,
                )  # fmt: skip
                content = self._read(found)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                if attempt + 1 == self.tries:
                    raise Cut(f"{realm}: {_reason(error)}, expected a token; try again") from None
                time.sleep(self.again(f"{realm}: {_reason(error)}", attempt))
                continue
            if found.status not in AGAIN or attempt + 1 == self.tries:
                break
            wait = found.headers.get("Retry-After")
            time.sleep(self.again(f"{realm}: {found.status}", attempt, wait))
        try:
            said = json.loads(content)
            token = said.get("token") or said.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if found.status != 200 or not isinstance(token, str) or not TOKEN.fullmatch(token):
            raise Answer(
                found.status,
                f"{self.reference.host}: its token server",
                "expected a token; log in again",
            )
        return token


def pause(attempt: int, asked: str | None = None, longest: float = LONGEST_WAIT) -> float:
    """Seconds: what the registry asks for, up to `longest`, or twice as long each time, and a little
    by chance."""
    if asked:
        try:
            seconds = float(asked)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(asked).timestamp() - time.time()
            except (ValueError, OverflowError, TypeError):
                seconds = WAIT
        return min(max(seconds, 0.0), longest) if isfinite(seconds) else longest
    return min(WAIT * 2**attempt, longest) * (0.5 + random.random() / 2)


def _said(answer) -> str:
    """The registry's own words, of its first error."""
    try:
        first = json.loads(answer.content)["errors"][0]
        return f"{first.get('code', '')}: {first.get('message', '')}"[:160]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return ""


def _reason(error: Exception) -> str:
    if isinstance(error, ValueError):  # whose words may hold a header
        return "an answer that is none"
    text = str(error.__cause__ or error)
    return (re.sub(r"\?\S+", "", text).splitlines() or [""])[0][:160] or type(error).__name__
