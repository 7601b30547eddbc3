"""Names as people paste them: a model by its address, a type in upper case, a GPU by its product's name."""

import re
from pathlib import Path
from urllib.parse import unquote

FOLDER = "artifacts/"
HUB = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
ADDRESS = re.compile(
    rf"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)?(?P<hub>{HUB})"
    r"(?:/(?:tree|blob|resolve)/(?P<revision>[^/]+)(?:/.*)?)?/?"
)


def model(text: str) -> tuple[str, str] | None:
    """organisation/name and the revision, or empty, of a hub's address; None of what is none."""
    plain = text.strip().partition("?")[0].partition("#")[0].rstrip("/").removesuffix(".git")
    found = ADDRESS.fullmatch(unquote(plain))
    if not found or found["hub"].partition("/")[0] in ("datasets", "spaces"):
        return None
    return found["hub"], found["revision"] or ""


def targets(words: list[str], root: Path) -> list[str]:
    """The words of a command line, targets in Ingot's own spelling."""
    after = words.index("--") if "--" in words else 0
    if not any(word.startswith(FOLDER) for word in words[after:]):
        return words
    products = _products(root)
    return [
        target(word, products)
        if word.startswith(FOLDER) and n >= after and not Path(word).exists()
        else word
        for n, word in enumerate(words)
    ]


def target(word: str, products: dict[str, str]) -> str:
    """artifacts/M_tp2.H100.trtllm → artifacts/m_tp2.sm90.trtllm; a file of a folder as it is."""
    name = word.removeprefix(FOLDER)
    if "/" in name.rstrip("/"):
        return word
    first, *parts = name.lower().split(".")
    return FOLDER + ".".join([first, *(products.get(part, part) for part in parts)])


def _products(root: Path) -> dict[str, str]:
    """By `products` of the catalogue's hardware and gpus: h100 is sm90; of a broken catalogue, nothing."""
    import yaml

    try:
        text = (root / "models.yaml").read_text()
        found = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        tables = [*found["hardware"].items(), *found["gpus"].items()]
        return {word: name for name, entry in tables for word in entry.get("products", ())}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return {}
