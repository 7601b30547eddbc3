"""What runs beside Snakemake, without it: commands, rules' Python, the environment of steps, toolchains."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import checkpoints
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.cache import drop, key
from ingot.driver.cache.contents import Contents
from ingot.driver.cache.decide import Decision
from ingot.driver.cache.remote import cache
from ingot.driver.catalogue import machine, schema
from ingot.driver.catalogue import targets as legal_targets
from ingot.driver.catalogue.formats import rows
from ingot.driver.catalogue.formats.rows import ROWS, STEPS
from ingot.driver.catalogue.formats.table import CHART
from ingot.driver.catalogue.job import Graph, Input, Job, Output
from ingot.driver.catalogue.model import Model
from ingot.driver.catalogue.rules import environment
from ingot.driver.catalogue.rules.engines import Engines
from ingot.driver.catalogue.rules.inputs import Inputs
from ingot.driver.catalogue.rules.programs import Programs
from ingot.driver.catalogue.schema import load
from ingot.driver.commands import (  # fmt: skip
    ask,
    at_hub,
    cast,
    cli,
    demo,
    explain,
    fit_forms,
    lock,
    plan,
    plan_table,
    report_model,
    snakemake,
    stopped,
    store,
    targets,
    toolchain,
)
from ingot.driver.forecast.costs import Costs
from ingot.driver.forecast.past import Past
from ingot.driver.release.pages import plots
from ingot.driver.snakemake import report
from ingot.driver.toolchains import bootstrap, indexes, toolchains


class Wildcards(SimpleNamespace):
    """Snakemake's, of which rules ask attributes and .get."""

    def get(self, name, default=None):
        return vars(self).get(name, default)


@pytest.fixture(scope="module")
def catalogue():
    return load(ROOT)


@pytest.fixture
def inputs(catalogue):
    return Inputs(catalogue, ROOT)


def test_a_completed_catalogue_is_one_that_can_be_given(inputs, tmp_path, monkeypatch):
    """Publishing by a target's name gives the run's own to `ingot publish`."""
    monkeypatch.chdir(tmp_path)
    again = load(ROOT, inputs.catalogue_file(None))
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(inputs.catalogue))


# Commands


def test_the_demos_table_names_what_is_built():
    jobs = explain.dry_run(ROOT, [demo.BUNDLE, *demo.TARGETS], INGOT_STORE=os.devnull + "/none")
    assert {f"artifacts/{name}" for name in demo.SHOWN} <= {
        path for job in jobs for path in job["outputs"]
    }


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_says_what_each_option_does(name, capsys):
    module = importlib.import_module(f"ingot.driver.commands.{name}")
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "--help"])
    said = capsys.readouterr().out
    assert stop.value.code == 0 and module.__doc__.strip().splitlines()[0] in said
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert f"\n    {name}" in capsys.readouterr().out


def test_every_module_of_commands_is_one_or_serves_one():
    parts = {
        module.__name__
        for module in (at_hub, fit_forms, report_model, plan_table, cli, snakemake, stopped)
    }
    commands = {f"ingot.driver.commands.{name}" for name in cli.COMMANDS}
    found = {
        f"ingot.driver.commands.{path.stem}" for path in Path(cli.__file__).parent.glob("[a-z]*.py")
    }
    assert found == commands | parts
    named = (ask, explain, lock, plan, store, targets, toolchain)
    assert {module.__name__ for module in named} <= commands


def test_without_a_shared_cache_nothing_is_imported_that_speaks_to_one(monkeypatch):
    monkeypatch.delenv("INGOT_REMOTE", raising=False)
    monkeypatch.delitem(sys.modules, "ingot.driver.cache.remote.remote", raising=False)
    assert (
        cache.shared(None, True) is None and "ingot.driver.cache.remote.remote" not in sys.modules
    )


def test_help_and_one_command_import_no_other():
    said = "import sys; from ingot.driver.commands import cli; {}; print(*sys.modules)"
    for what, own in (("cli.parser('')", set()), ("cli.parser('targets')", {"targets"})):
        command = [sys.executable, "-c", said.format(what)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        names = {name.rpartition(".")[2] for name in done.stdout.split() if ".commands." in name}
        assert names & {*cli.COMMANDS} == own


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("build", "snakemake TARGET` builds"), ("plam", "nearest: ingot plan"),
        ("gc", "nearest: ingot store gc"), ("fsck", "nearest: ingot store fsck"),
    ],
)  # fmt: skip
def test_a_word_that_is_no_command_says_what_is(word, hint):
    with pytest.raises(SystemExit) as stop:
        cli.main([word, "artifacts/demo.gguf"])
    assert str(stop.value).startswith(f"error: ingot {word}: no such command") and hint in str(
        stop.value
    )


