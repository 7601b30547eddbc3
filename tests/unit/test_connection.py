"""A registry or a hub that does not answer: who it is, and that it is asked again."""

import pytest

from ingot.registry import connection as connections
from ingot.registry import reference, transfer
from ingot.registry.connection import Connection, Cut


@pytest.fixture
def closed(monkeypatch):
    monkeypatch.setattr(connections, "WAIT", 0.01)
    return reference.parse("oci://127.0.0.1:1/x:1")


def test_a_registry_that_does_not_answer_is_asked_again_and_that_is_said(closed, capsys):
    with pytest.raises(Cut, match=r"127\.0\.0\.1:1: GET x/tags/list: .*refused"):
        Connection(closed, tries=3).ask("GET", "x/tags/list", (200,))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "; trying again in 0.0 s" in said[0], "one line per registry"
    assert said[0].startswith("127.0.0.1:1: GET x/tags/list: ")


def test_of_a_shared_cache_one_line_says_all(closed, capsys):
    with pytest.raises(Cut):
        Connection(closed, tries=3, quiet=True).ask("GET", "x/tags/list", (200,))
    assert capsys.readouterr().err == ""


def test_a_registry_that_nobody_runs_is_soon_given_up_in_one_line(closed, capsys, monkeypatch):
    """Of a publication, each blob was asked for six times, and each time said."""
    waits = []
    monkeypatch.setattr(connections, "WAIT", 0.5)
    monkeypatch.setattr(connections.time, "sleep", waits.append)
    connection = Connection(closed)
    contents = [transfer.of_bytes(bytes([one])) for one in range(8)]
    with pytest.raises(Cut, match=r"127\.0\.0\.1:1: HEAD x/blobs/sha256.*refused"):
        transfer.push(connection, contents)
    assert capsys.readouterr().err.count("\n") == 1
    assert len(waits) <= (connections.REFUSED - 1) * transfer.WORKERS and max(waits) <= 1.0


def test_a_registry_that_was_there_before_is_asked_as_often_as_any(closed, monkeypatch):
    waits = []
    monkeypatch.setattr(connections.time, "sleep", waits.append)
    connection = Connection(closed)
    connection.answered = True
    with pytest.raises(Cut):
        connection.ask("GET", "x/tags/list", (200,))
    assert len(waits) == connections.TRIES - 1


def test_a_long_wait_is_said_once_more_and_so_is_the_next_trouble(closed, capsys):
    connection = Connection(closed)

    def said(*words):
        connection.again(*words)
        return capsys.readouterr().err.count("\n")

    assert [said("h: 503", 0), said("h: 503", 0), said("h: 429", 0, "60"), said("h: 429", 0, "60")] == [
        1, 0, 1, 0,
    ]  # fmt: skip
    connection.told_until = 0.0
    assert said("h: 429", 0, "60") == 1, "the minute is over"
    connection.told_until, connection.told = 0.0, False
    assert said("h: 503", 0) == 1, "it answered meanwhile"
