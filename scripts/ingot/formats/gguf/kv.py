"""One key/value pair of a GGUF file's metadata."""

from typing import Any, NamedTuple


class KV(NamedTuple):
    """A key, the type of its value (a name of SCALARS, `str`, or `[type]` for an array), the value."""

    key: str
    kind: str
    value: Any
