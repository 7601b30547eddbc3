"""What fits a device: names of devices, what is offered on them, in which order, and what is refused."""

import json

import pytest

import place
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import devices, schema
from ingot.driver.commands import cli, fit_forms
from ingot.driver.commands import fit as command
from ingot.driver.commands.fit_forms import Form
from ingot.parity import limits
from ingot.serving.vllm.room import room

GIB = 1 << 30


@pytest.fixture(scope="module")
def catalogue():
    return schema.load(ROOT, local={})


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """fit("demo", "--on", "cpu-8gb") is its answer; nothing is fetched, and no record is here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("INGOT_STORE", str(tmp_path / "store"))

    def run(*words, status=0):
        assert cli.main(["fit", *map(str, words)]) == status
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "word, count, memory",
    [("rtx4090", 1, 24), ("8xh100", 8, 79.6), ("cpu-32gb", 1, 32), ("m4-max-64gb", 1, 64),
     ("2xrtx3090", 2, 24), ("h100-94gb", 1, 94)],
)  # fmt: skip
def test_a_device_is_named_as_people_say_it(word, count, memory, catalogue):
    found = devices.named(word, catalogue)
    assert (found.count, found.memory) == (count, int(memory * GIB))


@pytest.mark.parametrize(
    "word, said",
    [("rtx4009", "rtx4009: unknown device, expected one of the catalogue's `devices`, or this; nearest"),
     ("m4-max", "m4-max: its memory is not said, expected such as m4-max-64gb"),
     ("0xh100", "0xh100: unknown device"), ("RTX 4090", "RTX 4090: unknown device"),
     ("cpu-0gb", "cpu-0gb: unknown device")],
)  # fmt: skip
def test_a_device_that_nobody_knows_gets_one_line(word, said, catalogue):
    with pytest.raises(Refused) as reason:
        devices.named(word, catalogue)
    assert str(reason.value).startswith(said) and "\n" not in str(reason.value)


def test_this_machine_is_its_gpus_or_else_its_memory(catalogue, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = devices.this(catalogue)
    assert (found.kind, found.memory > GIB / 4) == ("cpu", True)
    assert 1e8 < found.bandwidth < 1e13, "measured"
    one = place.GPU.replace("Stand-in 80GB", "H100 80GB HBM3")
    two = f"{one}\n{one.replace('0aaa', '1bbb')}"
    monkeypatch.setenv("PATH", str(place.toolchain(tmp_path / "gpu", gpus=two)))
    found = devices.this(catalogue)
    assert (found.kind, found.count, found.capability) == ("cuda", 2, "9.0")
    assert found.memory == 81559 << 20
    assert found.bandwidth == catalogue["devices"]["h100"]["bandwidth"] * 1e9
    shared = place.GPU.replace("81559", "[N/A]")  # as a GPU says that shares the machine's memory
    monkeypatch.setenv("PATH", str(place.toolchain(tmp_path / "shared", gpus=shared)))
    assert devices.this(catalogue).kind == "cpu"


@pytest.mark.parametrize(
    "name, said",
    [("NVIDIA GeForce RTX 4090", "rtx4090"), ("NVIDIA H100 80GB HBM3", "h100"), ("Tesla T4", "t4"),
     ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
     ("NVIDIA H200", "h200"), ("NVIDIA L40S", "l40s"), ("NVIDIA H100 PCIe", None),
     ("NVIDIA A100-SXM4-40GB", None), ("NVIDIA GeForce RTX 4090 Laptop GPU", None), ("NVIDIA A10G", None)],
)  # fmt: skip
def test_a_gpu_of_this_machine_has_the_bandwidth_of_its_kind_alone(name, said, catalogue):
    known = {one: one for one in catalogue["devices"]}
    assert known.get(devices.short(name)) == said


def test_every_device_of_the_catalogue_can_be_named(catalogue):
    for name, one in catalogue["devices"].items():
        found = devices.named(name if "memory" in one else f"{name}-16gb", catalogue)
        assert found.usable < found.memory
        assert found.kind != "cuda" or found.capability, name
        assert not found.hardware or found.hardware in catalogue["hardware"], name


def test_forms_that_fit_come_by_what_they_lose_and_the_others_with_their_reason(fit):
    said = fit("llama8b", "--on", "rtx4090")
    fitting, _, tight = said.partition("does not fit")
    order = [line.split()[0] for line in fitting.splitlines() if " GiB " in line and line[0] != "r"]
    assert order[0] == "artifacts/llama8b.gguf" and "meta-llama/Llama-3.1-8B" in order
    least = ("q8_0.gguf", "w8a8.safetensors", "q6_k.gguf", "fp8.safetensors", "q4_k_m.gguf")
    places = [order.index(f"artifacts/llama8b.{name}") for name in least]
    assert places == sorted(places) and not tight
    assert "llama-server -m artifacts/llama8b.gguf -c 8192 -np 1 -ngl 99" in said
    said = fit("llama70b", "--on", "rtx4090", status=1)
    assert "nearest to the model" not in said
    assert "meta-llama/Llama-3.1-70B  needs " in said and " -ngl " in said
    (line,) = (line for line in said.splitlines() if "none of " in line)
    assert (
        line.startswith("none of ")
        and " forms fits rtx4090: artifacts/llama70b.q3_k_m.gguf needs" in line
    )


def test_of_forms_that_lose_the_same_one_with_a_command_comes_first_then_the_faster(fit):
    def form(target, speed=0.0, **more):
        return Form(target, "b", 1, 1, 2, 0, speed, serve=more.pop("serve", "run"), **more)

    wanted = [
        form("a", 9, kl=0.0), form("b", 5, kl=0.0), form("c", 20, kl=0.0, serve="# in a program"),
        form("d", 30, kl=0.1), form("e", 1), form("f", 1),
    ]  # fmt: skip
    assert sorted(reversed(wanted), key=command.nearness) == wanted
    said = fit("llama8b", "--on", "cpu-64gb")
    assert "nearest to the model: artifacts/llama8b.gguf\n    llama-server " in said


def test_what_a_device_has_no_kernel_for_is_not_offered(fit):
    said = fit("llama8b", "--on", "cpu-64gb").partition("does not fit")
    assert "fp8_block" not in said[0] and "no kernel for fp8_block on CPUs" in said[2]
    assert "w8a8 on GPUs of compute capability 12.0" in fit("llama8b", "--on", "rtx5090")
    said = fit("llama8b", "--on", "m4-max-64gb")
    assert "artifacts/llama8b.4bit.mlx" in said and "vLLM" not in said
    said = fit("llama8b", "--on", "8xmi300x")
    assert "artifacts/llama8b_tp8.shortfin" in said and "tp4.shortfin" not in said


def test_onnx_runtime_holds_attention_that_grows_with_the_square_of_a_prompt(fit):
    """On CPUs alone; no command serves it, so that `ingot cast` proposes it where it is asked for."""
    needs = []
    for context in (8192, 16384):
        words = (
            "artifacts/llama8b.int8.onnx",
            "--on",
            "cpu-1024gb",
            "--context",
            context,
            "--json",
        )
        (form,) = json.loads(fit(*words))["forms"]
        needs.append(form["needs"])
        assert form["server"] == "ONNX Runtime" and form["serve"].startswith("# ")
    scores = [4 * 32 * context**2 for context in (8192, 16384)]
    assert needs[1] - needs[0] > scores[1] - scores[0] > 0.8 * (needs[1] - needs[0])
    assert ".onnx" not in fit("llama8b", "--on", "rtx4090")


def test_an_artifact_is_placed_on_each_device(fit):
    said = fit("artifacts/llama70b.q4_k_m.gguf").splitlines()
    verdicts = {line.split()[0]: "does not fit" in line for line in said if " GiB" in line}
    assert verdicts["rtx4090"] and not verdicts["h100"] and not verdicts["mi300x"]
    assert len(verdicts) > 10 and verdicts == dict(
        sorted(verdicts.items(), key=lambda one: -one[1])
    )


def test_an_adapter_has_no_checkpoint_of_its_own(catalogue):
    model = fit_forms.Model("demo", catalogue, ROOT)
    assert fit_forms.CHECKPOINT in fit_forms.offered(model)
    model.entry = {**model.entry, "adapter": {"base": "demo", "lora": "anywhere"}}
    assert fit_forms.CHECKPOINT not in fit_forms.offered(model)


def test_json_has_bytes_and_what_was_asked(fit):
    found = json.loads(fit("demo", "--on", "cpu-8gb", "--context", 256, "--requests", 3, "--json"))
    assert (found["context"], found["requests"]) == (256, 3)
    (mine,) = (one for one in found["forms"] if one["target"] == "artifacts/demo.q8_0.gguf")
    assert mine["fits"] and mine["weights"] < mine["needs"] < mine["has"] and mine["longest"] == 512


def test_an_int8_that_multiplies_in_int8_is_expected_to_lose_more(fit, tmp_path):
    (tmp_path / "mine.yaml").write_text("models: {demo: {onnx: {int8: dynamic}}}")
    words = ("demo", "--on", "cpu-8gb", "--configfile", tmp_path / "mine.yaml")
    (row,) = (line for line in fit(*words).splitlines() if "demo.int8.onnx" in line)
    assert row.endswith("~0.0052")


def test_a_record_of_this_model_is_believed_before_the_demos(fit, tmp_path):
    assert f"~{limits.EXPECTED['q4_k_m']:.2g}" in fit("demo", "--on", "cpu-8gb")
    (tmp_path / "artifacts").mkdir()
    numbers = dict.fromkeys(
        ("median_kl", "kl_99", "kl_99_9", "largest_kl", "same_top", "rms_dp", "perplexity",
         "perplexity_reference", "tokens"), 1
    ) | {"mean_kl": 0.77}  # fmt: skip
    record = tmp_path / "artifacts/demo.q4_k_m.gguf.verified.json"
    record.write_text(json.dumps({"checks": {"numbers": numbers}}))
    said = fit("demo", "--on", "cpu-8gb").splitlines()
    (mine,) = (line for line in said if line.startswith("artifacts/demo.q4_k_m.gguf "))
    assert mine.split()[-1] == "0.77"


@pytest.mark.parametrize(
    "words, said",
    [("nobody", "error: nobody: unknown model, expected one of the catalogue; `ingot add` it first"),
     ("artifacts/demo.pickle", "error: artifacts/demo.pickle: not a target"),
     ("demo --context 4096", "error: --context: 4096, expected at most 512, the model's own"),
     ("demo --requests 0", "error: --requests: 0, expected 1 or more"),
     ("artifacts/demo.openvino --on cpu-8gb", "error: artifacts/demo.openvino: no server that")],
)  # fmt: skip
def test_what_cannot_be_asked_gets_one_line(words, said, fit):
    with pytest.raises(SystemExit) as end:
        fit(*words.split())
    assert str(end.value).startswith(said) and "\n" not in str(end.value)


def test_more_tokens_or_requests_never_need_less(catalogue):
    model = fit_forms.Model("llama8b", catalogue, ROOT)
    shape = fit_forms.shape_of(model.config, model.checkpoint_bytes())
    device = devices.named("rtx4090", catalogue)

    def needs(context, requests):
        asked = fit_forms.Asked(context, requests)
        found = fit_forms.forms(model, shape, device, asked, fit_forms.offered(model))
        return {form.target: form.needs for form in found if not form.why_not}

    little = needs(1024, 1)
    for more in (needs(2048, 1), needs(1024, 2)):
        assert all(more[target] > little[target] for target in little)


def test_the_longest_request_just_fits(catalogue):
    model = fit_forms.Model("llama8b", catalogue, ROOT)
    shape = fit_forms.shape_of(model.config, model.checkpoint_bytes())
    offered = fit_forms.offered(model)
    for word in ("rtx3060", "m4-16gb", "cpu-16gb", "h100"):
        device = devices.named(word, catalogue)
        for form in fit_forms.forms(model, shape, device, fit_forms.Asked(4096, 2), offered):
            if not 0 < form.longest < model.config.context:
                continue

            def again(context, form=form, device=device):
                asked = fit_forms.Asked(context, 2)
                return next(fit_forms.forms(model, shape, device, asked, [form.target]))

            assert again(form.longest).fits and not again(form.longest + 512).fits, form


def test_vllms_room_is_what_its_bundles_are_planned_by(catalogue):
    from ingot.serving.vllm import plan

    model = fit_forms.Model("llama405b", catalogue, ROOT)
    found = room(model.config, 8, 80 * GIB, 8192, 1, "fp8")
    settings = {"arguments": [], "memory": 80, "pp": 1, "max_model_len": 8192}
    planned = plan.planned(model.config, settings, 8, "bfloat16", "x", scheme="fp8")
    assert (found.weights, found.cache) == (planned.weights, planned.kv_needed)
    assert found.longest == min(planned.cache.longest(planned.kv_bytes), model.config.context)


def test_on_cpus_weights_are_held_twice_and_requested_so(catalogue):
    """2.36 and 3.58 GiB of weights with 1 GiB of cache took 7.1 and 9.2 GiB; a model of none 2.4."""
    from ingot.serving.vllm import plan

    model = fit_forms.Model("llama8b", catalogue, ROOT)
    one = room(model.config, 1, 80 * GIB, 8192, 1)
    here = room(model.config, 1, 80 * GIB, 8192, 1, cpu=True)
    assert here.weights == 2 * one.weights and here.rest < one.rest
    settings = {"arguments": [], "memory": 0, "max_model_len": 8192}
    planned = plan.planned(model.config, settings, 1, "bfloat16", "x")
    asked = int(str(plan.asked(planned, 16 * 10**9, 100)["mem"]).removesuffix("G"))
    assert asked >= (here.weights + planned.kv_bytes + here.rest) / 1e9


def test_a_form_fits_where_what_it_needs_is_there():
    assert Form("a", "b", 1, 2, 2, 0).fits and not Form("a", "b", 1, 3, 2, 0).fits
    assert not Form("a", "b", 1, 1, 2, 0, why_not="no kernel").fits


def test_what_does_not_fit_says_what_would():
    short = Form("a", "vLLM", 1, 3 * GIB, 2 * GIB, 512)
    assert command.reason(short) == "needs 3.00 GiB, may fill 2.00; 512 tokens fit"
    some = Form("a", "llama.cpp", 1, 3 * GIB, 2 * GIB, 0, serve="llama-server -m a -ngl 7")
    assert command.reason(some).endswith("some layers on the CPU: llama-server -m a -ngl 7")
    assert command.reason(Form("a", "b", 1, 1, 2, 0, why_not="no kernel")) == "no kernel"


def test_a_divergence_is_measured_or_expected_or_unknown():
    form = Form("a", "b", 1, 1, 2, 0, kl=0.0162)
    assert command.shown(form) == "~0.016"
    assert command.shown(Form("a", "b", 1, 1, 2, 0, kl=0.0162, measured=True)) == "0.016"
    assert command.shown(Form("a", "b", 1, 1, 2, 0)) == "?"
    assert command.shown(Form("a", "b", 1, 1, 2, 0, kl=0.0)) == "0"
