"""The `snakemake` command, before Snakemake: what it would meet with a traceback, in one line."""

import os

import pytest

from ingot.driver.commands import snakemake
from ingot.refused import Refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--configfile", "nope.yaml"], "nope.yaml: no such file"),
        (["--configfiles=nope.yaml"], "nope.yaml: no such file"),
        (["--configfile", "mine.yaml", "artifacts/m.gguf"], "write -- before the targets"),
        (["--report-metadata", "nope.yaml"], "nope.yaml: no such file"),
    ],
)
def test_a_file_that_an_option_names_is_looked_for(words, said, folder):
    (folder / "mine.yaml").write_text("models: {}")
    with pytest.raises(Refused, match=said):
        snakemake.stop_on_missing(words)
    snakemake.stop_on_missing(["--configfile", "mine.yaml", "--cores", "2"])


def test_a_home_that_may_not_be_written_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    snakemake.stop_without_cache()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(Refused, match="set XDG_CACHE_HOME to a folder of yours"):
        snakemake.stop_without_cache()
