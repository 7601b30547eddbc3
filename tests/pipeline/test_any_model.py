"""A model that only upstream tools know, from `ingot add` to its record; and one that may go both ways."""

import json
import re

import yaml

from conftest import planned, ran


def test_a_family_without_a_table_is_added_planned_built_and_verified(
    tiny, ingot, snakemake, store
):
    folder = tiny("phi").parent
    done = ingot("add", "phi", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Ingot has no table of PhiForCausalLM: its GGUF files are written by" in done.stdout
    entry = yaml.safe_load((folder / "models.local.yaml").read_text())
    vllm = {"device": "cpu", "dtype": "float32", "kv_cache_bytes": 1 << 26, "max_num_seqs": 4}
    more = {"corpus_tokens": 1024, "limits": {"q4_0": {"mean_kl": 1}}, "vllm": vllm}
    entry["models"]["phi"] |= more
    (folder / "models.local.yaml").write_text(yaml.safe_dump(entry))
    target = "artifacts/phi.q4_0.gguf"

    def run(*words, fails=False):
        done = snakemake(folder, *words, environment={"INGOT_STORE": str(store)})
        assert bool(done.returncode) == fails, done.stderr
        return done.stdout + done.stderr

    found = {rule for rule, _ in planned(run("-n", "--", f"{target}.verified.json")).values()}
    assert {"convert_gguf", "quantize_float", "verify_converted"} <= found
    assert not {"safetensors_to_gguf", "quantize_gguf", "verify_gguf"} & found
    served = "artifacts/phi_tp1.vllm-slurm.verified.json"
    in_onnx = "artifacts/phi.onnx.verified.json"
    in_openvino = "artifacts/phi.openvino.verified.json"
    quantised = "artifacts/phi.fp8.safetensors.verified.json"
    wanted = ["artifacts/phi.split", served, in_onnx, in_openvino, quantised]
    run("--", f"{target}.verified.json", *wanted)
    checks = json.loads((folder / quantised).read_bytes())["checks"]
    assert checks["layers_quantised"] == 24 and checks["activations"] == "rounded"
    record = json.loads((folder / f"{target}.verified.json").read_bytes())
    assert record["result"] == "passed" and record["way"].startswith("upstream: llama.cpp")
    assert (folder / "artifacts/phi.f32.gguf.verified.json").exists(), "which the other rests on"
    record = json.loads((folder / in_onnx).read_bytes())
    assert record["way"].startswith("upstream: onnxruntime-genai")
    record = json.loads((folder / in_openvino).read_bytes())
    assert record["way"] == "upstream: optimum-intel"
    checks = json.loads((folder / served).read_bytes())["checks"]
    assert checks["greedy_equal"] + checks["greedy_ties"] == 24
    assert checks["kv_cache_tokens"] == checks["kv_cache_tokens_planned"] == (1 << 26) // 4096
    assert ran(run("--", f"{target}.verified.json")) == set(), "nothing to do"
    assert "which .torchpipe cannot express; nearest: artifacts/phi" in run(
        "--", "artifacts/phi.torchpipe", fails=True
    )
    assert "no fp16 with way upstream: the builder writes float32" in run(
        "--", "artifacts/phi.fp16.onnx", fails=True
    )
    plan = ingot("plan", "phi", "--gpu-memory", "24", cwd=folder)
    assert plan.returncode == 0 and re.search(r"(?m)^  tp2 +2 GPUs", plan.stdout), plan.stderr
    page = ingot("report", target, "--out", folder / "page.html", cwd=folder)
    assert page.returncode == 0, page.stderr
    assert "convert_gguf" in (folder / "page.html").read_text()


def test_a_model_that_sees_has_a_part_for_images(tiny, ingot, snakemake, store):
    folder = tiny("gemma3").parent
    done = ingot("add", "gemma3", cwd=folder)
    assert done.returncode == 0, done.stderr
    target = "artifacts/gemma3.mmproj.gguf"
    others = [f"artifacts/gemma3.{name}.verified.json" for name in ("q8_0.gguf", "onnx")]
    words = ("--", f"{target}.verified.json", *others)
    done = snakemake(folder, *words, environment={"INGOT_STORE": str(store)})
    assert done.returncode == 0, done.stderr
    for record in others:  # of its part for text, by our own stream
        found = json.loads((folder / record).read_bytes())
        assert found["result"] == "passed" and "way" not in found
    assert f"done     {target}.verified.json" in done.stdout + done.stderr
    record = json.loads((folder / f"{target}.verified.json").read_bytes())
    assert record["result"] == "passed" and record["checks"]["picture_tokens"] == 16


def test_both_ways_give_one_models_numbers(clone, build, store, told):
    """The demo by llama.cpp's converter: its values are those of our own writer's file."""
    told(store)
    folder = clone("a")
    (folder / "mine.yaml").write_text("models: {demo: {way: upstream}}")
    words = ("--configfile", "mine.yaml", "--", "artifacts/demo.f32.gguf.verified.json")
    said = build(folder, *words)
    assert "convert_gguf" in ran(said) and "safetensors_to_gguf" not in ran(said)
    theirs = json.loads((folder / "artifacts/demo.f32.gguf.verified.json").read_bytes())["checks"]
    said = build(folder, "--", "artifacts/demo.f32.gguf.verified.json")
    assert "safetensors_to_gguf" in ran(said)
    ours = json.loads((folder / "artifacts/demo.f32.gguf.verified.json").read_bytes())["checks"]
    for name in ("mean_kl", "same_top", "perplexity", "tokens"):
        assert ours["numbers"][name] == theirs["numbers"][name], name
    assert ours["greedy_equal"] == theirs["greedy_equal"]
