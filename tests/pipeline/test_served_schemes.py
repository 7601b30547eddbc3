"""A quantised checkpoint of the demo, served by the real vLLM on this CPU: from its name to its record."""

import json

import pytest

BUNDLE = "artifacts/demo_tp1.fp8.vllm-slurm"


@pytest.mark.slow
def test_a_server_of_fp8_answers_as_transformers_with_compressed_tensors_does(shared, tmp_path):
    made = (BUNDLE, "artifacts/demo.fp8.safetensors")  # by name: a record that is there comes alone
    done = shared(tmp_path, "--", *made, f"{BUNDLE}.verified.json")
    assert done.returncode == 0, done.stderr[-3000:]
    checks = json.loads((tmp_path / f"{BUNDLE}.verified.json").read_bytes())["checks"]
    assert checks["greedy_equal"] == checks["prompts"] == 26
    assert checks["largest_logprob_difference"] < 0.05
    assert checks["kv_cache_tokens"] == checks["kv_cache_tokens_planned"]
    shard = "model-00001-of-00002.safetensors"
    served = tmp_path / BUNDLE / "model" / shard
    whole = tmp_path / "artifacts/demo.fp8.safetensors" / shard
    assert served.read_bytes() == whole.read_bytes() and served.stat().st_nlink > 1
    said = json.loads((tmp_path / BUNDLE / "model/config.json").read_bytes())
    assert said["quantization_config"]["quant_method"] == "compressed-tensors"
