"""The parts of the ONNX family that need no ONNX: layouts, files beside the graph, masks, what is fed."""

import json
import pickletools
import sys
import zipfile
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import checkpoints
from ingot.base.refused import Refused
from ingot.formats.onnx import external, folder, graph, session, write
from ingot.formats.onnx.openvino import folder as openvino_folder
from ingot.formats.onnx.openvino import ir
from ingot.formats.onnx.openvino import session as openvino_session
from ingot.formats.onnx.torchpipe import attended
from ingot.formats.onnx.weights import EMBEDDING, Form, Layout, Stored, Weights
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.rows import Rows
from ingot.model.checkpoint.safetensors import read_checkpoint
from ingot.model.config import read_config
from ingot.model.tensors import pt
from ingot.parity import onnx_weights

DEMO = checkpoints.DEMO


@pytest.fixture
def demo():
    return Checkpoint([DEMO]), read_config(DEMO / "config.json")


def test_a_data_file_holds_what_its_layout_says_and_one_changed_byte_is_found(demo, tmp_path):
    checkpoint, config = demo
    shape, block = (config.vocab, config.hidden), 32
    size = config.vocab * config.hidden
    layout = Layout(
        [
            Stored(
                EMBEDDING, shape, "BLOCKS", "a.data", 64, 0, config.hidden // block, "a.scales", 0
            )
        ],
        {"a.data": 64 + size, "a.scales": 4 * size // block},
    )
    with Rows(checkpoint, config, "test") as rows:
        digests = write.write(rows, layout, tmp_path, tmp_path)
    assert set(digests) == set(layout.sizes)
    sources = read_checkpoint(checkpoint)
    found = onnx_weights.compare(tmp_path, layout, sources, checkpoint)
    assert found["int8_values"] == size
    data = bytearray((tmp_path / "a.scales").read_bytes())
    data[401] ^= 8
    (tmp_path / "a.scales").write_bytes(data)
    with pytest.raises(Refused, match="a scale of model"):
        onnx_weights.compare(tmp_path, layout, sources, checkpoint)


def test_a_graph_gives_equal_constants_one_name(monkeypatch):
    made = SimpleNamespace(numpy_helper=SimpleNamespace(from_array=lambda values, name: name))
    monkeypatch.setitem(sys.modules, "onnx", made)
    found = graph.Graph("g")
    assert found.constant([1]) == found.constant([1]) != found.constant([1, 1])
    assert found.constant(np.int64(1)) not in (found.constant([1]), found.constant(np.int8(1)))


def test_every_end_token_is_in_genai_config_and_no_length_beyond_the_models(demo):
    files = [DEMO / name for name in ("config.json", "generation_config.json")]
    ids = folder.special(files)
    assert ids["eos_token_id"] == [1017, 1020]  # config.json names the second only
    found = folder.genai_config(demo[1], folder.Export(Form("fp32")), ids, folder.search(files))
    assert found["model"]["eos_token_id"] == [1017, 1020]
    assert found["search"]["max_length"] == 512 == found["model"]["context_length"]
    assert not found["search"]["past_present_share_buffer"]
    sampled = {  # as generation_config.json says
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 50,
        "top_p": 0.9,
    }
    assert found["search"].items() >= sampled.items() and not folder.search(files[:1])["do_sample"]
    assert folder.special(files[:1])["eos_token_id"] == 1020


@pytest.mark.parametrize("length, expected", [(None, 4096), (9000, 9000)])
def test_a_server_reserves_no_long_context_unless_asked(length, expected, demo, tmp_path):
    config = checkpoints.llama_config(max_position_embeddings=131072)
    checkpoints.write_json(tmp_path / "config.json", config)
    export = folder.Export(Form("fp32"), max_length=length)
    assert export.length(read_config(tmp_path / "config.json")) == expected


def test_layers_that_stay_float_are_named_by_their_ends():
    form = Form(
        "int8", float_layers=("lm_head", "mlp.down_proj", "model.layers.0.self_attn.q_proj")
    )
    kinds = {
        "lm_head": "F32", "model.layers.3.mlp.down_proj": "F32", "model.layers.3.mlp.up_proj": "BLOCKS",
        "model.layers.0.self_attn.q_proj": "F32", "model.layers.10.self_attn.q_proj": "BLOCKS",
    }  # fmt: skip
    assert {name: form.stored(f"{name}.weight") for name in kinds} == kinds


def test_the_head_of_tied_embeddings_is_the_embedding(demo):
    form = Form("int8", float_layers=("lm_head",))
    kinds = [
        Weights(None, replace(demo[1], tied=tied), form, "model").form.stored(EMBEDDING)
        for tied in (True, False)
    ]
    assert kinds == ["F32", "BLOCKS"]


@pytest.mark.parametrize("write", ["onnx", "openvino"])
def test_a_layer_that_the_model_does_not_have_is_refused_by_each_writer(write, demo, tmp_path):
    form = Form("int8", "dequantized", float_layers=("mlp.middle",))
    with pytest.raises(Refused, match=r"has no layer mlp\.middle, expected one"):
        if write == "onnx":
            folder.Export(form).hold(DEMO / "config.json", demo[1])
        else:
            openvino_folder.write_folder(demo[0], [DEMO / "config.json"], tmp_path / "o", form)


def test_no_end_token_in_one_file_is_asked_of_the_other_and_none_at_all_is_said(tmp_path, capsys):
    paths = [tmp_path / name for name in ("config.json", "generation_config.json")]
    for path, ids in zip(paths, ([5], None), strict=True):
        path.write_text(json.dumps({"eos_token_id": ids}))
    assert folder.special(paths) == {"eos_token_id": [5]} and not capsys.readouterr().err
    paths[0].write_text("{}")
    assert folder.special(paths) == {}
    assert "names no eos_token_id" in capsys.readouterr().err


def test_a_graph_of_another_kind_of_model_is_refused(demo, tmp_path):
    export = folder.Export(Form("fp32"))
    (tmp_path / "graph.json").write_text(json.dumps(folder.about(demo[1], export)))
    (tmp_path / "genai_config.json").write_text(
        json.dumps(folder.genai_config(demo[1], export, {}, {}))
    )
    encoder = SimpleNamespace(graph=SimpleNamespace(input=[], output=[]))
    with pytest.raises(Refused, match="expected a decoder with a KV cache"):
        external.hold_lengths(tmp_path, encoder)


def test_a_folder_without_a_graph_is_refused(tmp_path):
    with pytest.raises(Refused, match="missing, expected an ONNX graph"):
        external.read_graph(tmp_path)


def test_positions_count_a_rows_real_tokens(monkeypatch):
    asked = []

    def run(_, feed):
        asked.append(feed)
        return [np.zeros((2, feed["input_ids"].shape[1], 7), np.float32)]

    def value(name):
        return SimpleNamespace(name=name, type="tensor(int64)", shape=[])

    names = ("input_ids", "attention_mask", "position_ids")
    found = SimpleNamespace(
        run=run, get_inputs=lambda: [*map(value, names)], get_outputs=lambda: [value("logits")]
    )
    fake = SimpleNamespace(InferenceSession=lambda *_, **__: found)
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    session.Session(DEMO).padded([[5], [5, 6, 7]], 2)
    first, second = asked
    assert first["position_ids"].tolist() == [[0, 0, 0], [0, 1, 2]]
    assert first["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]
    assert second["position_ids"].tolist() == [[1], [3]]


def test_requests_in_one_batch_see_only_themselves():
    mask = attended.packed_mask([2, 1], np.float32(-9))
    assert mask.tolist() == [[0, -9, -9], [0, 0, -9], [-9, -9, 0]]


def test_special_tokens_are_texts_where_openvino_reads_them(demo, tmp_path):
    settings = {"eos_token": {"__type": "AddedToken", "content": "</s>"}, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = openvino_folder.small(demo[0], [tmp_path / "tokenizer_config.json"])
    assert json.loads(found["tokenizer_config.json"]) == {"eos_token": "</s>", "bos_token": "<s>"}
    with pytest.raises(Refused, match="not in the checkpoint, expected by openvino"):
        ir.convert_tokenizer([tmp_path / "tokenizer_config.json"], tmp_path)


def test_the_gate_of_openvino_computes_everything_in_float32():
    assert set(openvino_session.EXACT.values()) == {"f32", "0"}


def test_a_tensor_as_torch_writes_it_has_its_parts_and_the_same_bytes_each_time(tmp_path):
    values = np.arange(12, dtype=np.float16).reshape(3, 4)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        blocks = (values[n : n + 1].tobytes() for n in range(3))
        pt.write(tmp_path / name / "t.pt", "F16", values.shape, blocks)
    assert (tmp_path / "a/t.pt").read_bytes() == (tmp_path / "b/t.pt").read_bytes()
    whole = (tmp_path / "a/t.pt").read_bytes()
    for place in range(
        8 * len(whole)
    ):  # a flipped bit is seen where it counts, and is no traceback
        at, bit = divmod(place, 8)
        (tmp_path / "b/t.pt").write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        )
        held = pt.holds(tmp_path / "b/t.pt", "F16", values.shape, [values.tobytes()])
        inside = whole.find(values.tobytes()) <= at < whole.find(values.tobytes()) + values.nbytes
        assert not (held and inside)
    assert pt.holds(tmp_path / "a/t.pt", "F16", values.shape, [values.tobytes()])
    assert not pt.holds(tmp_path / "a/t.pt", "F16", values.shape, [values.tobytes()[:-2]])
    with zipfile.ZipFile(tmp_path / "a/t.pt") as archive:
        assert archive.read("t/data/0") == values.tobytes()
        pickled = [arg for _, arg, _ in pickletools.genops(archive.read("t/data.pkl"))]
    assert "torch HalfStorage" in pickled and 12 in pickled


def test_a_tensor_of_more_than_two_billion_values_is_counted_right():
    counted = [arg for _, arg, _ in pickletools.genops(pt._pickle("F16", (128256, 16384)))]
    assert 128256 * 16384 in counted
