"""Flags of trtllm-build in the spelling of two versions: passed, translated or refused."""

import re

import pytest

from conftest import ROOT
from flag_table import TABLE, parsed
from ingot.base.refused import Refused
from ingot.formats.tensorrt import build_flags as engine
from ingot.formats.tensorrt import gpus

GUIDE = {  # the guide's command, word for word
    "gpt_attention_plugin": "float16", "gemm_plugin": "float16", "remove_input_padding": "enable",
    "paged_kv_cache": "enable", "tp_size": 2, "max_batch_size": 256, "max_input_len": 2048,
    "max_output_len": 1024, "max_num_tokens": 1024, "opt_num_tokens": 1024,
    "context_fmha": "enable", "use_paged_context_fmha": "enable",
    "context_fmha_fp32_acc": "enable", "multi_block_mode": "enable",
}  # fmt: skip


@pytest.mark.parametrize("setting, old, new, ours", TABLE, ids=[row[0] for row in TABLE])
def test_the_documented_fate_of_a_flag_is_its_fate(setting, old, new, ours):
    (name,) = given = parsed(setting)
    verdict, _, detail = ours.partition(": ")
    if verdict == "refused":
        with pytest.raises(Refused, match=re.escape(detail)):
            engine.translated(given, "float16", tp=2)
        return
    build = engine.translated(given, "float16", tp=2)
    expected = {
        "passed": ([f"--{name}={given[name]}"], {}),
        "translated": ([detail], {}),
        "left out": ([], {}),
        "to the runtime": ([], dict([detail.split("=")]) if "=" in detail else {}),
    }[verdict]
    assert (build.arguments(), build.runtime) == expected
    assert bool(build.notes) == (verdict in ("translated", "to the runtime"))


def test_the_table_has_every_flag_of_the_guides_commands():
    listed = {row[0].split(":")[0] for row in TABLE}
    assert set(GUIDE) | {"model_dir", "dtype", "output_dir", "checkpoint_dir"} <= listed


def test_the_guides_settings_become_one_normalised_command():
    build = engine.complete(GUIDE, "float16", tp=2, pp=1)
    assert build.arguments() == [
        "--context_fmha=enable", "--gemm_plugin=float16", "--gpt_attention_plugin=float16",
        "--kv_cache_type=paged", "--max_batch_size=256", "--max_input_len=2048",
        "--max_num_tokens=1024", "--max_seq_len=3072", "--opt_num_tokens=1024",
        "--remove_input_padding=enable", "--use_paged_context_fmha=enable",
    ]  # fmt: skip
    assert build.runtime == {
        "enable_context_fmha_fp32_acc": "true", "multi_block_mode": "true",
    }  # fmt: skip
    assert any("max_num_tokens 1024 is below max_input_len 2048" in note for note in build.notes)
    backwards = dict(reversed(GUIDE.items()))
    assert engine.complete(backwards, "float16", 2, 1).arguments() == build.arguments()
    dashed = {f"--{name}": value for name, value in GUIDE.items()}
    assert engine.complete(dashed, "float16", 2, 1).arguments() == build.arguments()
    plain = engine.complete({"max_batch_size": 8}, "float16", 2, 1).flags
    assert plain == {**engine.DEFAULTS, "max_batch_size": "8"}


@pytest.mark.parametrize(
    "settings, reason",
    [
        (
            {"max_input_len": 4096, "max_seq_len": 2048},
            "max_input_len is 4096, more than max_seq_len",
        ),
        ({"opt_num_tokens": 9000, "max_num_tokens": 8192}, "opt_num_tokens is 9000, more than"),
        ({"max_num_tokens": 8, "max_batch_size": 64}, "max_num_tokens is 8, less than max_batch"),
        ({"use_paged_context_fmha": "enable", "context_fmha": "disable"}, "needs context_fmha"),
        (
            {"use_paged_context_fmha": "enable", "kv_cache_type": "continuous"},
            "needs kv_cache_type",
        ),
        ({"multiple_profiles": True, "opt_num_tokens": 8}, "cannot be combined"),
        ({"paged_kv_cache": True, "kv_cache_type": "paged"}, "are one setting"),
        ({"max_output_len": 8, "max_seq_len": 64}, "are one setting"),
        ({"gemm_plugin": "bfloat16"}, "gemm_plugin is bfloat16, but the checkpoint is float16"),
        ({"gemm_plugin": "int4"}, "gemm_plugin is int4, expected one of auto"),
        ({"max_batch_size": 0}, "max_batch_size is 0, expected a whole number from 1"),
        ({"max_batch_size": True}, "max_batch_size is enable, expected a whole number from 1"),
        ({"max_batch_size": "²"}, "max_batch_size is ², expected a whole number from 1"),
        ({"max_batch_size": 8.0}, "max_batch_size is 8.0, expected a word, a number"),
        ({"max_batch_size": 8, "max-batch-size": 8}, "max_batch_size is given twice"),
        ({"max_seq_len": 8, "max_decoder_seq_len": 8}, "max_seq_len is given twice"),
        ({"paged_kv_cache": 2}, "paged_kv_cache is 2, expected one of enable, disable"),
        ({"max_output_len": 0}, "max_output_len is 0, expected a whole number from 1"),
        ({"lora_dir": "x"}, "adapters are not built in here"),
        ({"max_batchsize": 8}, "that can be set here; nearest: max_batch_size"),
        (
            {"gather_context_logits": True, "max_draft_len": 4},
            "cannot be combined with max_draft_len",
        ),
        ({"input_timing_cache": "x"}, "no key would show"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, reason):
    with pytest.raises(Refused, match=re.escape(reason)):
        engine.translated(settings, "float16")


def test_the_readme_of_the_toolchain_names_the_version_that_is_pinned():
    lines = (ROOT / "envs/trtllm/requirements.in").read_text().split()
    assert lines == [f"tensorrt_llm=={gpus.TRTLLM}", f"tensorrt=={gpus.TENSORRT}"]
