"""A GGUF file's metadata checked against what follows from its checkpoint: what is said of a difference."""

from types import SimpleNamespace

import pytest

from ingot.base.refused import Refused
from ingot.formats.gguf import header
from ingot.formats.gguf.kv import KV


def field(value, *types):
    return SimpleNamespace(
        types=[SimpleNamespace(name=name) for name in types], contents=lambda: value
    )


WANTED = [KV("a.theta", "f32", 0.1), KV("a.tokens", "[str]", ["x", "y"]), KV("a.none", "[str]", [])]
RIGHT = {
    "GGUF.version": field(3, "UINT32"),
    "a.theta": field(0.10000000149011612, "FLOAT32"),
    "a.tokens": field(["x", "y"], "ARRAY", "STRING"),
    "a.none": field([], "ARRAY"),
}


def test_what_follows_from_the_checkpoint_is_counted():
    assert header.check("m.gguf", RIGHT, WANTED) == 3


@pytest.mark.parametrize(
    "key, found, said",
    [("a.theta", field(0.2, "FLOAT32"), r"a.theta is 0.2, expected 0.1000"),
     ("a.theta", field(0.10000000149011612, "FLOAT64"), r"a.theta is "),
     ("a.tokens", field(["x", "z"], "ARRAY", "STRING"), r"a.tokens\[1\] is 'z', expected 'y'"),
     ("a.tokens", field(["x"], "ARRAY", "STRING"), r"a.tokens has 1 entries, expected 2"),
     ("a.tokens", field(["x", "y"], "ARRAY", "UINT8"), r"a.tokens is of another type"),
     ("b.more", field(1, "UINT32"), r"b.more is there, expected no such key")],
)  # fmt: skip
def test_the_first_difference_is_named(key, found, said):
    with pytest.raises(Refused, match=f"m.gguf: {said}.*"):
        header.check("m.gguf", {**RIGHT, key: found}, WANTED)


def test_a_key_that_is_missing_is_named():
    with pytest.raises(Refused, match=r"a.none is missing, expected \[\]"):
        header.check("m.gguf", {key: RIGHT[key] for key in RIGHT if key != "a.none"}, WANTED)
