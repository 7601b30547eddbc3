"""A refusal is one exception, printed in one place; Snakemake's private names are where it is met."""

import io
import os
import re
import subprocess
import sys

import pytest

from conftest import ROOT
from ingot.base.entry import run
from ingot.base.refused import Harmless, Refused, one_line
from ingot.driver.show.log import Log

LIBRARY = sorted((ROOT / "scripts").rglob("*.py"))
ENTRY = (ROOT / "scripts/ingot/base/refused.py", ROOT / "scripts/ingot/base/entry.py")
HOOKS = sorted((ROOT / "scripts/ingot/driver/snakemake").rglob("*.py"))
PRIVATE = re.compile(
    r"_allitems|is_ancient|shellcmd|\bis_directory\b|dag\._|\._(needrun|finished|running|ready_jobs|"
    r"n_until_ready|reason|len)\b|is_group|targetjobs|targetfiles|forcerules|forcefiles|omitforce"
)


def code(path):
    """The text without comments and docstrings' prose, roughly: line by line."""
    return [line.split("#")[0] for line in path.read_text().splitlines()]


def lines(but, pattern):
    """(file, line) of the library that match, but in these files."""
    left = [path for path in LIBRARY if path not in but]
    return [(path.name, line) for path in left for line in code(path) if re.search(pattern, line)]


def test_only_the_entry_helper_ends_the_program():
    assert lines(ENTRY, r"sys\.exit|SystemExit|os\._exit") == []


def test_snakemakes_private_names_are_where_it_is_met():
    assert lines(HOOKS, PRIVATE) == []


def test_a_refusal_is_one_line_and_status_1(capsys):
    def main():
        raise Refused("model.gguf: not a GGUF file; fetch it again")

    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == "model.gguf: not a GGUF file; fetch it again"
    assert "\t" not in str(Refused("a\tname", "words\tof another program")), (
        "no terminal acts on it"
    )
    with pytest.raises(SystemExit, match=r"^error: no"), one_line("error: "):
        raise Refused("no")


@pytest.mark.parametrize("stop, said", [(SystemExit("stopped by SIGTERM"), "stopped by SIGTERM"),
                                        (KeyboardInterrupt(), "stopped by Ctrl-C")])  # fmt: skip
def test_what_fails_because_of_a_stop_is_not_the_reason(stop, said):
    """A signal came while a thread was started; waiting for that thread then failed, in a traceback."""

    def main():
        try:
            raise stop
        finally:
            raise RuntimeError("cannot join thread before it is started")

    with pytest.raises(SystemExit, match=said):
        run(main)


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0)


def test_no_package_that_a_step_uses_reports_its_use(tmp_path):
    """As OpenVINO's tools, onnxruntime, the hub's client, Ray and vLLM do where nobody says no."""
    (tmp_path / "openvino_telemetry.py").touch()
    (tmp_path / "step.py").write_text(
        "import importlib.util, os\n"
        "from ingot.base.entry import run\n"
        "def main():\n"
        "    print(*(f'{k}={v}' for k, v in os.environ.items()))\n"
        "    import openvino_telemetry\n"
        "run(main)\n"
    )
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(
        [sys.executable, tmp_path / "step.py"],
        env=path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout.split()
    assert {"DO_NOT_TRACK=1", "ORT_DISABLE_TELEMETRY=1", "VLLM_NO_USAGE_STATS=1"} < {*said}
    assert "ModuleNotFoundError: import of openvino_telemetry halted" in done.stderr


def test_what_is_printed_acts_on_no_terminal():
    out = io.StringIO()
    stream = Harmless(out)
    print("a\x1b[2J\x9b1mb\r\u202e\tc\nd", file=stream)
    assert out.getvalue() == "a\\x1b[2J\\x9b1mb\\r\\u202e\tc\nd\n"
    assert not stream.closed


def test_a_steps_line_is_no_command_of_githubs(monkeypatch, tmp_path):
    file = (tmp_path / "terminal").open("w+b")
    log = Log(None, file.fileno())
    for line in ("plain: ::text", "  ::error::x", "y ##[error]z"):
        log.passed(line)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for line in ("plain: ::text", "  ::error::x", "y ##[error]z"):
        log.passed(line)
    assert (tmp_path / "terminal").read_text().splitlines() == [
        "plain: ::text", "  ::error::x", "y ##[error]z",
        "plain: ::text", "|   ::error::x", "y ## [error]z",
    ]  # fmt: skip


def test_a_manifests_names_are_shown_harmlessly(tmp_path):
    path = tmp_path / "service.yaml"
    path.write_text('kind: RayService\nspec: {"a\\e[2J": 1}\n')
    done = subprocess.run(
        [sys.executable, "-m", "ingot.driver.commands.cli", "check", str(path)], capture_output=True,
        text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")},
    )  # fmt: skip
    assert "\x1b" not in done.stdout + done.stderr and "\\x1b[2J" in done.stderr, done.stderr