def test_only_what_is_published_is_verified_and_of_a_file_it_is_said_what_shows_it(tmp_path):
    path = tmp_path / "m.gguf"
    path.touch()
    with pytest.raises(SystemExit, match=f"a file here, .*oci://.*`ingot show {path}`"):
        cli.main(["verify", str(path)])
    with pytest.raises(SystemExit, match=r"m\.gguf: no reference, expected oci:"):
        cli.main(["verify", "m.gguf"])


BASE = {"path": "x", "name": "X", "architecture": "LlamaForCausalLM", "pre_tokenizer": "default"}


def test_an_adapter_whose_base_is_gone_refuses_its_own_targets_and_no_other():
    models = {"mine": BASE, "tuned": {"adapter": {"base": "mime", "lora": "y"}}}
    models |= {"on-it": {"adapter": {"base": "tuned", "lora": "y"}}}
    found = load(ROOT, local={"models": models})
    schema.complete(found, ROOT)  # once more, as where config.json was fetched meanwhile
    assert not legal_targets.why_not("artifacts/mine.gguf", found)
    for name, said in (
        (
            "tuned",
            "mime is no model, expected one of the catalogue's that is a checkpoint, such as mine",
        ),
        ("on-it", "tuned is a model with an adapter itself, expected one of the catalogue's"),
    ):
        said = rf"models.{name}.adapter.base: {said}.*; name its base there, or `ingot add` that$"
        for target in (
            name,
            f"artifacts/{name}.gguf",
            f"artifacts/{name}.q4_k_m.gguf.verified.json",
        ):
            with pytest.raises(Refused, match=said):
                legal_targets.check(target, found)
    assert "tuned" not in found["models"], "what goes through all models does not meet it"


def test_a_misspelt_adapter_is_said_with_the_nearest_of_that_base():
    tuned = {"adapter": {"base": "mine", "lora": "y"}}
    mine = {**BASE, "vllm": {"adapters": ["lora-okk"], "device": "cpu"}}
    found = load(ROOT, local={"models": {"mine": mine, "lora-ok": tuned}})
    said = r"adapters: lora-okk, expected adapters of mine, such as lora-ok; name one, or `ingot add` it$"
    with pytest.raises(Refused, match=said):
        legal_targets.check("artifacts/mine_tp1.vllm-slurm", found)


def test_targets_of_a_catalogue_of_ones_own(tmp_path, capsys):
    entry = {
        "path": "x",
        "name": "X",
        "architecture": "LlamaForCausalLM",
        "pre_tokenizer": "default",
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"models": {"mine": entry}}))
    assert cli.main(["targets", "mine", "--configfile", str(tmp_path / "mine.yaml")]) is None
    lines = capsys.readouterr().out.splitlines()
    assert "artifacts/mine.gguf" in lines and all(
        line.startswith("artifacts/mine") for line in lines
    )


@pytest.mark.parametrize(
    "words, said",
    [
        (["targets", "nosuch"], "error: nosuch: unknown model, expected one of the catalogue; "),
        (["targets", "--configfile", "nosuch.yaml"], "error: nosuch.yaml: No such file"),
        (["plan", "artifacts/demo_tp3.vmfb"], "tensor parallel size 3"),
        (["toolchain", "nosuch"], "error: envs/nosuch/requirements.lock: missing"),
    ],
)
def test_a_users_mistake_is_one_line(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=said):
        cli.main(words)


def test_a_config_that_is_fetched_meanwhile_is_found(catalogue, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    catalogue["models"]["llama8b"].pop("dimensions")
    costs = Costs(catalogue, ROOT, Past(None))
    words = {"model": "llama8b", "dtype": "", "file": "tokenizer.json"}
    job = Job("safetensors_to_gguf", outputs=(Output("", "m.gguf"),), wildcards=words)
    assert costs.expected(job) == {}
    folder = tmp_path / "artifacts/llama8b.hf"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(checkpoints.public_config("llama8b")))
    assert costs.expected(job)["step"] == "safetensors_to_gguf"


