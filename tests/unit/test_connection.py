"""A registry or a hub that does not answer: who it is, and that it is asked again."""

import pytest

from ingot.registry import connection as connections
from ingot.registry import reference
from ingot.registry.connection import Connection, Cut


@pytest.fixture
def closed(monkeypatch):
    monkeypatch.setattr(connections, "WAIT", 0.01)
    return reference.parse("oci://127.0.0.1:1/x:1")


def test_a_registry_that_does_not_answer_is_asked_again_and_that_is_said(closed, capsys):
    with pytest.raises(Cut, match=r"127\.0\.0\.1:1: GET x/tags/list: .*refused"):
        Connection(closed, tries=3).ask("GET", "x/tags/list", (200,))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and all("; trying again in 0.0 s" in line for line in said)
    assert all(line.startswith("127.0.0.1:1: GET x/tags/list: ") for line in said)


def test_of_a_shared_cache_one_line_says_all(closed, capsys):
    with pytest.raises(Cut):
        Connection(closed, tries=3, quiet=True).ask("GET", "x/tags/list", (200,))
    assert capsys.readouterr().err == ""
