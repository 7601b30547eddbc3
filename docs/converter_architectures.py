"""Write scripts/ingot/formats/gguf/converter.py: what the pinned llama.cpp's converter says it knows."""

import ast
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.driver.toolchains import toolchains  # noqa: E402

FILE = ROOT / "scripts/ingot/formats/gguf/converter.py"
TABLES = {"texts": "TEXT_MODEL_MAP", "projectors": "MMPROJ_MODEL_MAP"}
TOP = '''"""The architectures that llama.cpp's converter knows, as it is pinned in envs/llamacpp.

Written by docs/converter_architectures.py from the converter's own tables; a test compares them.
"""

TEXTS = """
{texts}
"""
SEEN_AND_HEARD = """
{projectors}
"""
ARCHITECTURES = frozenset(TEXTS.split())  # models of texts, or that part of one
PROJECTORS = frozenset(SEEN_AND_HEARD.split())  # whose part for images or sounds it writes too
'''


def table(tree: ast.Module, name: str) -> list[str]:
    """The keys of one of its tables, by architecture."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name:
            return sorted(ast.literal_eval(node.value))
    raise KeyError(name)


def text() -> str:
    source = toolchains.build(ROOT, "llamacpp") / "llama.cpp/conversion/__init__.py"
    tree = ast.parse(source.read_text())
    words = {name: textwrap.fill(" ".join(table(tree, key)), 100) for name, key in TABLES.items()}
    return TOP.format(**words)


if __name__ == "__main__":
    FILE.write_text(text())
