"""What the `ingot` commands refuse, each in one line, before anything is done."""

import pytest

from ingot.base.refused import Refused
from ingot.driver.commands import cli, doctor, matrix, status, wheels


@pytest.mark.parametrize(
    "words, said",
    [("matrix --model nobody", "error: --model: nobody, expected one of demo"),
     ("matrix --format pickle", "error: --format: pickle, expected one of gguf"),
     ("matrix --runner sm90", "error: --runner: sm90, expected NAME=LABEL"),
     ("matrix artifacts/demo.pickle", "error: artifacts/demo.pickle: not a target"),
     ("wheels nobody", "error: nobody: no toolchain, expected one of ci")],
)  # fmt: skip
def test_a_wrong_word_gets_one_line(words, said):
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert str(end.value).startswith(said) and "\n" not in str(end.value)


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
