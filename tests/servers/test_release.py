"""The demo as a release, by the real commands: built, published, compared, shown, and built once more."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from test_registry import needs_servers
from test_signatures import key_pair

import registry as registries
from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema
from ingot.driver.commands import diff, release, reproduce, show, verify  # noqa: F401
from ingot.driver.release import (  # noqa: F401 - run by the commands  # noqa: F401
    changes,
    document,
    matrix,
    moved_lock,
    on_record,
    released,
    reproduced,
    shown,
)

pytestmark = needs_servers
MATRIX = """
formats: [irpa]
tp: [2, 4, 8]
variants: [bf16, f16, f32]
cells: [demo.split]
"""
CELLS = 8
CATALOGUE = schema.load(ROOT)
# of each worker of a run its own: they share a store, and one would find what another built
SPLIT = f"{4 + int(os.environ.get('PYTEST_XDIST_WORKER', 'gw0')[2:])}M"
OTHER = f"models:\n  demo:\n    split: {SPLIT}\n"


class Site:
    """A working folder, a registry, and two parties' keys."""

    said: str
    again: str
    before: str
    second: str

    def __init__(self, folder: Path, server, store: Path):
        self.folder, self.host, self.store = folder, server.host, store
        self.key, self.public = folder / "key.pem", key_pair(folder)[1]
        self.other, self.others = folder / "other.pem", key_pair(folder, "other")[1]
        (folder / "matrix.yaml").write_text(MATRIX)
        (folder / "other.yaml").write_text(OTHER)

    def at(self, tag: str) -> str:
        return f"oci://{self.host}/release:{tag}"

    def ingot(self, *words, status=0) -> str:
        done = subprocess.run(
            [str(word) for word in (ROOT / ".venv/bin/ingot", *words)],
            cwd=self.folder, env={**os.environ, "INGOT_STORE": str(self.store)},
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr[-2000:]
        assert str(self.key) not in done.stdout
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory, shared):
    folder = tmp_path_factory.mktemp("release")
    with registries.Registry(folder / "registry") as server:
        found = Site(folder, server, shared.store)
        options = ("--to", f"oci://{server.host}/release", "--matrix", "matrix.yaml")
        found.said = found.ingot("release", "demo@1.0", *options, "--key", found.key)
        found.again = found.ingot("release", "demo@1.0", *options, "--key", found.key)
        changed = (*options, "--configfile", "other.yaml")
        found.before = found.ingot(
            "diff", found.at("1.0"), ".", "--configfile", "other.yaml", status=1
        )
        found.second = found.ingot("release", "demo@1.1", *changed, "--key", found.key)
        yield found


def last(text: str) -> str:
    return [line for line in text.splitlines() if line.startswith("oci://")][-1]


def test_a_release_is_its_cells_with_their_numbers(site):
    assert f": {CELLS} cells, " in last(site.said)
    (row,) = [line for line in site.said.splitlines() if line.startswith("demo_tp8.irpa ")]
    assert "tensors 39" in row and float(row.split()[1]) > 11, "with its ranks"
    assert f": {CELLS} cells, 0.0 MB sent" in last(site.again)  # the registry has all of it
    assert (
        last(site.again).split(":")[:4] == last(site.said).split(":")[:4]
    )  # and by the same digest


def test_a_setting_of_one_cell_builds_and_sends_that_cell(site):
    built = [line for line in site.second.splitlines() if line.startswith("done ")]
    assert ["demo.split" in line for line in built] == [True, True]  # and its verification
    sent = float(last(site.second).split("cells, ")[1].split()[0])
    assert 11 < sent < 13  # 11.5 MB, once


def test_a_release_is_verified_cell_by_cell_and_shown_as_a_table(site):
    text = site.ingot("verify", site.at("1.0"), "--key", site.public)
    assert f"a release of {CELLS} cells" in text and text.count("artifact       ") == CELLS
    assert "no signature of a trusted key" in site.ingot(
        "verify", site.at("1.0"), "--key", site.others, status=1
    )
    text = site.ingot("show", site.at("1.0"))
    assert text.count(" MB  ") == CELLS and "tensors_equal 40" in text


def test_diff_names_the_cell_the_field_and_nothing_else(site):
    for text in (site.before, site.ingot("diff", site.at("1.0"), site.at("1.1"), status=1)):
        lines = text.splitlines()
        assert lines[0].startswith("demo.split: ")
        assert "split_gguf: " in lines[1] and "49G" in lines[1] and SPLIT in lines[1]
        assert f"1 of {CELLS} cells differ" in lines[-1]
    assert f"0 of {CELLS}" in site.ingot("diff", site.at("1.0"), "--key", site.public)


def test_a_release_that_somebody_else_signed_is_not_compared(site):
    text = site.ingot("diff", site.at("1.0"), "--key", site.others, status=1)
    assert "no signature of a trusted key" in text