def test_a_verification_over_fewer_tokens_is_forecast_to_take_less_time_and_the_same_memory():
    catalogue = load(ROOT)  # which it changes
    job = Job("verify_safetensors", outputs=(Output("", "r.json"),), wildcards={"model": "demo"})

    def forecast(tokens):
        catalogue["models"]["demo"]["corpus_tokens"] = tokens
        return Costs(catalogue, ROOT, Past(None)).of(job)

    whole, short = forecast(24576), forecast(1024)
    cost = 8  # seconds of its start
    assert (short.seconds - cost) / (whole.seconds - cost) == pytest.approx(9024 / 32576)
    assert short.memory == whole.memory
    # of a large vocabulary a GB holds few distributions, whatever is asked for
    job = Job("verify_safetensors", outputs=job.outputs, wildcards={"model": "llama8b"})
    costs = Costs(catalogue, ROOT, Past(None))
    assert (costs.of(job).seconds - cost) / 200 == pytest.approx(8.03 * 4 * 9949 / 32576, rel=0.01)


def test_a_long_proposal_says_what_shortens_it():
    catalogue = load(ROOT)  # which it changes
    for name, tokens, seconds, says in (
        ("demo", 24576, 1801, f"set models.demo.corpus_tokens in {cast.schema.LOCAL}, now 24,576"),
        ("demo", 24576, 1800, ""), ("demo", 1024, 9999, ""), ("llama8b", 24576, 9999, ""),
    ):  # fmt: skip
        catalogue["models"][name]["corpus_tokens"] = tokens
        said = cast.shorter(Model(name, catalogue, ROOT), seconds)
        assert (says in said) if says else said == "", (name, tokens, seconds)


def test_pins_are_read_from_a_lock_and_not_from_what_builds_it(inputs, tmp_path):
    files = inputs.lock("llamacpp")
    assert [Path(one).name for one in files[1:]] == [
        "build.py",
        "chat.cpp",
        "see.cpp",
        "together.cmake",
    ]
    job = Job("quantize_gguf", inputs=(Input("lock", tuple(files), listed=True),))
    assert key.about(job)["pins"]["cmake"] == "4.4.4"


def test_ranks_of_two_models_that_hold_the_same_have_one_key():
    def keyed(model, ranks=2):
        names = [f"artifacts/{model}_tp2.rank{n}.irpa" for n in range(ranks)]
        job = Job(
            "verify_vmfb", inputs=(Input("parameters", tuple(names), listed=True),),
            wildcards={"model": model, "tp": "2"}, shell="run {input.parameters}",
        )  # fmt: skip
        return key.fields(job, lambda path: "sha256:0")

    assert keyed("demo") == keyed("twin") == keyed("a_tp2") != keyed("demo", 3)
    assert keyed("demo")["inputs"]["parameters"][0] == ["{model}_tp2.rank0.irpa", "sha256:0"]


def test_the_chart_has_a_colour_for_every_kind_of_bytes():
    bytes_now = dict.fromkeys(CHART, 0)
    way = {
        "disk": 100,
        "seconds": 10,
        "timeline": [(0.0, bytes_now), (5.0, bytes_now | {"gguf": 100})],
    }
    svg = plots.plain(plots.disk({"keep": {"all": way, "targets": way}}, "<demo>"))
    assert svg.startswith("<svg ") and "&lt;demo&gt;" in svg
    assert all(colour in svg for colour in CHART.values())


def test_the_table_names_the_gpus_that_a_build_needs():
    row = {"outputs": ["m.trtllm"], "rule": "build_engine", "starts": 0, "seconds": 60, "memory": 1,
           "disk": 0, "download": 0, "gpus": 1}  # fmt: skip
    ways = dict.fromkeys(("seconds", "memory", "disk", "kept", "download"), 0)
    build = {"up_to_date": [], "restored": [], "jobs": [row, {**row, "outputs": ["t"], "gpus": 4}],
             "cores": 2, "keep": {"all": ways, "targets": ways}, "stream": {"disk": 5e9, "reads": 2},
             "error": {"past_jobs": 0, "known": False}}  # fmt: skip
    text = "\n".join(plan_table.of_build(build))
    assert "a GPU for m.trtllm, 4 GPUs for t" in text
    assert "disk, by `ingot stream`: at most 5 GB, and the weights are fetched 2 times" in text


