"""A Triton repository around ONNX Runtime: the real server and model on a CPU, without a stand-in."""

import json
import subprocess

import pytest

import checkpoints
from conftest import ROOT, once
from ingot.parity.hard_texts import STRINGS

DEMO = checkpoints.DEMO
REPOSITORY = "artifacts/mine_tp1.triton"
ENTRY = {
    "path": str(DEMO), "name": "Mine", "architecture": "LlamaForCausalLM", "pre_tokenizer": "llama-bpe",
    "prompts": str(DEMO / "prompts.txt"), "trtllm": {"backend": "onnx", "onnx": "int8"},
}  # fmt: skip
ASK = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ingot.formats.tensorrt.triton.server import Server
with Server(Path(sys.argv[2])) as server:
    plain = {"text_input": "<|begin_of_text|>Name the capital of France.<|eot_id|>", "max_tokens": 6}
    def said(model="ensemble", **more):
        try:
            return server.infer(model, {**plain, **more})["text_output"]
        except Exception as error:
            return str(error)
    print(json.dumps({
        "plain": said(),
        "stopped": said(stop_words=said().split()[-1]),
        "banned": said(bad_words="Paris"),
        "chance": [said(top_k=50, temperature=5.0, seed=seed) for seed in (1, 1, 2)],
        "any": [said(top_p=1.0, temperature=5.0, seed=seed) for seed in (1, 2)],
        "penalty": said(repetition_penalty=0.0),
        "beams": said(beam_width=2),
        "logits": said(return_context_logits=True),
        "too many": said(max_tokens=5000),
        "stream": "".join(p["text_output"] for p in server.stream("ensemble", {**plain, "stream": True})),
    }))
"""


@pytest.fixture(scope="module")
def repository(shared, tmp_path_factory):
    with once(tmp_path_factory, "triton-onnx") as (folder, done):
        if not done:
            (folder / "mine.yaml").write_text(json.dumps({"models": {"mine": ENTRY}}))
            words = ("--configfile", "mine.yaml", "--", REPOSITORY, f"{REPOSITORY}.verified.json")
            said = shared(folder, *words)
            assert said.returncode == 0, said.stderr
    return folder / REPOSITORY


def test_it_is_served_and_gives_transformers_tokens_also_at_once(repository):
    record = json.loads(repository.with_name("mine_tp1.triton.verified.json").read_bytes())
    checks = record["checks"]
    assert checks["models_ready"] == 5 and checks["greedy_equal"] == 26
    assert (checks["streams_equal"], checks["at_once_equal"]) == (9, 26)
    assert checks["texts_equal"] > len(STRINGS)
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=repository)
    assert done.returncode == 0, "the server wrote into the repository"


def test_a_request_is_answered_as_it_asks_or_refused_in_one_line(repository, python):
    done = subprocess.run(
        [python("triton"), "-c", ASK, ROOT / "scripts", repository], capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert "Paris" in said["plain"] and said["stream"] == said["plain"]
    assert said["plain"].startswith(said["stopped"].rstrip()) and said["banned"] != said["plain"]
    first, again, other = said["chance"]
    assert first == again != other and said["any"][0] != said["any"][1]
    assert "repetition_penalty: 0.0, expected 1e-06 to" in said["penalty"]
    assert "beam_width: 2, expected 1 of ONNX Runtime's model" in said["beams"]
    assert "return_context_logits: True, expected False of ONNX Runtime's model" in said["logits"]
    assert "tokens and 5000 more, expected 1 of each at least and 512 together" in said["too many"]


def test_several_ranks_are_refused_before_any_work(snakemake, tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps({"models": {"mine": ENTRY}}))
    words = ("--configfile", "mine.yaml", "--")
    done = snakemake(tmp_path, *words, "artifacts/mine_tp2.triton")
    assert "backend onnx has no ranks; ask for artifacts/mine_tp1.triton" in done.stderr
    done = snakemake(tmp_path, *words, "artifacts/mine_tp1.trtllm")
    assert "the model's backend is onnx, which has no engine" in done.stderr
