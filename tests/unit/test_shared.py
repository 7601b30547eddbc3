"""What a run knows before it runs: of its sources, and of what the shared cache may answer for."""

import os
from argparse import Namespace
from itertools import chain, pairwise

import pytest

from builds import job
from ingot.base import digest
from ingot.driver.cache.shared import Shared
from ingot.driver.cache.sources import Sources, UnknownInput
from ingot.driver.catalogue.job import Graph

LAYERS = 60  # each of two jobs that read both of the layer below: 2^60 ways, if each were walked


def lattice(forced=()):
    rows = [[job("source", f"{row}{side}.one") for side in "ab"] for row in range(LAYERS)]
    needs = {one: {} for one in rows[0]}
    for below, above in pairwise(rows):
        needs |= {one: {maker: set(maker.writes) for maker in below} for one in above}
    graph = Graph([*chain(*rows)], needs, rows[-1])
    graph.forced = {one for one in graph.jobs if one.writes[0] in forced}
    return graph, rows[-1][0]


def test_what_rests_on_a_forced_job_is_not_asked_for_and_each_job_is_looked_at_once():
    for forced, unsettled in (((), False), (["0a.one"], True), ([f"{LAYERS - 1}b.one"], False)):
        graph, last = lattice(forced)
        contents = Namespace(graph=graph, finished=set())
        assert Shared(contents)._unsettled(last) is unsettled


def test_a_recipe_follows_only_where_each_job_gave_what_its_record_says():
    graph, last = lattice()
    record = Namespace(outputs=[{"digest": "sha256:1"}])
    contents = Namespace(graph=graph, finished=set(), made={}, record=lambda _: record)
    assert Shared(contents)._follows(last)
    contents.made = {"0a.one": "sha256:2"}
    assert not Shared(contents)._follows(last)


def test_a_source_that_is_no_plain_file_is_said_and_not_waited_for(tmp_path, store):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(
        OSError, match=r"model\.safetensors: no plain file, expected one; put a copy"
    ):
        Sources().digest(str(tmp_path / "model.safetensors"), lambda _: True)


def test_a_source_is_read_once_and_an_edit_of_it_is_seen(tmp_path, store):
    sources, file = Sources(), tmp_path / "config.json"
    with pytest.raises(UnknownInput, match=r"config.json is missing"):
        sources.digest(str(file), lambda _: True)
    file.write_text("{}")
    found = sources.digest(str(file), lambda _: True)
    assert found == f"sha256:{digest.read(file)}" and sources.unchanged(str(file))
    file.write_text("[]")
    assert not sources.unchanged(str(file)) and sources.digest(str(file), lambda _: True) == found