# Rules


def test_flags_of_a_program_for_one_device_and_for_several(inputs):
    programs = Programs(inputs)
    one = Wildcards(model="demo", tp="1", hw="", program=".f32")
    two = Wildcards(model="demo", tp="2", hw="", program="")
    assert "--kv-cache-dtype=float32" in programs.export_flags(one)
    assert "--kv-cache-dtype=float32" not in programs.export_flags(two)
    assert "--iree-opt-data-tiling" in programs.compile_flags(one)
    assert programs.compile_flags(two)[:2] == [
        f"--iree-hal-target-device=local[{n}]" for n in (0, 1)
    ]
    assert "--iree-global-opt-data-tiling" in programs.compile_flags(two)
    four = Wildcards(model="llama8b", tp="1", hw=".cpu", program=".f32")  # prefills of 4
    assert "--iree-opt-data-tiling" not in programs.compile_flags(four)
    assert programs.mlir(one) == "artifacts/{model}_tp{tp}.f32.mlir"
    gpu = Wildcards(model="demo", tp="1", hw=".gfx942", program="")
    assert programs.config(gpu) == "artifacts/{model}_tp{tp}.config.json"


def test_files_of_a_model_here_and_of_one_on_the_hub(inputs):
    here, hub = Wildcards(model="demo", tp="1"), Wildcards(model="llama2-7b-chat", tp="2")
    assert inputs.config_json(here).endswith("models/demo/config.json")
    assert len(inputs.weights(here)) == 3 and inputs.parameters(here) == "artifacts/demo.irpa"
    assert inputs.weights(hub)[-1] == "artifacts/llama2-7b-chat.hf/model.safetensors.index.json"
    assert any(path.endswith("tokenizer.model") for path in inputs.tokenizer(hub))
    assert len(inputs.parameters(hub)) == 3 and not inputs.unpinned(hub)
    assert (
        inputs.setting("pp", "trtllm")(here) == 1
        and inputs.setting("license")(here) == "apache-2.0"
    )
    assert inputs.lock("trtllm")[0].endswith("requirements.in")  # it cannot be built here


def test_a_wrong_flag_of_an_engine_ends_in_one_line_that_names_its_key(catalogue):
    entry = catalogue["models"]["demo"]
    wrong = {**entry, "trtllm": {**entry["trtllm"], "build": {"max_batch_siz": 8}}}
    engines = Engines(Inputs({**catalogue, "models": {"demo": wrong}}, ROOT), talks=False)
    with pytest.raises(SystemExit, match=r"^error: models\.demo\.trtllm\.build: max_batch_siz"):
        engines.flags(Wildcards(model="demo", tp="1", gpu=""))


def test_a_step_sees_the_variables_that_are_listed_and_no_other():
    script = f"{environment.PREFIX} env"
    seen = {
        "HOME": "/h",
        "HF_TOKEN": "t",
        "INGOT_STORE": "s",
        "PYTHONPATH": "p",
        "OMP_NUM_THREADS": "1",
        environment.WAITS: "active",
    }
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": os.environ["PATH"], **seen},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert {"HOME", "INGOT_STORE", "INGOT_PARENT"} <= names
    assert not names & {"HF_TOKEN", "PYTHONPATH", "OMP_NUM_THREADS"}
    assert f"{environment.WAITS}=passive" in done.stdout.splitlines()


