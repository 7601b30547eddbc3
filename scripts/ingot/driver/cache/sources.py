"""Which files of ours a script runs: itself and every module under scripts/ that it imports."""

import ast
import functools
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


@functools.cache  # of sixty modules that each of thirty rules imports some of
def _imported(path: Path) -> list[str]:
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
