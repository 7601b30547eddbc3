"""The moment at which chat templates are rendered that say the date: everywhere and always the same."""

import datetime

NOON = 1722427200  # seconds of 1970: noon of 31 July 2024, UTC


def strftime_now(format: str) -> str:
    """As transformers gives it to a template, but for the moment."""
    return datetime.datetime.fromtimestamp(NOON, datetime.UTC).strftime(format)
