"""`ingot add`: a model of the hub, or a folder, becomes an entry, from which Snakemake builds."""

import json
from pathlib import Path

import pytest
import yaml

import adapters
import checkpoints
from conftest import ROOT
from fake_hub import COMMIT, Hub
from ingot.base.refused import Refused
from ingot.driver.catalogue import found, machine, own_file, schema
from ingot.driver.commands import add

LOCAL = "models.local.yaml"


SHAPES = {  # what is asked for: how it is made, and what its entry says
    "org/Llama-3.1-Tiny": (checkpoints.llama31, {"shards": 2, "tp": [1, 2, 4]}),
    "org/tied": (
        checkpoints.tied,
        {"shards": 3, "license": "apache-2.0",
         "files": ["chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"]},
    ),
    "org/Mistral_Nemo.Tiny": (
        checkpoints.nemo,
        {"shards": 1, "architecture": "MistralForCausalLM", "pre_tokenizer": "tekken"},
    ),
}  # fmt: skip


@pytest.fixture
def hub(tmp_path):
    for name, (make, _) in SHAPES.items():
        make(tmp_path / "hub" / name)
    with Hub(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def added(hub, ingot, tmp_path):
    def run(*words):
        (tmp_path / "w").mkdir(exist_ok=True)
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
        return ingot("add", *words, cwd=tmp_path / "w", environment=environment)

    return run


@pytest.mark.slow
def test_each_shape_is_an_entry_and_builds(hub, added, snakemake, tmp_path):
    for name in SHAPES:
        done = added(name)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert f"{name} at {COMMIT[:12]}" in lines[0] and " million parameters, " in lines[1]
        assert lines[-1].startswith(f"next: snakemake -s {ROOT}/Snakefile -- artifacts/")
        assert len(lines) < 12
        assert any(line.startswith("can be built: gguf") for line in lines)
        missing = ".imatrix: missing, expected a text; name one"
        assert any(line.startswith("cannot: imatrix: ") and missing in line for line in lines)
    models = yaml.safe_load((tmp_path / "w" / LOCAL).read_text())["models"]
    assert list(models) == ["llama-3-1-tiny", "tied", "mistral-nemo-tiny"]
    for (name, (_, wanted)), entry in zip(SHAPES.items(), models.values(), strict=True):
        assert entry | wanted == entry and entry["hub"] == name and entry["revision"] == COMMIT
    assert models["llama-3-1-tiny"]["name"] == "Llama 3.1 Tiny"
    assert "files" not in models["llama-3-1-tiny"]
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
    targets = [f"artifacts/{name}.gguf" for name in models]
    done = snakemake(tmp_path / "w", *targets, environment=environment)
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / "w" / target).exists() for target in targets)


@pytest.mark.slow
def test_what_cannot_be_taken_is_refused_before_anything_is_written(hub, added, tmp_path):
    folder = hub.root / "org"
    checkpoints.llama31(folder / "qwen", architectures=["NobodysForCausalLM"])
    checkpoints.llama31(folder / "textual")
    (folder / "textual/tokenizer.json").write_text('{"model": "x"}')
    checkpoints.llama31(folder / "odd")
    (folder / "odd/model-00001-of-00002.safetensors").rename(folder / "odd/weights-1.safetensors")
    (folder / "pickled").mkdir()
    (folder / "pickled/pytorch_model.bin").write_bytes(b"x")
    for name, file in (("gguf", "m.gguf"), ("adapter", "adapter_config.json"),
                       ("adapter", "adapter_model.safetensors")):  # fmt: skip
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).write_bytes(b"x")
    (tmp_path / "w/models").mkdir(parents=True)
    for words, said in (
        (["org/qwen"], "org/qwen/config.json: architectures is NobodysForCausalLM, expected Llama"),
        (["org/textual"], "tokenizer.json: model is 'x', expected an object"),
        (["org/odd"], "no model-00001-of-00002.safetensors among its files"),
        (["org/pickled"], "no *.safetensors among its files; pickled weights can run code"),
        ([str(folder / "pickled")], "weights as pickles"),
        (["org/gguf"], "GGUF files, converted already"),
        (["org/adapter"], "org/adapter/adapter_config.json: not JSON"),
        (["./typo/folder"], "no such folder"),
        (["models/typo"], "no such folder"),
        ([str(folder / "gguf/m.gguf")], "a GGUF file: converted already"),
        (["org/none"], "no such model, or a private one"),
        (["org/tied", "--revision", "f" * 40], "no such revision"),
        (["no model"], "not a model of the hub"),
        (["org/tied", "--name", "demo"], "demo: in the catalogue already"),
        (["org/tied", "--name", "A b"], "expected a name of lower-case letters, digits and -"),
        ([str(tmp_path)], "no config.json among its files"),
    ):
        done = added(*words)
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 1 and said in lines[-1], (words, done.stderr)
        assert lines[-1].startswith("error: ") and "Traceback" not in done.stderr
        assert not (tmp_path / "w" / LOCAL).exists()


