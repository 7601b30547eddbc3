"""int8: what the writer makes is what its check, which shares none of its code, takes; and nothing else."""

import numpy as np
import pytest

from ingot.base.refused import Refused
from ingot.formats.onnx import weights
from ingot.formats.onnx.torchpipe import split
from ingot.model.checkpoint.safetensors import Tensor
from ingot.model.tensors.int8 import Quantizer
from ingot.parity.int8_weights import Int8Comparison


@pytest.fixture
def source(tmp_path):
    """A tensor of 64 rows of 96 values, among them zeros, tiny ones and a large one."""
    values = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    values[3] = 0
    values[5] *= 1e-30
    values[11], values[13] = 1e-38, 1e-41
    values[7, 11] = 1e4
    (tmp_path / "w").write_bytes(values.tobytes())
    return Tensor("w", "F32", values.shape, tmp_path / "w", 0, values.nbytes), values


def made(values, block):
    if block:
        numbers, scales = Quantizer().blocks(values, block)
        return numbers.reshape(values.shape).astype(np.float32) - 128, scales.copy(), block, 128
    numbers, scales = Quantizer().rows(values, 63)
    return numbers.astype(np.float32), scales.copy(), values.shape[1], 63


@pytest.mark.parametrize("block", [0, 16, 32])
def test_each_value_becomes_the_nearest_of_its_scale(block, source):
    tensor, values = source
    numbers, scales, group, most = made(values, block)
    found = Int8Comparison(tensor.path)
    found.tensor(tensor, group, most, lambda a, b: (numbers[a:b], scales.reshape(64, -1)[a:b]))
    checks = found.checks()
    assert checks["int8_values"] == values.size
    assert np.abs(numbers).max() <= most


@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("fault", ["number", "scale"])
def test_one_number_or_scale_that_is_off_by_one_is_refused(block, fault, source):
    tensor, values = source
    numbers, scales, group, most = made(values, block)
    if fault == "number":
        numbers[40, 17] += 1 if numbers[40, 17] < 0 else -1
    else:
        scales.reshape(-1)[20] *= 1 + 1e-5
    with pytest.raises(Refused, match="is not"):
        Int8Comparison(tensor.path).tensor(
            tensor, group, most, lambda a, b: (numbers[a:b], scales.reshape(64, -1)[a:b])
        )


def test_int8_products_of_two_pairs_fit_into_16_bits():
    """Where a CPU has no VNNI they are added there: 3 % of wrong logits, seen with 127."""
    assert 2 * 255 * weights.MOST_OF["dynamic"] < 1 << 15


def test_the_layers_of_a_cut_model_are_those_asked_for(tmp_path):
    from ingot.driver.catalogue.model import planned

    sizes = {"layers": 4, "hidden": 8, "ffn": 8, "heads": 2, "kv_heads": 1, "head_dim": 4}
    said = {**sizes, "vocab": 8, "context": 64}
    config = planned({"architecture": "LlamaForCausalLM", "dimensions": said})
    assert split.Split(layers=2).cut("config.json", config).layers == 2
    with pytest.raises(Refused, match="has 4 layers, expected 5 or more for onnx"):
        split.Split(layers=5).cut("config.json", config)
