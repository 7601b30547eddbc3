"""`ingot serve` starts the server of an artifact's format, or says in a line why none loads it."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from conftest import ROOT
from ingot.base import sealed
from ingot.driver.catalogue import schema
from ingot.driver.commands import cli, serve
from ingot.driver.toolchains import toolchains

DEMO = schema.read(ROOT / schema.FILE)["models"]["demo"]


@pytest.fixture
def started(tmp_path, monkeypatch):
    """What was started in a folder with artifacts/ and a llama-server on its PATH: words, environment."""
    monkeypatch.chdir(tmp_path)
    Path("artifacts").mkdir()
    program(Path("bin/llama-server"))
    monkeypatch.setenv("PATH", str(Path("bin").absolute()))
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setattr(toolchains, "build", lambda _, name: Path("/envs", name))
    found = []
    monkeypatch.setattr(os, "execvpe", lambda _, words, known: found.append((words, known)))
    return found


def program(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_file_is_served_by_its_formats_server_from_the_path(started, tmp_path, capsys):
    Path("artifacts/demo.gguf").touch()
    cli.main(["serve", "artifacts/demo.gguf", "--", "--port", "9"])
    ((words, _),) = started
    server = f"{tmp_path}/bin/llama-server"
    assert words == [server, "-m", "artifacts/demo.gguf", "--port", "9"]
    said = capsys.readouterr().err
    assert said == f"starting {server} -m artifacts/demo.gguf --port 9\n"


def test_of_a_file_in_parts_the_first_is_named(started):
    folder = Path("artifacts/demo.split")
    folder.mkdir()
    for n in (1, 2):
        (folder / f"demo-0000{n}-of-00002.gguf").touch()
    cli.main(["serve", str(folder)])
    assert started[0][0][1:] == ["-m", f"{folder}/demo-00001-of-00002.gguf"]


def test_a_folder_is_served_by_its_own_program_with_its_toolchains_python(started, monkeypatch):
    bundle = Path("artifacts/demo_tp1.shortfin")
    program(bundle / "serve")
    shutil.copy(ROOT / "envs/iree/requirements.lock", bundle)
    sealed.seal(bundle)
    cli.main(["serve", str(bundle), "--", "--port=9"])
    monkeypatch.setenv("PYTHON", "/my/python")
    cli.main(["serve", str(bundle)])
    assert [words[1:] for words, _ in started] == [["--port=9"], []]
    assert started[0][0][0] == str((bundle / "serve").absolute())
    assert [known["PYTHON"] for _, known in started] == ["/envs/iree/bin/python", "/my/python"]


@pytest.mark.parametrize("toolchain", ["rayserve", "vllm", "vllm-cuda"])
def test_the_python_is_of_the_toolchain_that_the_bundle_pins(toolchain, started):
    bundle = Path("artifacts/demo_tp1.rayserve")
    program(bundle / "serve")
    shutil.copy(ROOT / f"envs/{toolchain}/requirements.lock", bundle)
    sealed.seal(bundle)
    cli.main(["serve", str(bundle)])
    ours = f"/envs/{toolchain}/bin/python" if toolchain != "vllm-cuda" else None
    assert started[0][1].get("PYTHON") == ours


@pytest.mark.parametrize("words", [["serve"], ["ask"]])
def test_a_model_of_another_catalogue_is_known_by_its_configfile(words, started):
    own = {**DEMO, "path": str(ROOT / "models/demo")}
    Path("mine.yaml").write_text(yaml.safe_dump({"models": {"mine": own}}))
    words = [*words, "artifacts/mine.gguf", *(["who?"] if words == ["ask"] else [])]
    for more, said in (
        ([], "unknown model mine"),
        (["--configfile", "mine.yaml"], "`snakemake artifacts/mine.gguf --configfile mine.yaml`"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main([*words, *more])
        assert said in str(stopped.value)


def test_a_bundle_that_was_changed_is_not_started(started):
    bundle = Path("artifacts/demo_tp1.shortfin")
    program(bundle / "serve")
    sealed.seal(bundle)
    program(bundle / "serve", "echo other")
    with pytest.raises(SystemExit, match="its bytes are not those of SHA256SUMS"):
        cli.main(["serve", str(bundle)])
    assert not started


@pytest.mark.parametrize(
    "name, said",
    [
        ("demo.q4_k_m.gguf", "not built yet; `snakemake artifacts/demo.q4_k_m.gguf` builds it"),
        ("demo.onnx/", "which no server loads; `ingot targets MODEL` lists the bundles"),
        ("demo.irpa", "served with other files only: python -m shortfin_apps.llm.server"),
        ("demo_tp1.vllm-slurm/", "for a cluster, expected a form for one machine; there: "),
        (
            "demo.mlx/",
            "mlx_lm.server: not on PATH, expected it for artifacts/demo.mlx; install it: `pip",
        ),
        ("demo.txt", f"not among the names of artifacts, expected such as {serve.SUCH}"),
    ],
)
def test_what_cannot_be_served_here_is_said(name, said, started):
    path = Path("artifacts", name)
    if name.endswith("/"):
        path.mkdir()
    elif "q4" not in name:
        path.touch()
    with pytest.raises(SystemExit) as end:
        cli.main(["serve", str(path)])
    assert not started and said in str(end.value) and "\n" not in str(end.value)
