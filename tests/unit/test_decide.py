"""What runs, what is restored, and why: tables over jobs made by hand, no Snakemake started."""

from dataclasses import replace
from pathlib import Path

import pytest

from builds import SHELL, Graph, Run, chain, job
from ingot.base import digest
from ingot.driver.cache import key
from ingot.driver.catalogue.job import Input, Output
from ingot.store.records import Action, Store


def why(graph):
    return {one.writes[0]: reason for one, reason in Run(graph).decide().run.items()}


def test_an_empty_store_runs_all_and_says_what_waits_for_what(folder):
    assert why(chain()) == {
        "b.one": "new",
        "c.two": "b.one is not built yet; will be decided once it is",
    }


def test_a_second_run_does_nothing_and_a_lost_target_is_restored_alone(folder):
    assert Run(chain()).build().ran == ["b.one", "c.two"]
    assert Run(chain()).build().ran == []
    Path("b.one").unlink()
    Path("c.two").unlink()
    again = Run(chain())
    assert [list(files) for files in again.decide().restore.values()] == [["c.two"]]
    assert again.build().ran == []
    assert Path("c.two").exists() and not Path("b.one").exists()


def test_equal_bytes_end_the_matter(folder):
    Run(chain()).build(lambda path, text: path)
    Path("a.txt").write_text("changed, to no effect")
    assert Run(chain()).build(lambda path, text: path).ran == ["b.one"]


def test_another_parameter_is_the_reason_given(folder):
    Run(chain()).build()
    found = why(chain(mode="slow"))
    assert found["b.one"] == "mode: 'fast' → 'slow' (nearest record: b.one)"


def test_what_was_built_under_another_name_is_explained_by_its_record(folder):
    """A copy of M.f16.gguf under M.gguf was only called new once a weight had changed."""

    def alone(output):
        one = job("a.txt", output)
        return Graph([one], {one: {}}, [one], {output}, set())

    Run(alone("first.one")).build()
    assert Run(alone("second.one")).build().ran == []
    Path("a.txt").write_text("changed")
    (said,) = why(alone("second.one")).values()
    assert "input source: its content changed" in said and "nearest record: first.one" in said


@pytest.mark.parametrize(
    "hub, said",
    [
        ("org/b", "new"),
        ("org/a", "revision: 'old' → 'young' (nearest record: listing.json)"),
        (None, "new"),
    ],
)
def test_a_file_named_alike_in_each_checkpoint_is_not_explained_by_another_models(
    hub, said, folder
):
    def listed(path, hub, revision):
        params = {"mode": "fast", "revision": revision} | ({"hub": hub} if hub else {})
        shell = " ".join([SHELL, *(f"{{params.{one}}}" for one in params)])
        return replace(job("a.txt", path), rule="list", shell=shell, params=params)

    def graph(one):
        return Graph(
            jobs=[one], needs={one: {}}, targets=[one], target_files={*one.writes}, forced=set()
        )

    for name in ("a", "b"):
        Path(f"artifacts/{name}.hf").mkdir(parents=True)
    Run(graph(listed("artifacts/a.hf/listing.json", "org/a" if hub else None, "old"))).build()
    found = why(graph(listed("artifacts/b.hf/listing.json", hub, "young")))
    assert [*found.values()] == [said]


def test_a_forced_job_runs_and_what_rests_on_it_waits(folder):
    Run(chain()).build()
    assert why(chain(forced=["b.one"])) == {
        "b.one": "forced on the command line",
        "c.two": "b.one is being rebuilt; will be decided once it is",
    }


def test_a_damaged_blob_is_built_again(folder, store):
    Run(chain()).build()
    blob = Path("c.two").resolve()
    blob.chmod(0o644)
    blob.write_text("damaged")
    assert why(chain()) == {"c.two": "c.two was built before, but its bytes have left the store"}


def test_an_input_that_changes_meanwhile_leaves_no_record(folder, capsys):
    def meddle(path, text):
        Path("a.txt").write_text("edited while it was read")
        return path

    run = Run(chain())
    run.build(meddle)
    assert "a.txt: changed while b.one was built" in capsys.readouterr().err
    assert not list(Store().records("make_one"))


KEYS = {  # a change of one job, and whether it has another key
    "nothing": (lambda one: one, False),
    "the output's path": (lambda one: job("a.txt", "elsewhere/b.one"), False),
    "the source's path": (lambda one: job("copy.txt", "b.one"), False),
    "a parameter": (lambda one: job("a.txt", "b.one", mode="slow"), True),
    "a parameter's type": (lambda one: job("a.txt", "b.one", mode=1), True),
    "the shell text": (lambda one: _with(one, shell=SHELL + " --more"), True),
    "an input that affects nothing": (
        lambda one: _with(one, inputs=(*one.inputs, Input("env", ("a.txt",), ancient=("a.txt",)))),
        False,
    ),
    "an input more": (
        lambda one: _with(one, inputs=(*one.inputs, Input("more", ("a.txt",)))),
        True,
    ),
    "a folder in place of a file": (
        lambda one: _with(one, outputs=(Output("", "b.one", directory=True),)),
        True,
    ),
}


def _with(one, **changes):
    found = job("a.txt", "b.one")
    vars(found).update(vars(one) | changes)
    return found


@pytest.mark.parametrize("name", KEYS)
def test_what_is_in_the_key(name):
    change, differs = KEYS[name]
    before = job("a.txt", "b.one")
    old, new = (key.fields(one, lambda path: "sha256:same") for one in (before, change(before)))
    assert (key.digest.of_json(old) != key.digest.of_json(new)) == differs


@pytest.mark.parametrize(
    "shell, reason",
    [
        (None, "has no shell:"),
        ("tool {threads} {workdir}", "fills in {workdir}, expected only inputs"),
        ("tool {params.mode}", "params.mode is a set, expected text"),
    ],
)
def test_a_rule_that_no_key_can_hold_is_refused(shell, reason):
    one = _with(job("a.txt", "b.one"), shell=shell, params={"mode": {1}})
    with pytest.raises(ValueError, match=r"rule make_one: .*" + reason.replace("{", r"\{")):
        key.fields(one, lambda path: "sha256:same")


def test_a_record_whose_fields_are_of_another_form_explains_nothing(folder):
    run = Run(chain()).build()
    output = {"kind": "file", "digest": digest.of("b.one"), "size": 1, "title": "x"}
    for number, fields in enumerate(({}, {"version": 9}, {"version": 1, "params": None}, [])):
        action = Action(run.graph.jobs[0].rule, f"{number:064x}", fields, [output], {}, {})
        run.contents.store.record(action)
    found = why(chain(mode="slow"))
    assert found["b.one"] == "mode: 'fast' → 'slow' (nearest record: b.one)"
