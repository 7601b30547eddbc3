"""The files of a model as OpenSSF's model-signing signs them: `model_signing verify` accepts ours.

Source: sigstore/model-transparency, predicate v1.0.
"""

import hashlib
from typing import Any

from ingot.registry import envelope

KIND = "https://model_signing/signature/v1.0"
IGNORED = [".git", ".gitattributes", ".github", ".gitignore"]  # what no model consists of


def statement(title: str, files: dict[str, str]) -> dict[str, Any]:
    """`files` are sha256:<hex> by path; the subject is the SHA-256 of their digests in that order."""
    listed = [
        {"name": path, "algorithm": "sha256", "digest": files[path].removeprefix("sha256:")}
        for path in sorted(files)
    ]
    root = hashlib.sha256(b"".join(bytes.fromhex(one["digest"]) for one in listed)).hexdigest()
    how = {
        "method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": IGNORED,
    }  # fmt: skip
    return envelope.statement({title: root}, KIND, {"serialization": how, "resources": listed})