@pytest.mark.skipif(not os.geteuid(), reason="root may write everywhere")
@pytest.mark.parametrize("mine", [True, False])
def test_what_python_compiles_of_anothers_toolchains_is_kept_in_ones_own_cache(
    mine, tmp_path, monkeypatch
):
    place = tmp_path / "envs" / "one"
    place.mkdir(parents=True)
    (place / "package.py").touch()
    monkeypatch.setenv("INGOT_ENVS", str(tmp_path / "envs"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(environment.BYTECODE, raising=False)
    for folder in () if mine else (place, place.parent):
        folder.chmod(0o555)
    environment.prepare()
    script = f"{environment.PREFIX} cd {place}; {sys.executable} -c 'import package'"
    subprocess.run(["bash", "-c", script], check=True)
    kept = [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("package.*.pyc")]
    assert kept == (["envs"] if mine else ["cache"])


# This machine


def test_what_a_job_needs_is_asked_before_it_runs(monkeypatch):
    monkeypatch.setattr(machine.gpus, "gpus", lambda: [])
    engine = Job("build_engine", params={"compute_capability": "9.0"})
    assert "needs an NVIDIA GPU and this machine has none" in machine.why_not(engine)
    repository = Job("verify_triton", params={"backend": "engine", "server": machine.BUNDLED})
    assert "has no backend for engines; set INGOT_TRITONSERVER" in machine.why_not(repository)
    assert machine.why_not(Job("gguf_to_irpa")) is None


def test_a_gpu_is_seen_by_its_drivers_device(tmp_path):
    for name in ("null", "nvidiactl"):
        (tmp_path / name).touch()
    assert not machine.has_gpu(tmp_path)
    for name in ("kfd", "nvidia0"):
        (tmp_path / name).touch()
        assert machine.has_gpu(tmp_path), name
        (tmp_path / name).unlink()


PIP = """\
global.index-url='https://a/simple'
install.index-url='https://b/simple'
:env:.extra-index-url='file:///c file:///d'
global.extra-index-url='file:///never'
global.find-links='/wheels'
global.cert='/my certs/ca.pem'
"""


def test_uv_is_told_what_pip_knows(monkeypatch):
    done = SimpleNamespace(stdout=PIP)
    monkeypatch.setattr(indexes.subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(indexes, "_reachable", lambda url: False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    flags, environment = indexes.settings()
    assert flags[2:] == [
        "--index", "https://b/simple", "--index", "file:///c", "--index", "file:///d",
        "--find-links", "/wheels",
    ]  # fmt: skip
    monkeypatch.setattr(indexes, "_reachable", lambda url: True)
    assert indexes.settings()[0][2:4] == ["--index", indexes.CPU_INDEX]  # before all others
    alone = indexes.settings(public=True)[0]  # else torch for CPUs is taken for that of the lock
    assert (
        alone.count("--index") == 1
        and indexes.CPU_INDEX not in alone
        and "--find-links" not in alone
    )
    assert environment["SSL_CERT_FILE"] == "/my certs/ca.pem"
    assert not [name for name in environment if name.startswith("UV_")]
    done.stdout = "global.no-index='1'\nglobal.find-links='/wheels'\n"
    assert indexes.settings()[0] == ["--no-index", "--find-links", "/wheels"]


NO_CPU_TORCH = """\
error: No solution found when resolving dependencies
  cause: Because there is no version of torch==2.13.0+cpu and you require
"""


@pytest.mark.parametrize(
    "said, lacks",
    [
        (NO_CPU_TORCH, True),
        ("error: Failed to download `torch==2.13.0+cpu`\n  Caused by: Hash mismatch", False),
        ("error: Failed to download `torch==2.13.0+cpu`\n  HTTP status client error (404", False),
        ("", False),
    ],
)
def test_only_where_no_index_has_torch_for_cpus_its_cuda_build_is_taken(said, lacks):
    assert indexes.lacks_cpu_torch(said) == lacks


def test_an_index_out_of_reach_is_given_up_soon():
    assert not indexes._reachable("http://127.0.0.1:1/simple")


def test_without_torch_for_cpus_the_cuda_build_is_installed_and_its_size_said(
    tmp_path, monkeypatch, capfd
):
    source = tmp_path / "envs/x"
    source.mkdir(parents=True)
    for name, pin in ((toolchains.LOCK, "torch==2.13.0+cpu"), (toolchains.CUDA, "torch==2.13.0")):
        (source / name).write_text(f"# \n{pin} --hash=sha256:{'0' * 64}\n")
    known = {"download": 1, "disk": 2, "compile": 0, "cuda_download": 10**9, "cuda_disk": 2 * 10**9}
    (tmp_path / "envs/sizes.json").write_text(json.dumps({"x": known}))
    monkeypatch.setenv("INGOT_ENVS", str(tmp_path / "cache"))
    monkeypatch.setattr(indexes, "settings", lambda: ([], {}))
    asked = []

    def sync(folder, lock, total=0):
        asked.append(lock.name)
        return NO_CPU_TORCH if lock.name == toolchains.LOCK else ""

    monkeypatch.setattr(toolchains, "sync", sync)
    monkeypatch.setattr(bootstrap, "run", lambda *command: Path(command[-1]).mkdir())
    folder = toolchains.build(tmp_path, "x")
    assert asked == [toolchains.LOCK, toolchains.CUDA] and (folder / "ready").exists()
    assert "2.0 GB on disk" in capfd.readouterr().err
    toolchains.build(tmp_path, "x")
    assert len(asked) == 2  # once per machine


def test_every_package_of_every_toolchain_has_its_hash():
    for lock_file in ROOT.glob("envs/*/requirements*.lock"):
        for line in lock_file.read_text().splitlines()[1:]:
            assert "==" in line and "--hash=sha256:" in line, f"{lock_file}: {line}"


def test_the_cuda_lock_differs_from_the_other_by_torch_and_its_libraries():
    for cuda in ROOT.glob("envs/*/requirements.cuda.lock"):
        ours, theirs = (
            {line.split()[0] for line in path.read_text().splitlines()[1:]}
            for path in (cuda.with_name("requirements.lock"), cuda)
        )
        assert {pin.split("==")[0] for pin in ours - theirs} == {"torch"}
        assert all(
            pin.startswith(("torch==", "nvidia-", "cuda-", "triton==")) for pin in theirs - ours
        )


# What a run says


def test_what_need_not_run_after_all_is_said(capsys):
    one, two = (Job(name, outputs=(Output("", name),)) for name in ("one", "two"))
    report.spared([one], Decision(restore={one: {}}))
    report.spared([two], Decision())
    said = capsys.readouterr().err.splitlines()
    assert said == ["one: unchanged, restored from the store", "two: no longer needed"]


def test_rolling_disk_leaves_what_somebody_has_yet_to_read(tmp_path, store, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (Job(name, outputs=(Output("", name),)) for name in ("one", "two"))
    graph = Graph([first, second], {first: {}, second: {first: {"one"}}}, [second], {"two"})
    contents = Contents(graph, Namespace(prepare=lambda: False, root=tmp_path))
    contents.finished.add(first)
    contents.made["one"] = "sha256:x"
    Path("one").write_text("x")
    dropped = []
    monkeypatch.setattr(drop, "_remove", lambda contents, ingest, spent: dropped.extend(spent))
    contents.writable = True
    contents.store.locked = lambda name: contextlib.nullcontext()
    drop.drop(contents, None, {second})
    assert not dropped
    drop.drop(contents, None, set())
    assert dropped == ["one"]


# Rows


def test_the_rows_of_every_file_are_registered():
    folder = Path(rows.__file__).parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__", "rows", "table"}
    files = [importlib.import_module(f"ingot.driver.catalogue.formats.{name}") for name in names]
    assert sorted(row.name for one in files for row in one.ROWS) == sorted(row.name for row in ROWS)


@pytest.mark.parametrize("step", sorted(set(STEPS) - {"toolchain"}))
def test_every_step_is_forecast_for_the_demo(step, catalogue):
    names = {"shard_irpa": 3, "export_mlir": 2}
    outputs = tuple(Output("", f"artifacts/demo.{n}") for n in range(names.get(step, 1)))
    words = {"model": "demo", "tp": "2", "file": "config.json"}
    work = STEPS[step](Job(step, outputs=outputs, wildcards=words), Model("demo", catalogue, ROOT))
    assert set(work.files) == {output.path for output in outputs}
    assert work.units >= 0 and work.cost.seconds > 0


def test_a_program_of_this_interpreter_is_in_the_path():
    assert (Path(sys.executable).parent / "uv").exists(), "uv is in the driver's lock"


def test_a_node_that_does_not_see_a_toolchain_says_so_and_deletes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("INGOT_ENVS", str(tmp_path / "envs"))
    monkeypatch.chdir(tmp_path)
    mark = Path(toolchains.MARKS, toolchains.place(ROOT, "iree").name)
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert Inputs({}, ROOT, decides=False).mark("iree") == str(mark) and mark.exists()
    with pytest.raises(Refused, match=r"envs/iree-\w+: not seen on .*, expected the toolchain"):
        toolchains.stop_where_unseen(["models.yaml", str(mark)])
    Inputs({}, ROOT).mark("iree")
    assert not mark.exists(), "here the cache was emptied"
