"""What may be asked for: one line with the nearest right ones for all else."""

import re

import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import targets
from ingot.driver.catalogue.formats.rows import OFFERED
from ingot.driver.catalogue.schema import load


@pytest.fixture(scope="module")
def catalogue():
    return load(ROOT)


WRONG = {
    "llama999b_tp3.vmfb": ("unknown model llama999b", "_tp"),
    "demo_tp3.vmfb": ("tensor parallel size 3, expected one of 1, 2, 4, 8", "demo_tp2.vmfb"),
    "demo_tp16.vmfb": (
        "tensor parallel size 16, expected one of 1, 2, 4, 8",
        ": artifacts/demo_tp8",
    ),
    "demo_tp8.shortfin": ("shortfin on CPU supports at most 4 ranks", "demo_tp"),
    "demo_tp1.irpa": ("one rank holds the whole model; ask for artifacts/demo.irpa", "demo"),
    "demo_tp2.rank2.irpa": ("unknown variant rank2, expected one of rank0, rank1", "demo"),
    "demo_tp2.rank0.irpa.verified.json": ("a set is verified as a whole; ask for", "demo_tp2"),
    "demo_tp1.sm80.shortfin": ("shortfin runs on no cuda device", "demo_tp1"),
    "demo_tp1.gfx999.vmfb": ("unknown variant gfx999, expected one of cpu, gfx942", "demo_tp1."),
    "demo.trtllm": (".trtllm needs a tensor parallel size: demo_tpN.trtllm", "demo_tp1.trtllm"),
    "demo_tp3.trtllm-ckpt": ("size 3, expected one of 1, 2, 4, 8, 16", "demo_tp2.trtllm-ckpt"),
    "demo_tp2.sm75.trtllm": ("unknown variant sm75, expected one of fp8", "demo_tp2."),
    "demo_tp2.sm80.fp8.triton": ("unknown variant sm80.fp8", "demo_tp2."),
    "demo_tp2.gfx942.triton": ("unknown variant gfx942", "demo_tp2."),
    "demo_tp2.trtllm.verified.json": ("verified by serving it; ask for the .triton's", "demo_tp2"),
    "demo_tp2.fp8.sm80.trtllm": ("sm80 has no FP8: it begins with compute capability 8.9", "demo_"),
    "demo_tp2.int8_sq.sm100.triton": ("TensorRT-LLM builds no int8_sq engine for sm100", "demo_tp"),
    "demo_tp2.rtx": ("TensorRT for RTX is for one GPU", "demo.rtx"),
    "demo.zip": ("not a target, expected demo[_tpN][.VARIANT].{gguf,", "demo."),
    "demo.vmfb": (".vmfb needs a tensor parallel size: demo_tpN.vmfb", "demo_tp1.vmfb"),
    "demo_tp1.gguf": ("a GGUF file holds the whole model", "demo.gguf"),
    "demo.q4_k_x.gguf": ("unknown variant q4_k_x", "demo.q4_k_m.gguf"),
    "demo_tp01.vmfb": ("not a target", "demo_tp1.vmfb"),
    "nosuch.reference.npz": ("unknown model nosuch", ""),
    "nosuch.hf/config.json": ("unknown model nosuch", ""),
    "demo.hf/config.json": ("not a target", "demo"),
    "llama8b.hf/": ("not a target", "llama8b"),
    "demo.q8_0.irpa": ("unknown variant q8_0, expected one of f32, f16, bf16", "demo."),
    "demo.iq2_xs.gguf": (
        "iq2_xs needs an importance matrix; set models.demo.imatrix",
        "demo.iq4_xs.gguf",
    ),
    "demo.imatrix": ("models.demo.imatrix: missing, expected a text", "demo"),
    "demo.quants.verified.json": ("ask for that one's record", "demo.quants"),
    "demo_tp1.mlir.verified.json": ("verified by running its .vmfb", "demo_tp1.mlir"),
    "demo_tp1.gfx942.vmfb.verified.json": (
        "here on cpu only; ask for artifacts/demo_tp1.cpu.vmfb",
        "demo_tp1.gfx942",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_target_gets_the_reason_and_the_nearest_right_ones(name, catalogue):
    reason, near = WRONG[name]
    assert reason in targets.why_not(f"artifacts/{name}", catalogue)
    assert near in targets.nearest(f"artifacts/{name}", catalogue)


def test_ranks_that_a_models_heads_cannot_be_split_over_are_refused_before_any_step(catalogue):
    numbers = {"layers": 2, "hidden": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "head_dim": 16}
    numbers |= {"vocab": 100, "context": 512}
    catalogue["models"]["demo"] = {**catalogue["models"]["demo"], "dimensions": numbers}
    offered = targets.legal_of("demo", catalogue)
    for name in ("trtllm-ckpt", "trtllm", "triton"):
        assert f"artifacts/demo_tp4.{name}" in offered
        reason = targets.why_not(f"artifacts/demo_tp8.{name}", catalogue)
        assert reason == "4 attention heads cannot be split over 8 ranks; choose 4"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


WORDS = ("f32", "f16", "bf16", "q8_0", "q4_k_m", "rank0", "rank7", "decomposed", "cpu", "gfx942", "sm80",
         "sm90", "fp8", "int8_sq", "nosuch")  # fmt: skip


@pytest.mark.parametrize("model", ["demo", "llama405b"])
def test_what_is_offered_is_just_what_is_not_refused(model, catalogue):
    """Every name of the grammar, asked one by one."""
    offered = set(targets.legal_of(model, catalogue))
    for tp in ("", "_tp1", "_tp2", "_tp3", "_tp8", "_tp16"):
        for variant in ("", *(f".{word}" for word in WORDS)):
            for row in OFFERED:
                target = f"artifacts/{model}{tp}{variant}.{row.name}"
                refused = targets.why_not(target, catalogue)
                assert (target in offered) == (refused is None), f"{target}: {refused}"
    assert len(offered) > 50


@pytest.mark.parametrize(
    "words, reason",
    [
        (
            ["demo_tp1.vmfb"],
            "not a target, expected a path in artifacts/; ask for artifacts/demo_tp1.vmfb",
        ),
        (["-n", "demo.gguf.verified.json"], "ask for artifacts/demo.gguf.verified.json"),
        (["artifacts/nope.gguf"], "unknown model nope; nearest: artifacts/"),
        (["artifacts/nope.gguf"], "; `ingot add` takes a model of yours"),
        (["artifacts/demo-q4_k_m.gguf"], "nearest: artifacts/demo.q4_k_m.gguf"),
        (
            ["demo"],
            "demo: a model, expected one of its artifacts, such as artifacts/demo.gguf; `ingot tar",
        ),
        (
            ["https://huggingface.co/a/b"],
            "`ingot add https://huggingface.co/a/b` makes it a model of yours",
        ),
        ([str(ROOT / "models/demo")], "a checkpoint, expected an artifact; `ingot add "),
    ],
)
def test_a_target_on_the_command_line_that_is_none_is_refused(
    words, reason, catalogue, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=re.escape(reason)):
        targets.stop_on_wrong(["snakemake", *words], catalogue)


def test_words_that_are_no_targets_are_left_to_snakemake(catalogue, empty):
    (empty / "demo.gguf").write_text("a file of the user's own rules")
    for words in (
        ["all"],
        ["-j", "2"],
        ["demo.gguf"],
        ["--configfile", "mine.yaml"],
        ["--mode", "x", "a.gguf"],
    ):
        targets.stop_on_wrong(["snakemake", *words], catalogue)


@pytest.mark.parametrize("ending", ["verfied.json", "verified.jsn", "verified", "verify.json"])
def test_the_nearest_of_a_misspelt_record_is_the_record(ending, catalogue):
    for of in ("demo.q4_k_m.gguf", "demo_tp1.shortfin"):
        near = targets.nearest(f"artifacts/{of}.{ending}", catalogue)
        assert near == f"nearest: artifacts/{of}.verified.json"
    near = targets.nearest(f"artifacts/demo.q4_k_x.gguf.{ending}", catalogue)
    assert "artifacts/demo.q4_k_m.gguf" in near


def test_the_nearest_of_an_unknown_model_are_of_three_models(catalogue):
    near = targets.nearest("artifacts/nope.gguf", catalogue).removeprefix("nearest: ")
    near = near.partition(";")[0].split(", ")
    assert len({targets.model_of(target) for target in near}) == len(near) == 3
    assert all(target.endswith(".gguf") for target in near)


def test_programs_of_a_quantised_model_are_refused_and_not_offered(catalogue):
    demo = {**catalogue["models"]["demo"], "dtype": "q8_0"}
    found = {**catalogue, "models": {"demo": demo}}
    assert "dtype is q8_0; name a variant" in targets.why_not("artifacts/demo.irpa", found)
    for name in ("demo_tp1.vmfb", "demo_tp1.vmfb.verified.json", "demo_tp1.shortfin"):
        assert "programs are exported for weights in f16" in targets.why_not(
            f"artifacts/{name}", found
        )
    plain, offered = (
        {t.split(".")[-1] for t in targets.legal_of("demo", one)} for one in (catalogue, found)
    )
    programs = {"mlir", "json", "vmfb", "shortfin"}  # and config.json of one
    assert plain - offered == programs | {"trtllm-ckpt", "trtllm", "triton"} and offered < plain
