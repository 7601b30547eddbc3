"""docs/config.md, cell by cell: what the first step of each line does with a field of config.json."""

import importlib
import json
import re
import subprocess

import pytest
from test_known_fields import OTHER

import checkpoints
import families
from conftest import ROOT
from ingot.base.options import call
from ingot.base.refused import Refused
from ingot.formats.gguf import metadata
from ingot.formats.tensorrt import trtllm
from ingot.model.config import read_config
from ingot.model.features import ALL
from ingot.model.specs import rope_freqs, specs_of

LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
HONOURED = {  # other values of what is honoured; of several the first is the one that is changed
    "architectures": MISTRAL, "vocab_size": {"vocab_size": 1200}, "hidden_size": {"hidden_size": 512},
    "num_hidden_layers": {"num_hidden_layers": 5}, "intermediate_size": {"intermediate_size": 640},
    "num_attention_heads": {"num_attention_heads": 16}, "head_dim": {"head_dim": 64},
    "num_key_value_heads": {"num_key_value_heads": 2}, "rms_norm_eps": {"rms_norm_eps": 1e-6},
    "max_position_embeddings": {"max_position_embeddings": 1024}, "rope_theta": {"rope_theta": 1e6},
    "sliding_window": {"sliding_window": 64, **MISTRAL},
    "rope_scaling": {"rope_scaling": {**checkpoints.LLAMA3_ROPE, "factor": 32.0}},
    "rope_parameters": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 7.0},
        "rope_scaling": None, "rope_theta": None,
    },
    "tie_word_embeddings": {"tie_word_embeddings": True},
}  # fmt: skip
TAKEN = {  # values of fields that are honoured or refused that mean the model that we build
    "hidden_act": {"hidden_act": "swish"}, "model_type": MISTRAL,
}  # fmt: skip
ONLY_GGUF = {
    "attention_bias": {"attention_bias": True}, "mlp_bias": {"mlp_bias": True},
    "original_max_position_embeddings": {"rope_scaling": YARN}, "quantization_config": families.FP8,
}  # fmt: skip
REFUSED = {**OTHER, "layer_types": ["sliding_attention"]}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
LINES = {  # the first step of each, which reads config.json before anything that it needs
    "G": ("safetensors_to_gguf", "--dtype", "f16", "--name", "A", "--pre-tokenizer", "llama-bpe", "--gguf"),
    "I": ("export_mlir", "--server-config", "unwritten", "--mlir"),
    "T": ("safetensors_to_trtllm", "--trtllm-checkpoint"),
    "O": ("export_onnx", "--tokenizer", "unread", "--onnx"),
}  # fmt: skip


def cells():
    """(fields of a row, line, what it says), of the table."""
    for row in (ROOT / "docs/config.md").read_text().splitlines():
        columns = [column.strip() for column in row.strip("|").split("|")]
        if len(columns) == 6 and ("`" in columns[0] or "rope_scaling" in columns[0]):
            for line, says in zip("GITO", columns[1:5], strict=True):
                yield columns[0], line, says


def refusal(line, folder, changes, *words):
    """What the line's first step says of a config.json; "" when it goes on to the weights."""
    folder.mkdir(exist_ok=True)
    config = checkpoints.llama_config(**{"rope_scaling": checkpoints.LLAMA3_ROPE, **changes})
    checkpoints.write_json(folder / "config.json", config)
    script, *options = LINES[line]
    where = ("--config", folder / "config.json") if line == "I" else ("--checkpoint", folder)
    step = getattr(importlib.import_module(script), script)
    try:
        call(step, [*map(str, (*where, *words, *options, folder / "out"))])
    except ImportError:  # of what the toolchain has, and the driver has not
        return ""
    except Refused as reason:
        return "" if "safetensors" in str(reason) else str(reason)
    raise AssertionError("there are no weights")


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


CELLS = [(fields, line, says) for fields, line, says in cells()]


def test_the_table_has_a_cell_for_each_line_and_field():
    named = {name for fields, _, _ in CELLS for name in re.findall(r"`(\w+)`", fields)}
    assert named == {*HONOURED, *TAKEN, *ONLY_GGUF, *REFUSED}
    assert len(CELLS) == 4 * len({fields for fields, _, _ in CELLS})
    assert {says for _, _, says in CELLS} == {"yes", "no", "one device"}


