"""Which files of ours a script runs: itself and every module under scripts/ that it imports."""

import ast
import functools
import re
from pathlib import Path


def sources_of(script: Path) -> list[Path]:
    """`script` and, transitively, the modules of ours it imports, in the order found.

    Only absolute imports count; the package root of a script is its own folder (`sys.path[0]`).
    """
    root = script.parent
    found = [script]
    for path in found:  # grows while it is walked
        for name in _imported(path):
            for module in _files(root, name):
                if module not in found:
                    found.append(module)
    return found


STATEMENT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n;(]+)|import[ \t]+([^\n;(]+))"
    r"(?:#.*)?$",
    re.M,
)
WORD = re.compile(r"\bimport\b")
COMMENT = re.compile(r"#.*")


@functools.cache  # of sixty modules that each of thirty rules imports some of
def _imported(path: Path) -> list[str]:
    """Parsing takes a fifth of a start of Snakemake: it is for what plain statements do not explain."""
    text = path.read_text()
    found = STATEMENT.findall(text)
    plain = len(found) == len(WORD.findall(text)) and "\\\n" not in text
    return _by_statements(found) if plain else by_parsing(path)


def _by_statements(found: list[tuple[str, str, str]]) -> list[str]:
    names = []
    for module, listed, modules in found:
        words = COMMENT.sub("", listed or modules).strip("()").replace("\n", " ").split(",")
        words = [word.split()[0] for word in words if word.strip()]
        names += [module, *(f"{module}.{word}" for word in words)] if module else words
    return names


def by_parsing(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


@functools.cache
def _files(root: Path, dotted: str) -> list[Path]:
    files, place = [], root
    for part in dotted.split("."):
        for candidate in (place / part / "__init__.py", place / f"{part}.py"):
            if candidate.is_file():
                files.append(candidate)
        place = place / part
    return files
