"""The promises of scripts/: what a step may import, and what decides its output."""

import ast
import functools
import importlib
import importlib.metadata
import re
import sys

import pytest

from conftest import ROOT
from ingot.base.options import call
from ingot.driver.catalogue.rules import sources
from ingot.driver.catalogue.rules.sources import sources_of

SCRIPTS = ROOT / "scripts"
STEPS = sorted(SCRIPTS.glob("*.py"))
OF_RULES = [step for step in STEPS if step.stem != "stream_shards"]
SHARED = sorted(
    path
    for path in (SCRIPTS / "ingot").rglob("*.py")
    if not {"driver", "store", "registry", "trust", "publishing"} & set(path.parts)
)
TOOLCHAIN_PACKAGES = {
    "gguf", "iree", "numpy", "onnx", "optimum", "safetensors", "sentencepiece", "sharktank",
    "shortfin", "snakemake", "tensorrt_llm", "tokenizers", "torch", "transformers", "yaml",
}  # fmt: skip


@functools.cache
def read_by():
    """The files that each step's program reads."""
    return {step.stem: sources_of(step) for step in OF_RULES}


def imported(path, top_only):
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports are not seen by sources_of"
            yield node.module.split(".")[0]


def test_steps_and_shared_modules_import_the_standard_library_and_numpy_alone_at_their_top():
    few = sys.stdlib_module_names | {"ingot", "numpy"}
    assert [(path, set(imported(path, top_only=True)) - few) for path in (*SHARED, *STEPS)
            if set(imported(path, top_only=True)) - few] == []  # fmt: skip


def test_no_step_hides_a_package_or_depends_on_the_driver():
    assert {path.stem for path in STEPS} & (sys.stdlib_module_names | TOOLCHAIN_PACKAGES) == set()
    assert [
        name for name, files in read_by().items() if any("driver" in p.parts for p in files)
    ] == []


def test_the_walker_finds_what_a_step_imports_and_nothing_else():
    found = [p.relative_to(SCRIPTS).as_posix() for p in sources_of(SCRIPTS / "gguf_to_irpa.py")]
    assert sorted(found) == [
        "gguf_to_irpa.py", "ingot/__init__.py", "ingot/base/__init__.py", "ingot/base/atomic.py",
        "ingot/base/claim.py", "ingot/base/digest.py", "ingot/base/durable.py", "ingot/base/entry.py",
        "ingot/base/memo.py", "ingot/base/options.py", "ingot/base/pieces.py", "ingot/base/progress.py",
            "ingot/base/record.py",
        "ingot/base/refused.py", "ingot/base/shared.py", "ingot/base/stream.py",
        "ingot/formats/__init__.py", "ingot/formats/gguf/__init__.py", "ingot/formats/gguf/file.py",
        "ingot/formats/gguf/kv.py", "ingot/formats/iree/__init__.py", "ingot/formats/iree/irpa.py",
        "ingot/model/__init__.py", "ingot/model/tensors/__init__.py", "ingot/model/tensors/dtypes.py",
        "ingot/model/tensors/layout.py",
    ]  # fmt: skip


def test_the_walker_reads_imports_as_python_does():
    for path in SCRIPTS.rglob("*.py"):
        assert set(sources._imported(path)) == set(sources.by_parsing(path)), path


ODD = {  # statements that no line begins with, or that are none
    "if True: import ingot.a": ["ingot.a"],
    "x = 1; import ingot.a": ["ingot.a"],
    "import ingot.a; x = 1": ["ingot.a"],
    "from ingot \\\n    import a": ["ingot", "ingot.a"],
    "from ingot import (\n    a,  # one, two\n    b as c,\n)": ["ingot", "ingot.a", "ingot.b"],
    "import ingot.a as b, ingot.c": ["ingot.a", "ingot.c"],
    "def f():\n    from ingot.a import b  # late": ["ingot.a", "ingot.a.b"],
    "'how to import it'": [],
}


@pytest.mark.parametrize("text", ODD)
def test_the_walker_misses_no_import_however_it_is_written(text, tmp_path):
    (tmp_path / "m.py").write_text(text + "\n")
    assert sources._imported(tmp_path / "m.py") == ODD[text]


REACH = {  # what an edit of a module rebuilds: all steps, none of these, or only these
    "base/digest.py": {step.stem for step in OF_RULES},
    "base/atomic.py": {step.stem for step in OF_RULES},
    "store/blobs.py": {"fetch_file"},
    "store/records.py": set(),
    "model/hub/client.py": {"fetch_file", "fetch_listing"},
    "formats/gguf/file.py": {
        "measure_speed",
        "safetensors_to_gguf",
        "gguf_to_irpa",
        "quantize_gguf",
        "split_gguf",
        "compute_imatrix",
        "verify_converted",
        "see_images",
        "verify_gguf",
        "verify_split",
        "lora_to_gguf",
        "verify_lora",
    },
}


@pytest.mark.parametrize("module", REACH)
def test_an_edit_of_a_module_rebuilds_what_contributing_says(module):
    """A table of dtypes in the GGUF reader once re-keyed programs and TensorRT-LLM checkpoints."""
    found = {name for name, files in read_by().items() if SCRIPTS / "ingot" / module in files}
    assert found == REACH[module]


RULES = [  # also those that a loop makes, which have no name behind the word
    (file.name, text)
    for file in sorted((ROOT / "rules").glob("*.smk"))
    for text in re.split(r"(?m)^ *rule\b", file.read_text())[1:]
]


def test_every_rule_names_its_code_and_its_lock():
    assert len(RULES) >= 23
    for file, rule in RULES:
        assert rule.count("shell:") == 1, f"{file}: {rule[:60]}"
        assert not re.search(r"(?m)^ *(run|script|message):", rule), f"{file}: {rule[:60]}"
        # one builds what steps run in, the other sends what they made: neither writes an artifact
        if not re.match(r" (toolchain|publish):", rule):
            assert re.search(r"\bcode=(ancient\()?code\(", rule), f"{file}: {rule[:60]}"
            assert re.search(r"\block=(ancient\()?lock\(", rule), f"{file}: {rule[:60]}"


def test_the_driver_is_what_its_lock_says():
    for line in (ROOT / "envs/driver/requirements.lock").read_text().splitlines()[1:]:
        name, version = line.split()[0].split("==")
        assert importlib.metadata.version(name) == version


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.stem)
def test_every_step_explains_itself(path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    step = importlib.import_module(path.stem)
    with pytest.raises(SystemExit):
        call(getattr(step, path.stem), ["--help"])
    assert "usage:" in capsys.readouterr().out and "Runs in" in step.__doc__


def test_every_module_that_holds_logic_is_imported_by_a_test():
    seen = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ingot"):
                seen |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    for path in (SCRIPTS / "ingot").rglob("[a-z]*.py"):
        name = ".".join(path.relative_to(SCRIPTS).with_suffix("").parts)
        # test_families and test_driver walk their tables
        listed = name.startswith(("ingot.model.families.", "ingot.driver.catalogue.formats."))
        assert name in seen or listed, f"{name}: no test imports it"
