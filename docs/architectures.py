"""Write which architectures upstream's tools know, as they are pinned: a file of names for each."""

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.driver.toolchains import toolchains  # noqa: E402

CONVERTER = ROOT / "scripts/ingot/formats/gguf/converter.py"
REGISTRY = ROOT / "scripts/ingot/serving/vllm/registry.py"
BUILDER = ROOT / "scripts/ingot/formats/onnx/builder.py"
EXPORTER = ROOT / "scripts/ingot/formats/onnx/openvino/exporter.py"
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


EXPORTED = '''"""The architectures of texts that optimum-intel exports, as pinned in envs/optimum-intel.

Written by docs/architectures.py from what it registers for the pinned transformers; a test compares them.
"""

NAMES = """
{names}
"""
ARCHITECTURES = frozenset(NAMES.split())
'''
# optimum-intel knows a family by transformers' model_type, and from which release to which
ASKED = """
import json
import optimum.exporters.openvino.model_configs
from optimum.exporters.tasks import TasksManager
from optimum.intel.utils.import_utils import is_transformers_version
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as classes

def admitted(export):
    least, most = (getattr(export, f"{end}_TRANSFORMERS_VERSION", None) for end in ("MIN", "MAX"))
    return (not least or is_transformers_version(">=", str(least))) and (
        not most or is_transformers_version("<=", str(most)))

names, task = set(), "text-generation-with-past"
for kind in set(classes) & set(TasksManager._SUPPORTED_MODEL_TYPE):
    try:
        known = TasksManager.get_supported_tasks_for_model_type(
            kind, "openvino", library_name="transformers"
        )
    except KeyError:
        continue
    if task in known and admitted(known[task].func):
        names.add(classes[kind] if isinstance(classes[kind], str) else classes[kind][0])
print(json.dumps(sorted(names)))
"""


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


def exporter() -> str:
    python = toolchains.build(ROOT, "optimum-intel") / "bin/python"
    done = subprocess.run([python, "-c", ASKED], capture_output=True, text=True, check=True)
    return EXPORTED.format(names=filled(json.loads(done.stdout.splitlines()[-1])))


if __name__ == "__main__":
    BUILDER.write_text(builder())
    EXPORTER.write_text(exporter())
    CONVERTER.write_text(converter())
    REGISTRY.write_text(registry())
