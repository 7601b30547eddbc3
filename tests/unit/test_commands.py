"""What the `ingot` commands refuse, each in one line, before anything is done."""

import signal
import sys
from pathlib import Path

import pytest

from ingot.base.refused import Refused
from ingot.driver.cache import dry_run
from ingot.driver.commands import cli, doctor, matrix, status, stopped, wheels
from ingot.driver.show.status import Status


@pytest.mark.parametrize(
    "words, said",
    [("ask artifacts/demo.q4_k_m.gguf hello",
      "error: artifacts/demo.q4_k_m.gguf: not built yet; `snakemake artifacts/demo.q4_k_m.gguf`"),
     ("ask artifacts/demo.irpa hello",
      "error: artifacts/demo.irpa: not asked here, expected one of .gguf, .onnx, .openvino, .shortfin"),
     ("ask artifacts/nosuch.gguf hello", "error: artifacts/nosuch.gguf: unknown model nosuch"),
     ("matrix --model nobody", "error: --model: nobody, expected one of demo"),
     ("matrix --format pickle", "error: --format: pickle, expected one of gguf"),
     ("matrix --runner sm90", "error: --runner: sm90, expected NAME=LABEL"),
     ("matrix --runner foo=bar --github", "error: --runner: foo, expected one of cpu, bigmem, sm80"),
     ("matrix --github --gitlab", "error: --github and --gitlab: both, expected one of them"),
     ("matrix --model llama405b --github",
      "error: llama405b: no revision, so in no cell: what it is may change each night; set "
      "models.llama405b.revision"),
     ("matrix --model demo --format mmproj.gguf",
      "error: --model: demo: no target of it in mmproj.gguf, expected one or more"),
     ("matrix artifacts/demo.pickle", "error: artifacts/demo.pickle: not a target"),
     ("wheels nobody", "error: nobody: no toolchain, expected one of ci")],
)  # fmt: skip
def test_a_wrong_word_gets_one_line(words, said):
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert str(end.value).startswith(said) and "\n" not in str(end.value)


@pytest.mark.parametrize("value", ["-5", "0", "nan", "inf"])
@pytest.mark.parametrize(
    "words",
    ["plan demo --gpu-memory", "plan demo --nominal", "stream artifacts/demo.gguf --window"],
)
def test_an_amount_that_is_not_above_0_is_refused(words, value, capsys):
    with pytest.raises(SystemExit):
        cli.main([*words.split(), value])
    said = capsys.readouterr().err
    option = words.rpartition(" ")[2]
    assert f": argument {option}: {value}, expected a number above 0; `ingot " in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("option", ["plan demo --context", "plan demo --kv-heads", "fit demo --context",
                                    "cast demo --context", "plan demo --cores"])  # fmt: skip
def test_a_count_that_is_not_above_0_is_refused(option, capsys):
    for value, said in (("-5", "-5, expected a number above 0"), ("x", "invalid int value: 'x'")):
        with pytest.raises(SystemExit):
            cli.main([*option.split(), value])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    [
        (
            "targets --konfigfile x",
            "error: ingot targets: --konfigfile: not among its options, nearest: --con",
        ),
        (
            "plan llama70b --on h100",
            "error: ingot plan: --on h100: not among its options; `ingot fit M --on DEVICE` says what fits "
            "a device, and --gpu-memory sets a GPU's GiB here; `ingot plan --help` says",
        ),
        (
            "plan llama70b --on=h100",
            "error: ingot plan: --on=h100: not among its options; `ingot fit M",
        ),
        ("add --as sp", "error: ingot add: --as: not among its options, nearest: --"),
        (
            "explain artifacts/demo.gguf --zzzzzz",
            "error: ingot explain: --zzzzzz: not among its options; `",
        ),
    ],
)
def test_an_option_that_a_command_does_not_have_is_said_by_that_command(words, said, capsys):
    with pytest.raises(SystemExit):
        cli.main(words.split())
    found = capsys.readouterr().err
    assert found.startswith(said) and found.count("\n") == 1 and "--help` says" in found


@pytest.mark.parametrize("words, lacks", [("store", "what"), ("serve", "artifact")])
def test_a_word_that_may_be_left_out_is_not_called_required(words, lacks, capsys):
    with pytest.raises(SystemExit):
        cli.main(words.split())
    said = capsys.readouterr().err
    assert f"error: ingot {words}: the following arguments are required: {lacks};" in said


@pytest.mark.parametrize("module", [doctor, matrix, status, wheels])
def test_each_command_explains_itself(module, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([module.__name__.rpartition(".")[2], "--help"])
    assert end.value.code == 0 and module.__doc__.splitlines()[0] in capsys.readouterr().out


def test_labels_of_runners_are_those_that_are_named():
    assert matrix.runners(["sm90=self-hosted,h100"], [])["sm90"] == ["self-hosted", "h100"]
    with pytest.raises(Refused):
        matrix.runners(["sm90"], [])


def test_status_of_a_folder_without_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INGOT_STORE", str(tmp_path / "store"))
    assert cli.main(["status"]) == 1 and "no run yet" in capsys.readouterr().err


def test_a_run_that_was_told_to_end_is_not_one_that_was_killed():
    def said(**more):
        found = Status(done=1, left=1, **more)
        return status.header(Path(), found, alive=False)

    killed = said(running={"artifacts/m.gguf": {}})
    assert "ended while it built artifacts/m.gguf; 1 job was done, and the same" in killed
    told = said(running={"artifacts/m.gguf": {}}, stopped_by="Ctrl-C")
    assert "was stopped by Ctrl-C while it built artifacts/m.gguf; 1 job was done, and" in told
    assert "was stopped by SIGTERM; 1 job was done" in said(stopped_by="SIGTERM")
    assert said().endswith("ended with 1 job done")


@pytest.mark.parametrize("reason, said", [((), "stopped by Ctrl-C\n"), (("a child said it",), "")])
def test_ctrl_c_gets_one_line_and_the_status_of_shells(reason, said, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt(*reason)

    monkeypatch.setattr(status, "run", interrupted)
    assert cli.main(["status"]) == stopped.STATUS == 130
    assert capsys.readouterr().err == said


def test_why_a_dry_run_ended_is_said_also_where_snakemake_says_it_on_stdout(tmp_path, monkeypatch):
    words = [
        sys.executable,
        "-c",
        "import sys; print('error: x: missing'); sys.exit('Using workflow')",
    ]
    monkeypatch.setattr(dry_run, "_command", lambda *_: words)
    with pytest.raises(Refused, match=r"^x: missing$"):
        dry_run.dry_run(tmp_path, ["artifacts/m.gguf"])


SLOW_TO_END = """
import os, signal, sys, time

def end(*_):
    time.sleep(1)  # more than subprocess.run waits
    open("ended", "w")
    sys.exit(1)

signal.signal(signal.SIGINT, end)
time.sleep(0.5)  # until it is waited for
os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""


def test_ctrl_c_leaves_a_build_the_time_to_end_its_steps(tmp_path, monkeypatch):
    """Also a SIGINT that somebody sent to the command alone."""
    monkeypatch.setattr(dry_run, "_at_terminal", lambda: False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as reason:
            dry_run.shown([sys.executable, "-c", SLOW_TO_END], cwd=tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "ended").exists() and reason.value.args, "it has said so itself"
