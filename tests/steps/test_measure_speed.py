"""The step that times an artifact, in each runtime: on the demo, as its toolchains have it."""

import json

import pytest

from ingot.driver.commands.speed import TOOLCHAINS

pytestmark = pytest.mark.slow
LITTLE = ("--prompt", "512", "--generate", "3", "--threads", "1")


@pytest.mark.parametrize("ending", TOOLCHAINS)
def test_a_runtime_reads_a_prompt_and_goes_on_within_the_context(ending, shared, ok, tmp_path):
    """The demo's context is 512 tokens: of a prompt of 512 it takes four fifths."""
    artifact, result = f"artifacts/demo{ending}", tmp_path / "speed.json"
    built = shared(tmp_path, "--", artifact)
    assert built.returncode == 0, built.stderr
    words = ("--artifact", tmp_path / artifact, *LITTLE, "--result", result)
    ok(TOOLCHAINS[ending], "measure_speed.py", *words)
    found = json.loads(result.read_text())
    assert (found["prompt_tokens"], found["generated_tokens"]) == (409, 3)
    assert found["prompt"] > found["generation"] > 0 and found["version"]


def test_another_format_is_refused(step, tmp_path):
    words = ("--artifact", tmp_path / "m.irpa", *LITTLE, "--result", tmp_path / "r.json")
    done = step("llamacpp", "measure_speed.py", *words)
    assert (
        done.returncode == 1 and "no runtime here, expected .gguf, .onnx, .openvino" in done.stderr
    )