@pytest.mark.parametrize("fields, line, says", CELLS)
def test_each_line_does_what_its_cell_says(fields, line, says, tmp_path):
    names = re.findall(r"`(\w+)`", fields)
    if "dynamic" in fields:
        assert says == "no" and "rope" in refusal(line, tmp_path, DYNAMIC)
        return
    for kind, scaling in (("linear", LINEAR), ("yarn", YARN)):
        if kind in fields:
            assert (refusal(line, tmp_path, {"rope_scaling": scaling}) == "") is (says == "yes")
            names.remove("rope_scaling")  # which is honoured in its other kinds
    for name in names:
        changes = (HONOURED | TAKEN | ONLY_GGUF).get(name)
        if says == "yes":
            assert refusal(line, tmp_path, changes) == "", name
        elif says == "one device":
            assert refusal(line, tmp_path, changes) == "", name
            assert name in refusal(line, tmp_path, changes, "--tp", "2")
        elif name not in REFUSED:
            said = refusal(line, tmp_path, changes)
            assert "ask for GGUF" in said or "rope_type is" in said, name
        if name in REFUSED:
            assert name in refusal(line, tmp_path, {name: REFUSED[name]}), name


def model(folder, changes):
    config = checkpoints.llama_config(**{"rope_scaling": checkpoints.LLAMA3_ROPE, **changes})
    checkpoints.write_json(folder / "config.json", config)
    return read_config(folder / "config.json", can=ALL)


def told(line, config):
    """What a line writes of the model; G stands for I, too, whose exporter is told the same."""
    tensors = [(spec.name, spec.shape) for spec in specs_of(config, "f16")]
    if line == "T":
        cuts = [(cut.name, cut.source, cut.shape) for cut in trtllm.cuts(config, trtllm.Mapping())]
        return json.dumps([trtllm.document(config, trtllm.Mapping(), "f16"), cuts])
    factors = rope_freqs(config) if config.rope else []
    return json.dumps([metadata.properties(config, "f16"), tensors, factors])


@pytest.mark.parametrize("line", "GT")
@pytest.mark.parametrize("name", HONOURED)
def test_what_is_honoured_changes_what_the_line_writes(name, line, tmp_path):
    if name == "architectures" and line != "T":
        return  # one arithmetic by two names
    changes = dict(HONOURED[name])
    before = {key: value for key, value in changes.items() if key in MISTRAL}
    if name == "architectures":
        before = {}
    assert told(line, model(tmp_path, changes)) != told(line, model(tmp_path, before))


GRAPHS = """
import hashlib, json, sys
from pathlib import Path
from ingot.model.config import read_config
from ingot.formats.onnx import decoder, folder
from ingot.formats.onnx.weights import Form
export = folder.Export(Form("fp32"))
for path in sys.argv[1:]:
    config = read_config(Path(path))
    graph, _ = decoder.build(config, export.form, export.graph)
    about = json.dumps(folder.about(config, export)).encode()
    print(hashlib.sha256(graph + about).hexdigest())
"""


@pytest.mark.slow
def test_what_is_honoured_changes_the_onnx_graph_or_what_is_said_of_it(python, tmp_path):
    """But for the architecture's name: one arithmetic by two names."""
    cases = {"": {}, **{name: HONOURED[name] for name in HONOURED if name != "architectures"}}
    paths = []
    for name, changes in cases.items():
        paths.append(tmp_path / f"{name}.json")
        scaled = {"rope_scaling": checkpoints.LLAMA3_ROPE, "num_hidden_layers": 1}
        checkpoints.write_json(paths[-1], checkpoints.llama_config(**{**scaled, **changes}))
    done = subprocess.run(
        [str(python("onnx")), "-c", GRAPHS, *map(str, paths)], capture_output=True, text=True,
        env={"PYTHONPATH": str(ROOT / "scripts")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plain, *others = done.stdout.split()
    same = [name for name, one in zip([*cases][1:], others, strict=True) if one == plain]
    assert not same and len(set(others)) == len(others)
