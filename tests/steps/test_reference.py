"""generate_reference.py: the reference is of the checkpoint as we read it, not as transformers does."""

import json
import shutil
import subprocess

import numpy as np
import pytest

import checkpoints
from conftest import ROOT
from ingot.parity import transformers_model

pytestmark = pytest.mark.slow


@pytest.fixture
def generate(ok, tmp_path):
    """generate(folder) is what the real step writes for that checkpoint."""

    def run(folder):
        files = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
        found = [folder / name for name in files if (folder / name).exists()]
        reference = tmp_path / f"{folder.name}.npz"
        ok(
            "iree", "generate_reference.py", "--reference", reference,
            "--checkpoint", *found, *sorted(folder.glob("model*")),
        )  # fmt: skip
        return dict(np.load(reference))

    return run


def respelled(folder, **changes):
    """A copy whose config.json says `changes`; None takes a key away."""
    copy = folder.with_name(f"{folder.name}-respelled")
    shutil.copytree(folder, copy)
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    kept = {name: value for name, value in config.items() if value is not None}
    (copy / "config.json").write_text(json.dumps(kept))
    return copy


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_the_spelling_of_transformers_5_gives_the_same_reference(generate, tmp_path):
    old = checkpoints.llama31(tmp_path / "llama31")
    config = json.loads((old / "config.json").read_text())
    rope = {**config["rope_scaling"], "rope_theta": config["rope_theta"]}
    new = respelled(old, rope_parameters=rope, rope_scaling=None, rope_theta=None)
    assert same(generate(old), generate(new))


def test_a_mistral_without_a_window_key_has_no_window(python, tmp_path):
    folder = respelled(checkpoints.nemo(tmp_path / "nemo"), max_position_embeddings=8192)
    assert "sliding_window" not in (folder / "config.json").read_text(), "transformers takes 4096"
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
        f"from pathlib import Path; from {transformers_model.__name__} import our_reading\n"
        "print(our_reading(Path(sys.argv[1])).sliding_window)"
    )
    done = subprocess.run(
        [python("iree"), "-c", program, folder / "config.json"], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.stdout == "None\n", done.stderr
