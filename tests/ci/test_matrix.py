"""The CI files, run by `act` and `gitlab-ci-local`: plan, build, verify, publish; then nothing is left."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import registry as registries
from conftest import ROOT
from ingot.base import digest
from ingot.driver.catalogue import schema
from ingot.driver.catalogue import targets as legal
from ingot.driver.forecast import cells
from ingot.driver.toolchains import toolchains
from ingot.store.records import Store

OWN = "models.local.yaml"
SERVED = ("artifacts/demo.gguf", "artifacts/demo_tp8.irpa")
# of a runner that keeps what it fetched: else each test would fetch the driver's packages
CACHE = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")


@pytest.fixture(scope="module")
def tools():
    """The toolchain with both runners."""
    return toolchains.build(ROOT, "ci")


@pytest.fixture
def repository(tmp_path):
    """A clone of what is committed and changed here, as a CI would check it out, already set up."""
    folder = tmp_path / "repository"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    for name in filter(os.path.lexists, listed.stdout.splitlines()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    who = ("-c", "user.name=CI", "-c", "user.email=ci@localhost")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], [*who, "commit", "-qm", "a clone"],
                  ["remote", "add", "origin", "git@gitlab.com:somebody/ingot.git"]):  # fmt: skip
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture
def act(tools, repository, store, tmp_path):
    """act() runs the workflow that builds engines; what it said."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "action.yml").write_text("name: checkout\nruns: {using: composite, steps: []}\n")
    # Of act 0.2.89 two jobs at once write one map of secrets, and it dies (nektos/act#6030): jobs of
    # a workflow are limited by --concurrent-jobs, those of a matrix by the file alone.
    cells = repository / ".github/workflows/cells.yml"
    one_by_one, changed = re.subn(r"max-parallel: \d+", "max-parallel: 1", cells.read_text())
    assert changed == 1
    cells.write_text(one_by_one)

    def run(select=SERVED, fails=False, workflow="engines.yml", **variables):
        words = ["workflow_dispatch", "-W", f".github/workflows/{workflow}"]
        words += [
            "-P",
            "ubuntu-24.04=-self-hosted",
            "--no-cache-server",
            "--concurrent-jobs=1",
            "--input",
            f"select={' '.join(select)}",
        ]
        words += ["--local-repository", f"actions/checkout@v4={checkout}"]
        words += ["--env", f"XDG_CACHE_HOME={CACHE}"]
        for name, value in {"INGOT_STORE": store, **variables}.items():
            words += ["--var", f"{name}={value}"]
        done = subprocess.run(
            [tools / "bin/act", *words], cwd=repository, capture_output=True, text=True, timeout=900,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"),
                 "INGOT_ENVS": str(toolchains.cache())},
            check=False,
        )  # fmt: skip
        assert bool(done.returncode) == fails, done.stdout[-6000:] + done.stderr
        return done.stdout

    return run


@pytest.fixture
def gitlab(tools, repository, store, tmp_path):
    """gitlab() runs the pipeline as its schedule does; what it said."""
    if not shutil.which("rsync"):
        pytest.skip("gitlab-ci-local needs rsync (Debian: rsync)")

    def run(select=SERVED, fails=False):
        variables = {
            "CI_PIPELINE_SOURCE": "schedule",
            "SELECT": " ".join(select),
            "INGOT_STORE": store,
        }
        words = ["--force-shell-executor", "--shell-executor-no-image", "--shell-isolation"]
        words += [
            word for name in variables for word in ("--variable", f"{name}={variables[name]}")
        ]
        done = subprocess.run(
            [tools / "bin/node", tools / "gitlab-ci-local/dist/index.js", *words], cwd=repository,
            capture_output=True, text=True, timeout=900, check=False,
            env={**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": CACHE,
                 "INGOT_ENVS": str(toolchains.cache())},
        )  # fmt: skip
        # gitlab-ci-local ends with 0 whatever became of a child pipeline
        assert bool(done.returncode or " FAIL " in done.stdout) == fails, done.stdout + done.stderr
        return done.stdout

    return run


def test_github_builds_verifies_and_publishes_by_digest_then_has_nothing_to_do(
    act, store, told, tmp_path
):
    if not shutil.which("skopeo"):
        pytest.skip("publishing needs skopeo (Debian: skopeo)")
    told(store)
    place = tmp_path / "published"
    said = act(INGOT_PUBLISH=f"oci:{place}")
    records = {record.title: record for record in Store(store).records()}
    for target in SERVED:
        name = Path(target).name
        assert {name, f"{name}.verified.json"} <= {
            part for title in records for part in title.split(", ")
        }
        published = next(record for title, record in records.items() if title.startswith(name))
        assert f"oci:{place}@{published.digest}" in said
        blob = place / "blobs/sha256" / published.outputs[0]["digest"].removeprefix("sha256:")
        assert f"sha256:{digest.read(blob)}" == published.outputs[0]["digest"]
    again = act()
    assert again.count("Job succeeded") == 1, "the plan alone"


