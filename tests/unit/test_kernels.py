"""What envs/convert/kernels.c computes is what numpy does; of merges, test_adapter.py shows it."""

import gc
import weakref

import numpy as np
import pytest

from ingot.model.checkpoint.merge import Merger
from ingot.model.tensors import kernels
from ingot.model.tensors.cast import Caster
from ingot.model.tensors.int8 import Quantizer

FINITE = np.arange(1 << 16, dtype=np.uint16)
FINITE = FINITE[(FINITE & 0x7FFF) < 0x7F80]  # all others are refused before


def bfloat16(case):
    """Every finite value of bfloat16, near its neighbours or among any others; or values as weights are."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((64, 96), np.float32) * np.float32(0.05)
    return {
        "in order": FINITE,
        "shuffled": rng.permutation(FINITE),
        "weights": (weights.view(np.uint32) >> 16).astype(np.uint16),
        "zeros": np.zeros(64, np.uint16),
        "none": np.zeros(0, np.uint16),
    }[case]


def both(compiled, source, target, bits):
    """What numpy and what the library makes of values, each with how many became infinite."""
    found = []
    with np.errstate(all="ignore"):
        for prepare in (lambda: None, compiled):
            prepare()
            caster = Caster(source, target)
            assert (caster.kernel is not None) is (prepare is compiled)
            found.append((caster(bits).tobytes(), caster.overflowed))
    return found


@pytest.mark.parametrize("case", ["in order", "shuffled", "weights", "zeros", "none"])
@pytest.mark.parametrize("target", ["F16", "Q8_0"])
def test_every_bfloat16_is_cast_as_numpy_does(compiled, target, case):
    theirs, ours = both(compiled, "BF16", target, bfloat16(case))
    assert theirs == ours
    assert (ours[1] > 0) is (case in ("in order", "shuffled"))


def test_blocks_of_float32_are_cast_as_numpy_does(compiled):
    """Among them some whose scale is too small for its inverse, and some whose scale is no float16."""
    rng = np.random.default_rng(5)
    exponents = np.repeat(rng.uniform(-100, 85, 1 << 10), 32)
    values = (rng.standard_normal(1 << 15) * np.exp(exponents)).astype(np.float32)
    values[:32], values[32:64] = np.arange(32) - 15.5, 127  # ties, and a whole scale
    theirs, ours = both(compiled, "F32", "Q8_0", values.view(np.uint32))
    assert theirs == ours and ours[1] > 0


def test_what_no_block_divides_is_cast_by_numpy(compiled):
    bits = bfloat16("weights").reshape(-1)[:33]
    compiled()
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    assert Caster("BF16", "F16")(bits).tobytes() == wide.astype(np.float16).tobytes()


@pytest.mark.parametrize("make", [
    *(lambda pair=pair: Caster(*pair) for pair in (("BF16", "F16"), ("F32", "BF16"), ("BF16", "Q8_0"))),
    Merger, Quantizer,
])  # fmt: skip
def test_what_owns_a_threads_buffers_goes_with_the_thread(make):
    """A stream starts threads for each piece: buffers that waited for Python's collector took gigabytes."""
    gc.disable()
    try:
        left = weakref.ref(make())
        assert left() is None
    finally:
        gc.enable()


def test_an_older_processor_has_numpy(monkeypatch, compiled, tmp_path):
    compiled()
    assert Caster("BF16", "F16").kernel
    flags = "processor : 0\nflags\t\t: fpu sse2 avx f16c\n\nprocessor : 1\nflags\t\t: fpu\n"
    (tmp_path / "cpuinfo").write_text(flags)
    monkeypatch.setattr(kernels.machine, "PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(kernels, "_library", kernels._library.__wrapped__)
    assert Caster("BF16", "F16").kernel is None
    monkeypatch.setattr(kernels.machine, "PROCESSOR", tmp_path / "none")  # a chroot without /proc
    assert Caster("BF16", "F16").kernel is None


def test_vectors_begin_where_they_must():
    for shape in ((3, 5, 16), (1,)):
        found = kernels.aligned(shape, np.float32)
        assert found.shape == shape and found.ctypes.data % 32 == 0 and not found.any()
