"""The moment at which chat templates are rendered that say the date: everywhere and always the same."""

import datetime
from typing import Self

NOON = 1722427200  # seconds of 1970: noon of 31 July 2024, UTC


class Noon(datetime.datetime):
    """What transformers takes the date from: it lets no caller give a template a clock of his own."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Self:
        return cls.fromtimestamp(NOON, tz or datetime.UTC)


def strftime_now(format: str) -> str:
    """As transformers gives it to a template, but for the moment."""
    return datetime.datetime.fromtimestamp(NOON, datetime.UTC).strftime(format)
