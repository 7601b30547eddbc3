"""The Hugging Face hub, with the patience that its client lacks.

The client gives up on a reset connection and on a 5xx body, forgets what it had when a process
dies, and takes a flipped byte for good; so: bounded retries, resume, and every byte hashed.
"""

import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ingot.base.refused import Refused

T = TypeVar("T")
ATTEMPTS = 6  # in a row without progress
HEALS = (408, 429, 500, 502, 503, 504)  # HTTP statuses that a second try may cure
LONGEST_WAIT = 60.0  # seconds, whatever Retry-After says
MINUTE, LEAST = 60.0, 60_000  # seconds, and the bytes that must come in them
SILENCE = 60  # seconds that an API call may take: the client itself waits for ever
TOKEN = "put a token with read access into HF_TOKEN, or run `hf auth login`"


class BrokenTransferError(Exception):
    """A body that was cut, too long, or of the wrong content: worth another try.

    `response`: the answer whose Retry-After says when to try again.
    """

    def __init__(self, reason: str, response: Any = None):
        super().__init__(reason)
        self.response = response


class Retry:
    """Counts failures in a row, and sleeps between them: `backoff` seconds, doubled each time."""

    def __init__(self, what: str, backoff: float):
        self.what, self.backoff, self.failures = what, backoff, 0

    def progressed(self) -> None:
        self.failures = 0

    def run(self, action: Callable[[], T]) -> T:
        """`action()`, again and again while its errors may heal; one line when they don't."""
        from httpx2 import InvalidURL, RequestError, TooManyRedirects
        from huggingface_hub import errors

        while True:
            try:
                return action()
            except (TooManyRedirects, InvalidURL) as error:
                raise Refused(
                    f"{self.what}: redirected to no end or no address ({unsigned(error)}); is "
                    "HF_ENDPOINT a hub?"
                ) from None
            except (RequestError, BrokenTransferError, errors.HfHubHTTPError) as error:
                self._again_or_exit(error)
            except errors.OfflineModeIsEnabled:
                raise Refused(
                    f"{self.what}: not on this machine, and HF_HUB_OFFLINE is set; unset it, or "
                    "give the model a path: in your catalogue"
                ) from None

    def _again_or_exit(self, error: Exception) -> None:
        response = getattr(error, "response", None)
        status = response.status_code if response is not None else None
        if status is not None and status not in HEALS:
            raise Refused(f"{self.what}: {refusal(error, status)}")
        self.failures += 1
        said = f"HTTP {status}" if status else unsigned(error) or type(error).__name__
        if self.failures >= ATTEMPTS:
            raise Refused(
                f"{self.what}: {said}, {ATTEMPTS} times in a row; run the command again later, it "
                "resumes"
            )
        wait = self.backoff * 2 ** (self.failures - 1)
        if response is not None and response.headers.get("Retry-After", "").isdigit():
            wait = max(wait, float(response.headers["Retry-After"]))
        wait = min(wait, LONGEST_WAIT)
        print(f"{self.what}: {said}; trying again in {wait:.0f} s", file=sys.stderr, flush=True)
        time.sleep(wait)


class Floor:
    """Refuses a transfer of which a minute brings next to nothing: each byte would reset a timeout."""

    def __init__(self, least: int = LEAST):
        self.least, self.came, self.since = least, 0, time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What takes time here, not there: whoever is sent the bytes may have no room yet."""
        began = time.monotonic()
        yield
        self.since += time.monotonic() - began

    def add(self, count: int) -> None:
        self.came += count
        now = time.monotonic()
        if now - self.since >= MINUTE:
            if self.came < self.least:
                raise BrokenTransferError(f"only {self.came} bytes in a minute")
            self.came, self.since = 0, now


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Raise BrokenTransferError in the main thread when the block takes longer."""

    def ring(*_) -> None:
        raise BrokenTransferError(f"no answer in {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def gated_page(what: str, repository: str) -> str:
    """What to do about a gated model."""
    from huggingface_hub import constants

    page = f"{constants.ENDPOINT}/{repository}"
    return f"{what}: accept the license on {page} with your account, and {TOKEN}"


def refusal(error: Exception, status: int) -> str:
    """What an answer that will not change means, and what to do."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return gated_page(f"gated (HTTP {status})", repository(error))
    if isinstance(error, errors.RevisionNotFoundError):
        return f"no such revision (HTTP {status}); name a commit of it, or none for the newest"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such model, or a private one (HTTP {status}); check its spelling, and {TOKEN}"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"no such file at this revision (HTTP {status}); check shards: and files: of the catalogue"
    if status in (401, 403):
        return f"access refused (HTTP {status}); {TOKEN}"
    return f"HTTP {status}: {unsigned(error)}"


def unsigned(error: Exception) -> str:
    """The first line of what an error says; an address may be signed, which is as good as a token."""
    return re.sub(r"\?[^\s'\"]+", "?...", (str(error).splitlines() or [""])[0])


def repository(error: Any) -> str:
    """organisation/name out of the address that was refused."""
    path = error.response.request.url.path.removeprefix("/api/models/").strip("/")
    return "/".join(path.split("/")[:2])