@pytest.fixture
def one_fails(repository):
    """What selects a cell that fails, the demo's, and an engine's, on a runner that lacks its GPU."""
    broken = repository / "broken"
    shutil.copytree(ROOT / "models/demo", broken, symlinks=True)
    for shard in broken.glob("*.safetensors"):
        shard.unlink()
        shard.write_bytes(b"no weights")
    entry = {
        "path": "broken",
        "name": "B",
        "architecture": "LlamaForCausalLM",
        "pre_tokenizer": "llama-bpe",
    }
    (repository / "mine.yaml").write_text(json.dumps({"models": {"broken": entry}}))
    for words in (
        ["add", "-A"],
        ["-c", "user.name=CI", "-c", "user.email=ci@x", "commit", "-qm", "mine"],
    ):
        subprocess.run(["git", *words], cwd=repository, check=True)
    targets = ["artifacts/broken.gguf", SERVED[0], "artifacts/demo_tp1.trtllm"]
    return ["--configfile", "mine.yaml", "--runner", "sm90=ubuntu-24.04", *targets]


def test_on_github_a_cell_that_fails_stops_no_other_of_its_layer(act, store, told, one_fails):
    told(store)
    said = act(one_fails, fails=True)
    assert "broken.gguf" in said
    assert {"demo.gguf", "demo.gguf.verified.json"} <= {
        record.title for record in Store(store).records()
    }


def test_on_github_a_layer_that_fails_stops_no_later_one(act, repository, one_fails):
    """act ends with the first reusable workflow that fails: here each layer is a job, and fails.

    What is read is that act began a step: what a step wrote as it ended, act may lose.
    """
    folder = repository / ".github/workflows"
    layers = yaml.safe_load((folder / "engines.yml").read_text())
    for name, job in layers["jobs"].items():
        if name != "plan":
            for field in ("uses", "with", "secrets"):
                del job[field]
            job |= {"runs-on": "ubuntu-24.04", "steps": [{"run": f"echo begun {name}; false"}]}
    layers["on"] = layers.pop(True)  # YAML 1.1 takes the key for a truth
    (folder / "layers.yml").write_text(yaml.safe_dump(layers))
    said = act(one_fails, fails=True, workflow="layers.yml")
    assert re.findall(r"⭐ Run Main echo begun (\w+)", said) == ["build", "engines"], said
    said = act(["artifacts/nobody.gguf"], fails=True, workflow="layers.yml")
    assert "begun" not in said, "there is no plan"


def test_on_gitlab_a_cell_that_fails_stops_no_other(gitlab, store, told, one_fails):
    told(store)
    one_fails[3] = "sm90=here"
    said = gitlab(one_fails, fails=True)
    assert {"demo.gguf", "demo.gguf.verified.json"} <= {
        record.title for record in Store(store).records()
    }
    assert "an NVIDIA GPU and this machine has none" in said


def test_without_a_runner_of_its_own_a_fork_builds_all_that_a_lent_one_can(ingot):
    for form in ("--github", "--gitlab"):
        done = ingot(
            "matrix",
            "artifacts/demo.gguf",
            "artifacts/llama70b_tp8.vmfb",
            "artifacts/demo_tp1.trtllm",
            form,
        )
        assert done.returncode == 0 and "demo.gguf" in done.stdout, done.stderr
        assert "self-hosted" not in done.stdout and "trtllm" not in done.stdout
        assert "sm90: no --runner sm90=LABEL,... names one, so 1 cell is left out" in done.stderr


def test_a_target_that_is_named_and_that_no_runner_takes_is_an_error(ingot):
    done = ingot("matrix", "artifacts/demo_tp1.trtllm", "--github")
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.endswith(
        "error: artifacts/demo_tp1.trtllm: no cell that a runner takes; name one by --runner\n"
    )


def test_a_catalogue_that_is_not_committed_is_in_no_cell(ingot, tmp_path):
    (tmp_path / "mine.yaml").write_text("models: {}")
    done = ingot("matrix", "--configfile", "mine.yaml", "artifacts/demo.gguf")
    assert done.returncode == 1 and "mine.yaml: not in git" in done.stderr


