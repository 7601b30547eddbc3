"""Which files of ours a script runs: itself and every module under scripts/ that it imports.

What cannot be followed is refused: a file that is in no key may change without a rebuild.
"""

import ast
import functools
import re
import sys
from pathlib import Path

from ingot.base.refused import Refused


def sources_of(script: Path) -> list[Path]:
    """`script` and, transitively, the modules of ours it imports, in the order found.

    Only absolute imports count; the package root of a script is its own folder (`sys.path[0]`).
    """
    root = script.parent
    _stop_if_hidden(root)
    found, seen = [script], {script}
    for path in found:  # grows while it is walked
        new = [module for module in _imports(root, path) if module not in seen]
        seen.update(new)
        found += new
    return found


@functools.cache  # of sixty modules that each of thirty rules imports some of
def _imports(root: Path, path: Path) -> list[Path]:
    """The files of ours that `path` itself imports, each once."""
    _stop_if_unseen(path)
    return list(dict.fromkeys(file for name in _imported(path) for file in _files(root, name)))


UNSEEN = {
    "__import__", "__file__", "import_module", "spec_from_file_location", "run_path", "run_module", "exec",
}  # fmt: skip
MAY_BE = re.compile(rf"\bfrom[ \t]+\.|\b(?:{'|'.join(UNSEEN)})\b")  # or words of a text


def _stop_if_unseen(path: Path) -> None:
    """Refused: an import, or a file beside it, that cannot be told from the text."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text, str(path))) if MAY_BE.search(text) else ():
        said = getattr(node, "id", getattr(node, "attr", ""))
        if isinstance(node, ast.ImportFrom) and node.level:
            said = f"from {'.' * node.level}"
        elif not isinstance(node, ast.Name | ast.Attribute) or said not in UNSEEN:
            continue
        raise Refused(
            f"{path}: line {node.lineno}: {said}, by which it may read a file that is in no key, expected "
            "plain absolute imports, and data as options of the rule"
        )


@functools.cache
def _stop_if_hidden(root: Path) -> None:
    """Refused: a file that every program of ours would import in place of the standard library's."""
    for path in sorted(root.glob("*.py")):
        if path.stem in sys.stdlib_module_names:
            raise Refused(
                f"{path}: would be imported in place of Python's own {path.stem}, expected another name; "
                "rename it"
            )


STATEMENT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n;(]+)|import[ \t]+([^\n;(]+))"
    r"(?:#.*)?$",
    re.M,
)
WORD = re.compile(r"\bimport\b")
COMMENT = re.compile(r"#.*")


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
    files, place = [], str(root)
    for part in dotted.split("."):
        place = f"{place}/{part}"
        both = Path(f"{place}/__init__.py"), Path(f"{place}.py")
        files += [one for one in both if one.is_file()]
    return files
