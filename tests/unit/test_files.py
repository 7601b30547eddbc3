"""Bytes to disk: whole under their names, hashed once, in any number of threads."""

import os

import numpy as np
import pytest


def test_an_error_in_making_the_jobs_is_no_success():
    from ingot.files.stream import in_threads

    def jobs():
        yield lambda: None
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        in_threads(jobs())


def test_what_a_killed_process_left_is_removed_and_a_running_ones_is_not(tmp_path):

    from ingot.files.atomic import replacing

    (tmp_path / ".m.gguf.999999999.partial").write_bytes(b"dead")
    (tmp_path / f".m.gguf.{os.getppid()}.partial").write_bytes(b"alive")
    with replacing(tmp_path / "m.gguf") as partial:
        partial.write_bytes(b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".m.gguf.{os.getppid()}.partial", "m.gguf",
    ]  # fmt: skip


def test_every_bfloat16_becomes_the_float16_that_numpy_says():
    from ingot.checkpoint.cast import Caster

    bits = np.arange(1 << 16, dtype=np.uint16)
    bits = bits[(bits & 0x7FFF) <= 0x7F80]  # NaNs are refused before
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        expected = wide.astype(np.float16).view(np.uint16)
    assert np.array_equal(Caster("BF16", "F16")(bits), expected)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_sees_every_nan_and_no_infinity(dtype):
    from ingot.checkpoint.cast import INFINITY, has_nan
    from ingot.checkpoint.dtypes import FLOATS

    infinity, sign = INFINITY[dtype], 1 << (8 * FLOATS[dtype].itemsize - 1)
    for bits, nan in ((infinity, 0), (infinity | sign, 0), (infinity + 1, 1), (sign - 1, 1),
                      ((infinity | sign) + 1, 1), (2 * sign - 1, 1), (0, 0), (sign, 0)):  # fmt: skip
        assert has_nan(np.array([0, bits, 0], FLOATS[dtype].bits), dtype) == bool(nan), hex(bits)