@pytest.mark.parametrize("form", [["--gitlab"], ["--github"], []])
def test_what_a_catalogue_that_is_not_committed_says_of_a_model_is_in_no_cell(
    form, ingot, tmp_path
):
    entry = f"path: {ROOT}/models/demo, name: M, architecture: LlamaForCausalLM, way: upstream"
    (tmp_path / OWN).write_text(f"models: {{demo: {{dtype: bf16}}, mine: {{{entry}}}}}\n")
    remedy = f"{OWN} says what it is, and is not in git, so no cell would have it; move its entry"
    for name in ("demo", "mine"):
        for words in ([f"artifacts/{name}.gguf"], ["--model", name, "--format", "gguf"]):
            done = ingot("matrix", *words, *form)
            assert done.returncode == 1 and f"{name}: {remedy}" in done.stderr, done.stderr
            assert not done.stdout
    done = ingot("matrix", "--runner", "bigmem=b", "--format", "gguf", *form)
    assert done.returncode == 0 and f"demo, mine: {OWN} says" in done.stderr, done.stderr
    assert "llama8b" in done.stdout and not re.search("mine|demo", done.stdout)


def test_runners_that_share_no_store_share_a_registry(act, told, tmp_path):
    if not registries.installed():
        pytest.skip("needs docker-registry, as .ci/run gets it")
    with registries.Registry(tmp_path / "registry") as server:
        cache = {"INGOT_REMOTE": f"oci://{server.host}/cache", "INGOT_REMOTE_TRUST": "registry"}
        for name in ("one", "two"):
            told(tmp_path / name)
        act(INGOT_STORE=tmp_path / "one", **cache)
        again = act(INGOT_STORE=tmp_path / "two", **cache)
    assert again.count("Job succeeded") == 1, "the plan alone"


def test_gitlab_builds_in_a_child_pipeline_then_has_nothing_to_do(gitlab, store, told):
    told(store)
    said = gitlab()
    titles = {part for record in Store(store).records() for part in record.title.split(", ")}
    assert {Path(target).name for target in SERVED} <= titles, said
    assert "demo_tp8.irpa.verified.json" in titles
    assert "everything is on record" in gitlab()


def test_the_whole_catalogue_stays_within_256_cells(tmp_path, ingot):
    done = ingot("matrix", "--all")
    assert done.returncode == 0, done.stderr
    layers = json.loads(done.stdout)["layers"]
    assert all(0 < len(found) <= cells.MOST for found in layers.values())
    targets = [
        target for found in layers.values() for cell in found for target in cell["targets"].split()
    ]
    assert len(targets) > 1000 and len(targets) == len(set(targets))
    catalogue = schema.load(ROOT, None)
    refused = {one: why for one in targets if (why := legal.why_not(one, catalogue))}
    assert not refused, "each cell names them to Snakemake"
    for cell in layers["engines"]:
        assert cell["gpus"] and cell["runs_on"] == ["self-hosted", cell["runner"]]
    lines = ingot(
        "matrix", "--model", "demo", "--github", "--runner", "sm90=h100"
    ).stdout.splitlines()
    said = dict(line.split("=", 1) for line in lines)
    assert said["any_engines"] == "true"
    assert json.loads(said["engines"])["include"][0]["runs_on"] == ["h100"]


def test_the_workflows_use_what_the_matrix_says():
    text = (ROOT / ".github/workflows/cells.yml").read_text()
    assert set(re.findall(r"matrix\.(\w+)", text)) == {
        "name",
        "targets",
        "configfile",
        "runs_on",
        "timeout",
    }
    assert yaml.safe_load(text)["jobs"]["cell"]["strategy"]["fail-fast"] is False


def test_a_cell_logs_in_to_what_it_publishes_to_also_without_a_shared_cache():
    steps = yaml.safe_load((ROOT / ".github/workflows/cells.yml").read_text())["jobs"]["cell"][
        "steps"
    ]
    when = {step["name"]: step.get("if", "") for step in steps if "name" in step}
    assert when["credentials of the registries"].split(" || ") == [
        "vars.INGOT_REMOTE",
        when["publish"],
    ]


def test_the_ci_files_are_what_the_published_schemas_expect(tools):
    for kind, files in (
        ("github-workflows", sorted(ROOT.glob(".github/workflows/*.yml"))),
        ("gitlab-ci", [ROOT / ".gitlab-ci.yml"]),
    ):
        words = ["--builtin-schema", f"vendor.{kind}", *files]
        done = subprocess.run(
            [tools / "bin/check-jsonschema", *words], capture_output=True, text=True, check=False
        )
        assert files and done.returncode == 0, done.stdout
