"""What people paste is taken: addresses of models, types in upper case, products' names."""

import pytest

from conftest import ROOT
from ingot.driver.catalogue import spelling


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("artifacts/demo.Q4_K_M.gguf", "artifacts/demo.q4_k_m.gguf"),
        ("artifacts/demo.IQ4_XS.gguf.verified.json", "artifacts/demo.iq4_xs.gguf.verified.json"),
        ("artifacts/llama70b_tp4.H100.trtllm", "artifacts/llama70b_tp4.sm90.trtllm"),
        ("artifacts/llama8b_tp8.mi300x.vmfb", "artifacts/llama8b_tp8.gfx942.vmfb"),
        ("artifacts/demo.gguf", "artifacts/demo.gguf"),
        ("artifacts/m.hf/README.md", "artifacts/m.hf/README.md"),
    ],
)
def test_a_target_is_taken_in_the_fields_spelling(word, wanted):
    assert spelling.targets(["-n", "--", word], ROOT) == ["-n", "--", wanted]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("org/name", ("org/name", "")),
        ("https://huggingface.co/org/name", ("org/name", "")),
        ("https://huggingface.co/org/name/tree/main?a=b", ("org/name", "main")),
        ("https://huggingface.co/org/name/blob/main/config.json", ("org/name", "main")),
        ("hf.co/org/name/", ("org/name", "")),
        ("hf://org/name/", ("org/name", "")),
        ("https://example.com/org/name", None),
        ("name", None),
        ("a b/c", None),
    ],
)
def test_a_model_is_taken_by_its_address(text, wanted):
    assert spelling.model(text) == wanted
