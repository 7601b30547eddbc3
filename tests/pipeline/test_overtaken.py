"""An output goes on record under a key only if the step of that run wrote it; what it wrote is not lost."""

import os

import pytest

from conftest import IRPA, ran
from ingot.store.records import Store

GGUF = "artifacts/demo.gguf"
KILL = """
    import os, signal
    if not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(int(os.environ["INGOT_PARENT"]), signal.SIGKILL)
"""  # the power of the head fails, just when its step is done
OVERWRITE = """
    import os
    os.environ["INGOT_RUN"] = "another"
    other = gguf.with_name("other")
    other.write_bytes(b"of another run")
    from ingot.base import claim
    claim.leave(gguf, other)
    other.replace(gguf)
"""


def at_the_end_of_the_step(folder, text):
    """Add to what the converter does once its output is in place."""
    script = folder / "scripts/safetensors_to_gguf.py"
    before, last, after = script.read_text().partition("        partial.sha256 = out.finish()\n")
    assert last
    script.write_text(before + last + text + after)


def test_what_another_run_put_there_goes_on_no_record(clone, build, store):
    folder = clone("a")
    at_the_end_of_the_step(folder, OVERWRITE)
    said = build(folder, "--", GGUF, fails=True)
    assert f"{GGUF}: another run put it there, expected this one's; ask for it again" in said
    assert not list(Store(store).records("safetensors_to_gguf"))
    assert not (folder / GGUF).exists()


@pytest.fixture
def orphaned(clone, build):
    """A folder whose Snakemake was killed when a step had put its output in place."""
    folder = clone("a")
    at_the_end_of_the_step(folder, KILL)
    build(folder, "--", GGUF, fails=True)
    assert (folder / GGUF).exists()
    return folder


def test_what_a_step_finished_is_taken_in_by_the_next_run(orphaned, build, store):
    said = build(orphaned, "--", GGUF)
    assert f"{GGUF}: built here before and on no record, taken in" in said
    assert not ran(said) and len(list(Store(store).records("safetensors_to_gguf"))) == 1


def test_it_is_built_again_when_it_was_edited_meanwhile_and_its_times_put_back(
    orphaned, build, store
):
    """It was known by size and modification time, which anybody can set: an edited one went on record."""
    gguf = orphaned / GGUF
    times = gguf.stat()
    with gguf.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"evil")
    os.utime(gguf, ns=(times.st_atime_ns, times.st_mtime_ns))
    said = build(orphaned, "--", GGUF)
    assert ran(said) == {"safetensors_to_gguf"} and "taken in" not in said
    assert not gguf.read_bytes().endswith(b"evil")


def test_it_is_built_again_when_an_input_has_changed_meanwhile(orphaned, build, store, clone):
    catalogue = orphaned / "models.yaml"
    catalogue.write_text(catalogue.read_text().replace("name: Ingot Demo", "name: Another Demo", 1))
    said = build(orphaned, "--", GGUF)
    assert ran(said) == {"safetensors_to_gguf"} and "taken in" not in said
    assert b"Another Demo" in (orphaned / GGUF).read_bytes()[:4096]


def test_it_is_built_again_when_an_input_was_edited_and_put_back(orphaned, build):
    config = orphaned / "models/demo/generation_config.json"
    text = config.read_text()
    config.write_text(text + " ")
    config.write_text(text)
    assert ran(build(orphaned, "--", GGUF)) == {"safetensors_to_gguf"}


def test_a_chain_goes_on_from_what_was_taken_in(orphaned, build):
    assert ran(build(orphaned, "--", IRPA)) == {"gguf_to_irpa"}