def test_weights_that_are_quantised_already_are_for_vllm_alone(hub, added, snakemake, tmp_path):
    said = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    folder = checkpoints.llama31(hub.root / "org/small-fp8", quantization_config=said)
    (folder / "README.md").write_text("---\nlicense: mit\nbase_model:\n  - org/small\n---\n")
    done = added("org/small-fp8")
    assert done.returncode == 0 and "for all else `ingot add` org/small" in done.stderr, done.stderr
    assert done.stdout.endswith(" -- artifacts/small-fp8_tp1.vllm-slurm\n"), "what can be built"
    place = tmp_path / "w"
    assert (
        yaml.safe_load((place / LOCAL).read_text())["models"]["small-fp8"]["original"]
        == "org/small"
    )
    for target in ("small-fp8.gguf", "small-fp8.fp8.safetensors", "small-fp8_tp1.fp8.vllm-slurm"):
        done = snakemake(place, "-n", "--", f"artifacts/{target}")
        line = done.stderr.strip().splitlines()[-1]
        assert (
            done.returncode == 1 and "quantised already" in line and "`ingot add` org/small" in line
        )
    done = snakemake(place, "-n", "--", "artifacts/small-fp8_tp1.vllm-slurm")
    assert done.returncode == 0, done.stderr


def test_weights_that_were_trained_so_are_an_original(tmp_path):
    path = tmp_path / "config.json"
    for method, by in (("fp8", None), ("mxfp4", None), ("gptq", "gptq"), (None, "no word of what")):
        path.write_text(json.dumps({"quantization_config": {"quant_method": method, "bits": 4}}))
        assert found.quantised_by(path) == by
    path.write_text(json.dumps({"quantization_config": None}))
    assert found.quantised_by(path) is None