def test_a_cell_is_reproduced_and_signed_by_a_second_party(site):
    place = site.at("1.0-demo_tp2.irpa")
    text = site.ingot("reproduce", place, "--key", site.public, "--sign", site.other)
    assert "artifacts/demo_tp2.irpa: the same, 3 files of every step" in text
    assert "1 of 1 the same bytes" in text and "signed: sha256:" in text
    text = site.ingot("verify", place, "--key", site.public, "--key", site.others)
    assert "verified       against the checkpoint" in text


def test_without_a_key_nothing_is_built(site):
    text = site.ingot("reproduce", site.at("1.0-demo.irpa"), status=1)
    assert "no key to check its provenance with" in text and text.count("\n") == 1
    text = site.ingot("reproduce", site.at("1.1"), "--key", site.others, status=1)
    assert "no signature of a trusted key" in text


def test_a_release_on_another_machine_is_made_of_what_the_shared_cache_has(
    site, tmp_path, monkeypatch
):
    """With every step's code, lock and inputs in its provenance, though none of them ran there."""
    monkeypatch.setenv("INGOT_REMOTE", f"oci://{site.host}/cache")
    monkeypatch.setenv("INGOT_TRUSTED_KEYS", str(site.public))
    monkeypatch.setenv("INGOT_SIGNING_KEY", str(site.key))
    monkeypatch.setenv("INGOT_REMOTE_POLICY", "read-write")
    wanted = ["demo.gguf", "demo.irpa", "demo.irpa.verified.json"]
    for name in wanted:
        done = subprocess.run(
            [ROOT / ".venv/bin/snakemake", "-s", ROOT / "Snakefile", "--", f"artifacts/{name}"],
            cwd=site.folder, env={**os.environ, "INGOT_STORE": str(site.store)}, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    monkeypatch.setenv("INGOT_REMOTE_POLICY", "read-only")
    there = Site(tmp_path, site, tmp_path / "store")
    (tmp_path / "matrix.yaml").write_text("formats: []\ncells: [demo.irpa]\n")
    text = there.ingot(
        "release", "demo@2.0", "--to", f"oci://{site.host}/release", "--matrix", "matrix.yaml",
        "--key", site.key,
    )  # fmt: skip
    assert "1 cells" in last(text) and "\ndone " not in text
    text = site.ingot("verify", site.at("2.0-demo.irpa"), "--key", site.public, "--json")
    steps = json.loads(text)["predicate"]["buildDefinition"]["internalParameters"]["steps"]
    assert [step["rule"] for step in steps] == ["safetensors_to_gguf", "gguf_to_irpa"]
    assert all(step["code"] and step["lock"] and step["inputs"] for step in steps)


def test_a_set_is_pulled_whole_or_a_rank_of_it(site):
    site.ingot("pull", site.at("1.0-demo_tp2.irpa"), "set", "--key", site.public)
    names = ["demo_tp2.irpa", "demo_tp2.rank0.irpa", "demo_tp2.rank1.irpa"]
    assert sorted(path.name for path in (site.folder / "set").iterdir()) == names
    for name in names:
        same = (site.folder / "artifacts" / name).read_bytes()
        assert (site.folder / "set" / name).read_bytes() == same
    site.ingot("pull", site.at("1.0-demo_tp2.irpa"), "one", "--only", "demo_tp2.rank1.irpa")
    assert [path.name for path in (site.folder / "one").iterdir()] == ["demo_tp2.rank1.irpa"]


def test_an_artifact_is_shown_by_its_reference_and_by_its_bytes(site):
    text = site.ingot("show", site.at("1.0-demo.irpa"))
    assert "made by       safetensors_to_gguf → gguf_to_irpa" in text
    assert "with          convert" in text and "model.safetensors.index.json" in text
    assert "verified      against its GGUF file" in text
    (site.folder / "renamed").write_bytes((site.folder / "artifacts/demo.irpa").read_bytes())
    assert "made by       safetensors_to_gguf → gguf_to_irpa" in site.ingot("show", "renamed")
    (site.folder / "mine").write_text("mine")
    assert "is on no record of" in site.ingot("show", "mine", status=1)


def test_a_name_asks_for_publishing_too(site, shared):
    target = "artifacts/demo.irpa.published.json"
    done = shared(site.folder, target)
    assert "no registry to publish to, expected publish: oci://" in done.stderr
    done = shared(site.folder, target, "--config", f"publish=oci://{site.host}/named")
    assert done.returncode == 0, done.stderr
    said = json.loads((site.folder / target).read_text())
    assert said["reference"].startswith(f"oci://{site.host}/named@sha256:")
    assert "demo.irpa" in site.ingot("show", said["reference"])


def test_a_failed_verification_is_refused_by_its_number(site):
    (site.folder / "log").write_text(
        "m.gguf: mean_kl is 0.2, expected at most 0.1; take more bits\n"
    )
    target, status = "artifacts/demo.q4_0.gguf", site.folder / ".ingot/status.json"
    before = status.read_text()
    status.write_text(json.dumps({**json.loads(before), "failed": {target: "log"}}))
    text = site.ingot("publish", target, "--to", site.at("x"), status=1)
    status.write_text(before)
    assert (
        "it failed: m.gguf: mean_kl is 0.2, expected at most 0.1" in text and text.count("\n") == 1
    )


def test_another_checkout_is_not_taken_for_the_one_that_built(site):
    step = {
        "rule": "r",
        "key": "k",
        "outputs": {},
        "code": {"verify_irpa.py": "sha256:1"},
        "lock": {},
    }
    found = reproduced.Recipe("artifacts/m.irpa", {}, [step], "git+" + "1" * 40)
    with pytest.raises(Refused, match=r"scripts/verify_irpa.py: not what .* git checkout 1111"):
        reproduced.same_tools(ROOT, found)


def statement(**changes):
    said = {
        "target": "artifacts/demo.irpa", "model": {"demo": {**DEMO, "name": "M"}},
        "steps": [{"rule": "r", "key": "k", "outputs": {"demo.irpa": "sha256:1"}, "code": {}, "lock": {}}],
    } | changes  # fmt: skip
    return {"predicate": {"buildDefinition": {
        "externalParameters": {"target": said["target"], "model": said["model"]},
        "internalParameters": {"source": "scripts", "steps": said["steps"]}}}}  # fmt: skip


DEMO = CATALOGUE["models"]["demo"]
ODD = {
    "no steps": ({"steps": []}, "no step of its provenance makes demo.irpa"),
    "steps of nothing": (
        {"steps": [{"rule": "r", "key": "k", "outputs": {}, "code": {}, "lock": {}}]},
        "no step of its provenance makes",
    ),
    "another target": ({"target": "artifacts/demo.gguf"}, "says it is 'artifacts/demo.gguf'"),
    "a side effect": ({"target": "artifacts/demo.irpa.published.json"}, "says it is"),
    "an option": ({"target": "--help"}, "says it is '--help'"),
    "another model": ({"model": {"other": DEMO}}, "says it is"),
    "a path outside": ({"model": {"demo": {**DEMO, "path": "/etc"}}}, "names '/etc'"),
    "a path above": (
        {"model": {"demo": {**DEMO, "imatrix": "a/../../b"}}},
        "expected no path outside",
    ),
    "no model": ({"model": "x"}, "model is 'x', expected an object"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_hostile_provenance_builds_nothing(odd):
    change, said = odd
    good = reproduced.recipe("m", statement(), "demo.irpa", CATALOGUE)
    assert reproduced.expected(good) == ""
    with pytest.raises(Refused, match=said):
        reproduced.recipe("m", statement(**change), "demo.irpa", CATALOGUE)


def test_what_is_no_cell_of_a_release_is_refused(tmp_path):
    catalogue = {"models": {"demo": {}}}
    with pytest.raises(Refused, match="unknown model"):
        matrix.cells("none", catalogue, {})
    for text in ("formats: gguf", "tp: [a]", "[1]", "other: [x]", "{"):
        (tmp_path / "m.yaml").write_text(text)
        with pytest.raises(Refused, match=r"expected a list|not YAML"):
            matrix.read(tmp_path / "m.yaml")


def test_a_change_far_up_is_named_once_and_where_it_was_made():
    def fields(rule, **more):
        return {"version": 2, "rule": rule, "command": "c", "params": {}, "wildcards": {},
                "outputs": [], "code": {}, "lock": {}, "inputs": {}, **more}  # fmt: skip

    def made(dtype):
        one = document.Document("m", dtype)
        one.actions = {
            f"a{dtype}": {"rule": "first", "outputs": ["x"],
                          "fields": fields("first", params={"dtype": dtype})},
            f"b{dtype}": {"rule": "second", "outputs": ["y"],
                          "fields": fields("second", inputs={"x": f"recipe:a{dtype}:0"})},
        }  # fmt: skip
        checks = {"mean_kl": 0.1 if dtype == "f16" else 0.2}
        cell = {"recipe": f"b{dtype}", "digest": dtype, "checks": checks}
        one.cells = {"y": cell, "z": cell}
        return one

    found = changes.changes(made("f16"), made("q8"))
    assert [one.title for one in found] == ["y", "z"]
    assert found[0].why == ("first: dtype: 'f16' → 'q8'",)
    assert found[0].numbers == ("mean_kl 0.1 → 0.2",)


def test_a_lock_that_moves_names_the_cells_that_it_would_change(tmp_path):
    with moved_lock.copied(ROOT) as other:
        lock = other / "envs/convert/requirements.lock"
        old = moved_lock.pins(other, "convert")
        lock.write_text(lock.read_text().replace(f"numpy=={old['numpy']}", "numpy==9.9.9"))
        moved = moved_lock.moved(old, moved_lock.pins(other, "convert"))
        wanted = [
            "artifacts/demo.irpa",
            "artifacts/demo_tp1.vmfb",
            "artifacts/demo.fp8_static.safetensors",
        ]
        assert moved == [f"numpy {old['numpy']} → 9.9.9"]
        assert moved_lock.changed(ROOT, other, wanted, None) == ["artifacts/demo.irpa"]
