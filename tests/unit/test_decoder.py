"""The decoder graph of each family that it can express."""

import pytest

import checkpoints
import families
from ingot.formats.onnx import decoder, weights
from ingot.formats.onnx.graph import OPSET
from ingot.formats.onnx.weights import Form
from ingot.model import features
from ingot.model.config import read_config
from ingot.model.families.table import FAMILIES
from ingot.model.specs import specs_of

NAMES = [
    name for name, said in families.SHAPES.items()
    if not features.lacking(FAMILIES[said["architectures"][0]].needs, weights.CAN) 
    and not any(word in name for word in ("YaRN", "LongRoPE", "Phi-4", "FP8"))
]  # fmt: skip


class Unwritten:
    """A graph whose nodes nobody keeps: onnx, which the real one writes by, is in a toolchain."""

    def __init__(self, name, opset=OPSET):
        self.opset = opset

    def nodes_of(self, kind, inputs, outputs, *more, **attributes):
        return ["x"] * outputs if isinstance(outputs, int) else [*outputs]

    def node(self, *words, **attributes):
        return "x"

    input = constant = cast = type = node

    def output(self, *words):
        pass

    external = output

    def content(self):
        return b""


@pytest.mark.parametrize("kind", decoder.GRAPHS)
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_of_the_checkpoint_is_in_it_once(name, kind, monkeypatch, tmp_path):
    monkeypatch.setattr(decoder, "Graph", Unwritten)
    config = checkpoints.llama_config(**families.SHAPES[name])
    checkpoints.write_json(tmp_path / "config.json", config)
    found = read_config(tmp_path / "config.json", can=weights.CAN)
    _, layout = decoder.build(found, Form("fp32"), kind)
    placed = sorted(tensor.source for tensor in layout.stored)
    assert placed == sorted(spec.source for spec in specs_of(found, "f32") if spec.source)


def test_the_graph_is_of_every_family_without_experts():
    told = {families.SHAPES[name]["architectures"][0] for name in NAMES}
    assert {"Gemma2ForCausalLM", "Gemma3ForCausalLM", "Olmo2ForCausalLM"} <= told
    assert not {"MixtralForCausalLM", "Qwen3MoeForCausalLM"} & told


def test_norms_stand_where_the_family_has_them(tmp_path):
    places = {}
    for name in ("Qwen3", "OLMo 2", "Gemma 2"):
        checkpoints.write_json(
            tmp_path / "config.json", checkpoints.llama_config(**families.SHAPES[name])
        )
        places[name] = decoder.norms_of(read_config(tmp_path / "config.json", can=weights.CAN))
    assert [*places["Qwen3"]] == ["before_attention", "before_mlp"]
    assert [*places["OLMo 2"]] == ["behind_attention", "behind_mlp"]
    assert len(set(places["Gemma 2"].values())) == 4
