"""The `snakemake` command, before Snakemake: what it would meet with a traceback, in one line."""

import os
import signal

import pytest

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.commands import snakemake
from ingot.driver.snakemake import words as snakemake_words


@pytest.fixture(scope="module")
def parser():
    from snakemake.cli import get_argument_parser

    return get_argument_parser()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--configfile", "nope.yaml"], "nope.yaml: no such file"),
        (["--configfiles=nope.yaml"], "nope.yaml: no such file"),
        (["--report-metadata", "nope.yaml"], "nope.yaml: no such file"),
        (
            ["--configfile", "twice.yaml"],
            r"twice.yaml:2: a is there twice, expected it once; rename",
        ),
        (["--cores", "0"], "--cores 0: nothing could run, expected 1 or more"),
        (["-j=0"], "-j 0: nothing could run"),
        (
            ["--set-threads", "a=1", "safetensors_to_gguf=0"],
            "safetensors_to_gguf=0: nothing could run",
        ),
        (["--set-threads=r=0"], "--set-threads r=0: nothing could run"),
        (["-c0"], "-c 0: nothing could run"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(words, said, folder):
    (folder / "mine.yaml").write_text("models: {}")
    (folder / "twice.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(Refused, match=said):
        snakemake.stop_on_wrong_values(words)
    snakemake.stop_on_wrong_values(
        ["--configfile", "mine.yaml", "--cores", "2", "--set-threads", "a=10"]
    )


@pytest.mark.parametrize(
    "option",
    ["--configfile mine.yaml", "--config a=1", "--resources mem_mb=1", "--set-threads r=1", "-n --quiet",
     "--groups a=b", "--lint", "--dag"],
)  # fmt: skip
def test_a_target_that_an_option_takes_is_named(option, parser):
    words = [*option.split(), "artifacts/m.gguf"]
    with pytest.raises(
        Refused, match=r"artifacts/m.gguf: taken for a value of .*; write -- before"
    ):
        snakemake.stop_on_swallowed(words, parser)


@pytest.mark.parametrize(
    "words",
    ["--configfile=mine.yaml T", "--config=a=1 T", "-R T", "--until T", "-n T", "--cores 2 T", "-p -k T",
     "--forcerun T U"],
)  # fmt: skip
def test_targets_that_are_given_right_are_left_alone(words, parser):
    named = words.replace("T", "artifacts/m.gguf").replace("U", "artifacts/n.gguf")
    snakemake.stop_on_swallowed(named.split(), parser)


@pytest.mark.parametrize("option", ["--cache", "--containerize", "--archive"])
def test_what_would_go_past_the_store_and_the_toolchains_is_refused_with_what_is_in_its_place(
    option,
):
    with pytest.raises(Refused, match=f"{option}: .*; .*"):
        snakemake.stop_on_impossible({option, "artifacts/m.gguf"})
    snakemake.stop_on_impossible({option}, mine=False)  # of somebody's own Snakefile


def test_a_home_that_may_not_be_written_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    snakemake.stop_without_cache()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Refused, match="set XDG_CACHE_HOME to a folder of yours"):
        snakemake.stop_without_cache()


@pytest.mark.skipif(not os.geteuid(), reason="root may write anywhere")
def test_a_working_folder_that_may_not_be_written_is_said(folder):
    snakemake.stop_without_folder([])
    snakemake.stop_without_folder(["--directory=nowhere", "artifacts/m.gguf"])
    place = folder / "theirs/.snakemake"
    place.mkdir(parents=True)
    place.chmod(0o555)
    with pytest.raises(
        Refused, match=r"theirs/\.snakemake: cannot be written, and a run writes there"
    ):
        snakemake.stop_without_folder(["-d", "theirs", "artifacts/m.gguf"])


def test_a_store_that_is_a_file_and_a_folder_without_a_snakefile_are_said(folder, monkeypatch):
    (folder / "file").touch()
    monkeypatch.setenv("INGOT_STORE", "file")
    with pytest.raises(Refused, match="file: a file, expected a folder, of INGOT_STORE"):
        snakemake.stop_without_store()
    monkeypatch.setattr("sys.argv", ["snakemake", "artifacts/m.gguf"])
    with pytest.raises(Refused, match="no Snakefile here; cd /"):
        snakemake.stop_without_snakefile(["artifacts/m.gguf"])
    snakemake.stop_without_snakefile(["-s", "elsewhere/Snakefile", "artifacts/m.gguf"])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            "MissingRuleException:\nNo rule to produce x (if you use",
            "error: x: no target, and no rule",
        ),
        (
            "LockException:\nError: Directory cannot be locked.",
            "error: another run builds some of the same files here",
        ),
        (
            "MissingInputException in rule r in file /x.smk, line 9:\nMissing input files for rule r:\n"
            "    output: artifacts/m.gguf, artifacts/n.gguf\n    wildcards: model=m\n"
            "    affected files:\n        /gone/sp ace/config.json\n        /gone/sp ace/tokenizer.json",
            "error: artifacts/m.gguf: /gone/sp ace/config.json: missing, expected it there for rule r; if "
            "you moved that folder, change the path in the catalogue",
        ),
        ("Building DAG of jobs...", ""),
        ("Benchmark: unable to collect cpu and memory benchmark statistics: (pid=3)", ""),
        ("WorkflowError:\nwhat happened", "what happened"),
        (
            'WorkflowError:\na: b, expected c\n  File "/x/hook.py", line 3, in y\n',
            "error: a: b, expected c",
        ),
    ],
)
def test_snakemakes_words_are_told_in_ours(theirs, ours):
    told = snakemake_words.told(theirs)
    assert told.startswith(ours) and bool(ours) == bool(told) and "File" not in told


def test_modules_that_are_here_serve_the_snakefile_that_is_theirs_and_no_other(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(ROOT)
    assert snakemake.ours([]) and snakemake.ours(["-n", "-c", "2"])
    other = tmp_path / "Snakefile"
    other.touch()
    for words in (
        ["-s", str(other)],
        [f"-s{other}"],
        [f"--snakefile={other}"],
        ["--snake", str(other)],
    ):
        assert not snakemake.ours(words), words
    monkeypatch.chdir(tmp_path)
    assert not snakemake.ours([]) and snakemake.ours(["-s", str(ROOT / "Snakefile")])


def test_ctrl_c_before_anything_runs_gets_one_line(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(snakemake, "run", interrupted)
    monkeypatch.setattr("sys.argv", ["snakemake", "-n"])
    try:
        assert snakemake.main() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "stopped by Ctrl-C\n"