@pytest.mark.slow
def test_what_our_tables_cannot_say_is_taken_and_left_to_upstream_tools(hub, added, tmp_path):
    folder = hub.root / "org"
    checkpoints.llama31(folder / "gelu", hidden_act="gelu")
    checkpoints.llama31(folder / "split")
    text = json.loads((folder / "split/tokenizer.json").read_bytes())
    text["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "split/tokenizer.json").write_text(json.dumps(text))
    (tmp_path / "w").mkdir(exist_ok=True)
    for name, said in (
        ("gelu", "hidden_act is gelu, expected silu; it would be left out"),
        (
            "split",
            'splits texts as pre_tokenizer {"type": "Whitespace"}, expected llama-bpe, tekken',
        ),
    ):
        done = added(f"org/{name}")
        assert done.returncode == 0 and said in done.stderr, done.stderr
        assert "; so upstream tools write its files" in done.stderr
        entry = yaml.safe_load((tmp_path / "w" / LOCAL).read_text())["models"][name]
        assert entry["way"] == "upstream"


@pytest.mark.slow
def test_an_adapter_of_the_hub_finds_its_base_and_builds(hub, added, snakemake, tmp_path):
    base = "org/Llama-3.1-Tiny"
    folder = hub.root / "org/tuned"
    adapters.saved(folder, adapters.pair(hub.root / base), base_model_name_or_path=base)
    checkpoints.tokenizer_of_demo(folder)
    done = added("org/tuned")
    assert done.returncode == 0, done.stderr
    assert f"org/tuned at {COMMIT[:12]}, merged into llama-3-1-tiny" in done.stdout
    models = yaml.safe_load((tmp_path / "w" / LOCAL).read_text())["models"]
    assert models["llama-3-1-tiny"]["revision"] == models["tuned"]["adapter"]["revision"] == COMMIT
    assert "tokenizer.json" in models["tuned"]["adapter"]["files"]
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
    target = "artifacts/tuned.gguf"
    done = snakemake(tmp_path / "w", target, environment=environment)
    assert done.returncode == 0, done.stderr
    here = {
        str(one.relative_to(tmp_path / "w")) for one in (tmp_path / "w/artifacts").glob("*.hf/*")
    }
    assert (
        "artifacts/tuned.hf/tokenizer.json" in here
        and "artifacts/llama-3-1-tiny.hf/config.json" in here
    )
    assert "artifacts/llama-3-1-tiny.hf/tokenizer.json" not in here, "it brings its own"
    assert "artifacts/tuned.hf/config.json" not in here, "nothing is fetched twice"


@pytest.mark.slow
@pytest.mark.parametrize(
    "address", ["hf://org/tied", f"https://huggingface.co/org/tied/tree/{COMMIT}?x=1"]
)
def test_an_address_is_taken_as_it_is_pasted(hub, added, tmp_path, address):
    done = added(address)
    assert done.returncode == 0, done.stderr
    entry = yaml.safe_load((tmp_path / "w" / LOCAL).read_text())["models"]["tied"]
    assert (entry["hub"], entry["revision"]) == ("org/tied", COMMIT), "a branch is pinned, too"


def test_a_gated_model_says_what_to_accept(hub, added):
    hub.faults["gated"] = 401
    done = added("org/tied")
    assert done.returncode == 1 and "accept the license" in done.stderr, done.stderr


def test_a_folder_is_named_by_its_place_and_the_file_keeps_what_it_had(
    ingot, tmp_path, monkeypatch
):
    checkpoints.llama31(tmp_path / "mine")
    (tmp_path / LOCAL).write_text("# my own\nmodels:\n  demo: {tp: [1]}  # kept")
    done = ingot("add", "mine", "--name", "first")
    assert done.returncode == 0, done.stderr
    done = ingot("add", str(tmp_path / "mine"), "--name", "second")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / LOCAL).read_text()
    assert text.startswith("# my own\nmodels:\n  demo: {tp: [1]}  # kept\n  first:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schema, "LOCAL", LOCAL)
    models = schema.load(ROOT)["models"]
    assert models["first"]["path"] == models["second"]["path"] == "mine"
    assert models["demo"]["tp"] == [1] and models["demo"]["name"] == "Ingot Demo"
    here = "gfx942" if machine.has_gpu() else "cpu"
    assert models["first"]["hardware"] == here and f"of its programs: {here}, or" in done.stdout
    assert "first: in the catalogue already" in ingot("add", "mine", "--name", "first").stderr
    (tmp_path / LOCAL).write_text("models: {}\nkeep: all\n")
    done = ingot("add", "mine", "--name", "third")
    assert done.returncode == 1 and "its last part is not `models:`" in done.stderr


def test_an_entry_of_ones_own_is_written_again_where_it_stands(ingot, tmp_path):
    checkpoints.llama31(tmp_path / "mine")
    path = tmp_path / LOCAL
    path.write_text("models:\n  demo: {tp: [1]}\n")
    assert ingot("add", "mine", "--name", "ft").returncode == 0
    first, beside = path.read_text(), "\n  # beside it\n  llama8b: {tp: [1]}  # kept\n"
    settings = "    corpus_tokens: 4096\n    limits: {q4_k_m: {mean_kl: 1.0e-05}}\n"
    path.write_text(f"{first}{settings}{beside}".replace('name: "mine"', 'name: "Mine"'))
    (tmp_path / "moved").mkdir()
    (tmp_path / "mine").rename(tmp_path / "moved/mine")
    words = ("add", "moved/mine", "--name", "ft")
    done = ingot(*words)
    assert done.returncode == 1 and "ft: in the catalogue already" in done.stderr
    assert "another --name" in done.stderr and "--again writes" in done.stderr
    done = ingot(*words, "--again")
    assert done.returncode == 0 and f"{path}: ft, moved/mine" in done.stdout, done.stderr
    again = first.replace('"mine"', '"moved/mine"', 1).replace('name: "mine"', 'name: "Mine"')
    assert path.read_text() == again + settings + beside
    assert "as the entry had them: corpus_tokens, limits, name" in done.stdout
    done = ingot("add", "moved/mine", "--name", "llama405b", "--again")
    assert done.returncode == 1 and "in models.yaml, which --again leaves alone" in done.stderr
    done = ingot(
        "add", "moved/mine", "--name", "llama8b", "--again"
    )  # whose tp alone is the user's
    assert done.returncode == 1 and "in models.yaml, which --again leaves alone" in done.stderr
    path.write_text(f"models: {{ft: {{path: {tmp_path}/mine, tp: [1]}}}}\n")
    done = ingot(*words, "--again")
    assert done.returncode == 1, done.stdout


def test_a_license_is_the_cards_own_name(tmp_path):
    for text, wanted in (
        ("---\nlicense: llama3.2\n---\n", "llama3.2"),
        ("---\nlicense: other\nlicense_name: llama3\n---\n", "llama3"),
        ("license: mit\n", None),
        ("---\ntags: [a]\n---\nlicense: mit", None),
    ):
        (tmp_path / "README.md").write_text(text)
        assert found.license_of(tmp_path) == wanted
    with pytest.raises(Refused, match=r"no tokenizer\.json or tokenizer\.model"):
        found.pre_tokenizer("m", {"config.json"}, Path(tmp_path))
    assert found.pre_tokenizer("m", {"tokenizer.model"}, Path(tmp_path)) == "default"
    assert (
        own_file.yaml_of("m", {"tp": [1], "dimensions": {"a": 1}}).splitlines()[2]
        == "    dimensions: {a: 1}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "change, said",
    [
        ({"num_hidden_layers": 4}, "is in no shard, expected by config.json"),
        ({"num_hidden_layers": 2}, "9 tensors have no place by config.json, first model.layers.2."),
        ({"vocab_size": 1120}, "embed_tokens.weight has shape [1056, 256], expected [1120, 256]"),
        ({"intermediate_size": 768}, "proj.weight has shape [384, 256], expected [768, 256]"),
        ({"num_key_value_heads": 1}, "k_proj.weight has shape [128, 256], expected [32, 256]"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_weights_that_are_not_those_of_config_json_are_refused_before_anything_is_written(
    ingot, tmp_path, change, said
):
    path = checkpoints.llama31(tmp_path / "wrong") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    done = ingot("add", path.parent)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1) and said in done.stderr, (
        done.stderr
    )
    assert not (tmp_path / LOCAL).exists()


@pytest.mark.slow
def test_an_adapter_that_does_not_fit_its_base_is_refused_before_anything_is_written(
    ingot, tmp_path
):
    base, other = checkpoints.llama31(tmp_path / "tiny"), checkpoints.llama31(tmp_path / "other")
    assert ingot("add", other).returncode == 0
    before = (tmp_path / LOCAL).read_text()
    whole, more = adapters.pair(base), "base_model.model.model.layers.7.self_attn.q_proj.lora_"
    wide = {name: values.repeat(2, 0) if "_B" in name else values for name, values in whole.items()}
    elsewhere = {f"{more}{name.partition('.lora_')[2]}": values for name, values in whole.items()}
    for tensors, settings, said in (
        (wide, {}, "q_proj.weight of shape [512, 256], but its base has [256, 256]"),
        (
            elsewhere,
            {},
            "adapts model.layers.7.self_attn.q_proj.weight, which its base does not have",
        ),
        (
            whole,
            {"target_modules": ["q_proj"]},
            "no matrices for model.layers.1.self_attn.q_proj, and for 1 more, expected",
        ),
        (
            whole,
            {"target_modules": ["k_proj"]},
            "leaves out model.layers.0.self_attn.q_proj, of which",
        ),
    ):
        folder = adapters.saved(
            tmp_path / "lora", tensors, base_model_name_or_path=str(base), **settings
        )
        for words in ([], ["--base", "other"]):
            done = ingot("add", folder, *words)
            assert done.returncode == 1 and said in done.stderr, done.stderr
            assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / LOCAL).read_text() == before


@pytest.mark.slow
def test_an_adapters_base_is_the_one_that_it_names_or_that_is_asked_for(ingot, tmp_path):
    base = checkpoints.llama31(tmp_path / "tiny")

    def adapter(name, base_of, **more):
        adapters.saved(
            tmp_path / name, adapters.pair(base), base_model_name_or_path=base_of, **more
        )
        return tmp_path / name

    done = ingot("add", adapter("out/tiny", str(base)))  # named as its base is
    assert done.returncode == 0, done.stderr
    said = yaml.safe_load((tmp_path / LOCAL).read_text())["models"]
    assert said["tiny"]["adapter"] == {"base": "tiny-base", "lora": "out/tiny"}
    checkpoints.write_json(
        adapter("axolotls", str(base)) / "config.json", {}
    )  # its base's, beside it
    assert ingot("add", "axolotls").returncode == 0
    again = tmp_path / "again"
    for words, refusal in (
        ([adapter("elsewhere", "/workspace/models/Foo")], "its base is /workspace/models/Foo: "),
        (
            [adapter("second", str(tmp_path / "axolotls"))],
            "another adapter; name one of the catalogue",
        ),
        ([adapter("again", str(again))], "another adapter; name one of the catalogue by --base"),
        ([again, "--base", "axolotls"], "--base: axolotls, expected a model of the catalogue"),
        ([adapter("nameless", None)], "names no base, expected one; give it --base NAME"),
    ):
        done = ingot("add", *words)
        assert done.returncode == 1 and refusal in done.stderr, (words, done.stderr)
    assert ingot("add", "elsewhere", "--base", "tiny-base").returncode == 0
    (tmp_path / "axolotls/model.safetensors").touch()
    assert (
        "an adapter and a model's weights in one place"
        in ingot("add", "axolotls", "--name", "x").stderr
    )


def test_a_base_at_another_revision_is_another_base(monkeypatch):
    entry = {"hub": "org/base", "revision": "1" * 40}
    monkeypatch.setattr(schema, "load", lambda root, own: {"models": {"pinned": entry}})
    assert (
        add.named_so(ROOT, "org/base", "") == add.named_so(ROOT, "org/base", "1" * 40) == "pinned"
    )
    assert add.named_so(ROOT, "org/base", "2" * 40) is None
