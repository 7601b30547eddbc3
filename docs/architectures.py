"""Write which architectures upstream's tools know, as they are pinned: a file of names for each."""

import ast
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.driver.toolchains import toolchains  # noqa: E402

CONVERTER = ROOT / "scripts/ingot/formats/gguf/converter.py"
REGISTRY = ROOT / "scripts/ingot/serving/vllm/registry.py"
BUILDER = ROOT / "scripts/ingot/formats/onnx/builder.py"
TABLES = {"texts": "TEXT_MODEL_MAP", "projectors": "MMPROJ_MODEL_MAP"}
TOP = '''"""The architectures that llama.cpp's converter knows, as it is pinned in envs/llamacpp.

Written by docs/architectures.py from the converter's own tables; a test compares them.
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


SERVED = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
SERVER = '''"""The architectures that vLLM serves, as it is pinned in envs/vllm.

Written by docs/architectures.py from vLLM's own registry; a test compares them.
"""

NAMES = """
{names}
"""
ARCHITECTURES = frozenset(NAMES.split())
'''


BUILT = '''"""The architectures of texts that GenAI's builder knows, as it is pinned in envs/genai.

Written by docs/architectures.py from what the builder compares config.json with; a test compares them.
"""

NAMES = """
{names}
"""
ARCHITECTURES = frozenset(NAMES.split())
'''


def table(tree: ast.Module, name: str) -> list[str]:
    """The keys of one of its tables, by architecture."""
    for node in ast.walk(tree):
        found = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Assign | ast.AnnAssign) and getattr(found[0], "id", "") == name:
            return sorted(ast.literal_eval(node.value))
    raise KeyError(name)


def filled(words: list[str]) -> str:
    return textwrap.fill(" ".join(words), 100, break_on_hyphens=False)


def converter() -> str:
    source = toolchains.build(ROOT, "llamacpp") / "llama.cpp/conversion/__init__.py"
    tree = ast.parse(source.read_text())
    return TOP.format(**{name: filled(table(tree, key)) for name, key in TABLES.items()})


def registry() -> str:
    place = "lib/python3.11/site-packages/vllm/model_executor/models/registry.py"
    tree = ast.parse((toolchains.build(ROOT, "vllm") / place).read_text())
    names = sorted({name for key in SERVED for name in table(tree, key)})
    return SERVER.format(names=filled(names))


def builder() -> str:
    place = "lib/python3.11/site-packages/onnxruntime_genai/models/builder.py"
    tree = ast.parse((toolchains.build(ROOT, "genai") / place).read_text())
    names = {
        other.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "config.architectures[0]"
        for other in node.comparators
        if isinstance(other, ast.Constant) and str(other.value).endswith("ForCausalLM")
    }
    return BUILT.format(names=filled(sorted(names)))


if __name__ == "__main__":
    BUILDER.write_text(builder())
    CONVERTER.write_text(converter())
    REGISTRY.write_text(registry())
