"""An adapter from `ingot add` to records of several formats; its program is the base's."""

import json
import shutil

import yaml

from conftest import ROOT, planned, ran

SETTINGS = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}


def test_an_adapter_is_added_built_and_verified_and_its_program_is_the_bases(
    interpreter, ingot, snakemake, store, tmp_path
):
    shutil.copytree(ROOT / "models/demo", tmp_path / "base")
    double = ROOT / "tests/doubles/adapters.py"
    words = (tmp_path / "base", tmp_path / "trained", json.dumps(SETTINGS))
    done = interpreter("transformers").run(double, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    shutil.rmtree(tmp_path / "trained/merged")
    done = ingot("add", "trained/adapter", "--name", "tuned")
    assert done.returncode == 0, done.stderr
    assert "base, base" in done.stdout and "trained/adapter, merged into base" in done.stdout
    said = yaml.safe_load((tmp_path / "models.local.yaml").read_text())["models"]
    vllm = {"device": "cpu", "dtype": "float32", "kv_cache_bytes": 1 << 26, "max_num_seqs": 4}
    said["base"] |= {"corpus_tokens": 1024, "vllm": {**vllm, "adapters": ["tuned"]}}
    (tmp_path / "models.local.yaml").write_text(yaml.safe_dump({"models": said}))
    assert said["tuned"]["adapter"] == {"base": "base", "lora": "trained/adapter"}

    def run(*words, fails=False):
        done = snakemake(tmp_path, *words, environment={"INGOT_STORE": str(store)})
        assert bool(done.returncode) == fails, done.stderr
        return done.stdout + done.stderr

    run("--", "artifacts/base_tp1.vmfb")
    endings = (".q4_k_m.gguf", ".lora.gguf", "_tp2.trtllm-ckpt")
    records = [f"artifacts/tuned{one}.verified.json" for one in endings]
    records.append("artifacts/base_tp1.vllm-slurm.verified.json")
    started = ran(run("--", *records, "artifacts/tuned_tp1.vmfb"))
    assert not {"compile_vmfb", "export_mlir"} & started, "they are the base's"
    for path in records:
        assert json.loads((tmp_path / path).read_bytes())["result"] == "passed", path
    together = json.loads((tmp_path / records[-1]).read_bytes())["checks"]["in_one_batch"]
    for name in ("base", "tuned"):
        assert together[name]["greedy_equal"] + together[name]["greedy_ties"] == 24, name
    assert ran(run("--", *records)) == set(), "nothing to do"
    assert "an adapter is merged into it, which .vllm-slurm cannot express" in run(
        "--", "artifacts/tuned_tp1.vllm-slurm", fails=True
    )
    config = tmp_path / "trained/adapter/adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 8', '"lora_alpha": 9'))
    rules = {rule for rule, _ in planned(run("-n", "--", "artifacts/tuned.q4_k_m.gguf")).values()}
    assert "quantize_gguf" in rules, "another scale is another model"
