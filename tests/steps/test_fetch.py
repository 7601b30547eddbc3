"""Fetching from the hub: every byte checked, every fault healed or named in one line."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from conftest import ROOT
from fake_hub import COMMIT, Hub, described
from ingot.model.hub import client, download, session

LARGE = "model.safetensors"
WEIGHTS = os.urandom(5_000_000)
LISTED: dict[str, bytes] = {}  # what the step wrote of the same files


@pytest.fixture
def hub(tmp_path):
    folder = tmp_path / "hub/org/name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}')
    (folder / LARGE).write_bytes(WEIGHTS)
    with Hub(tmp_path / "hub") as running:
        yield running


@pytest.fixture
def list_files(step, hub, tmp_path):
    def run(revision=COMMIT, token="secret", **environment):
        return step(
            "hub", "fetch_listing.py", "--model", "m", "--hub", "org/name", "--revision", revision,
            "--revisions", tmp_path / "models.lock.json", "--listing", tmp_path / "m/listing.json",
            "--backoff", "0.01",
            environment={"HF_ENDPOINT": hub.url, "HF_TOKEN": token, **environment},
        )  # fmt: skip

    return run


@pytest.fixture
def fetch(step, hub, list_files, tmp_path):
    def run(name=LARGE, token="secret", listed=True, **environment):
        listing = tmp_path / "m/listing.json"
        if listed and not listing.exists():
            files = str(
                [(path.name, described(path)) for path in (hub.root / "org/name").iterdir()]
            )
            if files in LISTED:
                listing.parent.mkdir(exist_ok=True)
                listing.write_bytes(LISTED[files])
            else:
                done = list_files()
                assert done.returncode == 0, done.stderr
                LISTED[files] = listing.read_bytes()
        return step(
            "hub", "fetch_file.py", "--listing", listing,
            "--name", name, "--file", tmp_path / "m" / name, "--backoff", "0.01",
            environment={"HF_ENDPOINT": hub.url, "HF_TOKEN": token, **environment},
        )  # fmt: skip

    return run


def whole(hub, tmp_path, name=LARGE):
    return (tmp_path / "m" / name).read_bytes() == (hub.root / "org/name" / name).read_bytes()


def one_line(done, *words):
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert all(word in last for word in words), last


def nothing_left(tmp_path, name=LARGE):
    assert not (tmp_path / "m" / name).exists()


def test_fetches_a_large_and_a_small_file_at_the_pinned_commit(hub, fetch, tmp_path):
    for name in (LARGE, "config.json"):
        done = fetch(name)
        assert done.returncode == 0, done.stderr
        assert whole(hub, tmp_path, name)
    assert all(f"/resolve/{COMMIT}/" in r[1] for r in hub.requests if "/resolve/" in r[1])
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "config.json", "listing.json", LARGE,
    ]  # fmt: skip


def test_the_listing_holds_the_hubs_own_hashes(hub, list_files, tmp_path):
    assert list_files().returncode == 0
    files = json.loads((tmp_path / "m/listing.json").read_bytes())["files"]
    assert files[LARGE]["sha256"] == described(hub.root / "org/name" / LARGE)["sha256"]
    assert files["config.json"]["git_sha1"] == described(hub.root / "org/name/config.json")["git"]


def test_the_first_fetch_records_the_revision_and_later_ones_keep_it(hub, list_files, tmp_path):
    assert list_files(revision="").returncode == 0
    lock = json.loads((tmp_path / "models.lock.json").read_bytes())
    assert lock == {"m": {"hub": "org/name", "revision": COMMIT}}
    assert list((tmp_path / "m").iterdir()) == [tmp_path / "m/listing.json"]
    asked = len([r for r in hub.requests if r[1] == "/api/models/org/name"])
    assert list_files(revision="").returncode == 0
    assert len([r for r in hub.requests if r[1] == "/api/models/org/name"]) == asked


@pytest.mark.parametrize("status", [401, 403])
def test_gated_says_what_to_accept_and_where_the_token_goes(status, hub, fetch, tmp_path):
    hub.faults["gated"] = status
    one_line(fetch(), f"gated (HTTP {status})", f"{hub.url}/org/name", "HF_TOKEN")
    nothing_left(tmp_path)


def test_gated_without_a_token_stops_before_any_request(hub, step, tmp_path):
    done = step(
        "hub", "fetch_listing.py", "--model", "m", "--hub", "org/name", "--gated=True",
        "--revisions", tmp_path / "models.lock.json", "--listing", tmp_path / "m/listing.json",
        environment={"HF_ENDPOINT": hub.url},
    )  # fmt: skip
    one_line(done, "gated, and no token is set", f"{hub.url}/org/name", "HF_TOKEN")
    assert hub.requests == []


def test_404_of_a_file_names_it_and_the_catalogue(hub, fetch, tmp_path):
    hub.faults["lost"] = LARGE
    one_line(fetch(), f"org/name/{LARGE}: no such file at this revision", "shards:")
    one_line(fetch("model-00009-of-00009.safetensors"), "not among the files", "shards:")


def test_404_of_a_revision_and_of_a_model(hub, list_files, step, tmp_path):
    one_line(list_files(revision="f" * 40), "org/name: no such revision", "name a commit of it")
    (hub.root / "org/name").rename(hub.root / "org/gone")
    one_line(list_files(), "org/name: no such model, or a private one", "HF_TOKEN")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_429_and_5xx_that_heal(status, hub, fetch, list_files, tmp_path):
    hub.faults["api"] = [status, 2]
    assert list_files().returncode == 0
    hub.faults["status"] = [status, 2]
    done = fetch()
    assert done.returncode == 0, done.stderr
    assert f"HTTP {status}; trying again" in done.stderr
    assert whole(hub, tmp_path)


def test_a_5xx_that_does_not_heal_ends_after_a_bounded_number_of_tries(hub, fetch, tmp_path):
    hub.faults["status"] = 503
    one_line(fetch(), "HTTP 503, 6 times in a row", "resumes")
    assert len(hub.bodies(LARGE)) == 6
    nothing_left(tmp_path)


def test_a_hub_that_cannot_be_reached_is_named(list_files, fetch):
    assert list_files().returncode == 0
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:1"}
    for done in (list_files(**nowhere), fetch(**nowhere)):
        one_line(done, "org/name", ": 127.0.0.1:1: ", "refused, 6 times in a row", "resumes")
        assert done.stderr.count("127.0.0.1:1: ") == 6 and "; trying again in" in done.stderr


def test_a_connection_reset_in_mid_body_goes_on_from_there(hub, fetch, tmp_path):
    hub.faults.update(cut=[3_000_000, 1], reset=True)
    done = fetch()
    assert done.returncode == 0, done.stderr
    assert whole(hub, tmp_path)
    first, second = hub.bodies(LARGE)
    assert first[2] is None and int(second[2].removeprefix("bytes=").rstrip("-")) > 1_000_000


def test_a_body_cut_short_goes_on_from_there(hub, fetch, tmp_path):
    hub.faults["cut"] = [1_500_000, 3]
    assert fetch().returncode == 0
    assert whole(hub, tmp_path)
    assert len(hub.bodies(LARGE)) == 4


def test_a_server_without_ranges_is_read_from_the_start(hub, fetch, tmp_path):
    hub.faults.update(cut=[3_000_000, 1], norange=True)
    assert fetch().returncode == 0
    assert whole(hub, tmp_path)


def test_a_server_that_always_cuts_and_has_no_ranges_is_given_up(hub, fetch, tmp_path):
    hub.faults.update(cut=3_000_000, norange=True)
    one_line(fetch(), "6 times in a row", "resumes")
    assert len(hub.bodies(LARGE)) == 6
    nothing_left(tmp_path)


def test_a_body_that_is_too_long_is_given_up(hub, fetch, tmp_path):
    hub.faults["longer"] = 100
    one_line(fetch(), "more than 5000000 bytes came, 6 times in a row")
    nothing_left(tmp_path)


def test_a_flipped_byte_is_fetched_again(hub, fetch, tmp_path):
    hub.faults["flip"] = [True, 1]
    done = fetch()
    assert done.returncode == 0
    assert "256-bit hash" in done.stderr
    assert whole(hub, tmp_path)


@pytest.mark.parametrize("name", [LARGE, "config.json"])
def test_a_byte_that_stays_flipped_is_refused(name, hub, fetch, tmp_path):
    hub.faults["flip"] = True
    one_line(fetch(name), name, "expected", "the hub's copy is damaged")
    nothing_left(tmp_path, name)


def test_a_wrong_size_is_refused_before_any_byte(hub, fetch, tmp_path):
    hub.faults["badsize"] = 7
    one_line(fetch(), "the hub says size 5000007, its listing 5000000")
    assert not hub.bodies(LARGE)


def test_another_commit_than_the_pinned_one_is_refused(hub, fetch, tmp_path):
    hub.faults["moved"] = "f" * 40
    one_line(fetch(), f"the hub says commit {'f' * 40}, its listing {COMMIT}")


def test_the_token_does_not_go_to_the_host_that_a_redirect_names(hub, fetch):
    assert fetch().returncode == 0
    assert fetch("config.json").returncode == 0
    to_large = {r[3] for r in hub.requests if r[1].startswith("/large/")}
    to_hub = {r[3] for r in hub.requests if r[1].startswith(("/org/", "/api/models/"))}
    assert to_large == {None}
    assert to_hub == {"Bearer secret"}


@pytest.mark.parametrize("name", ["../up.json", "/etc/x.json", "a/../../x.json", "..\\x.json"])
def test_a_file_name_that_tries_to_leave_the_folder(name, hub, list_files, tmp_path):
    hub.faults["badpath"] = name
    one_line(list_files(), "leaves its folder")
    assert not (tmp_path / "m").exists() or not list((tmp_path / "m").iterdir())


def test_two_fetches_at_once_transfer_the_file_once(hub, fetch, list_files, python, tmp_path):
    assert list_files().returncode == 0
    hub.faults["slow"] = 0.1
    processes = [start(hub, python, tmp_path) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert whole(hub, tmp_path)
    assert len(hub.bodies(LARGE)) == 1


def start(hub, python, tmp_path):
    return subprocess.Popen(
        [python("hub"), ROOT / "scripts/fetch_file.py", "--listing", tmp_path / "m/listing.json",
         "--name", LARGE, "--file", tmp_path / "m" / LARGE, "--backoff", "0.01"],
        env={"HF_ENDPOINT": hub.url, "HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )  # fmt: skip


def test_sigkill_in_mid_download_then_resume_in_another_process(
    hub, fetch, list_files, python, tmp_path
):
    assert list_files().returncode == 0
    hub.faults["slow"] = 1.0
    process = start(hub, python, tmp_path)
    end = time.monotonic() + 30
    while time.monotonic() < end and partial_size(tmp_path) < 2_000_000:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    kept = partial_size(tmp_path)
    assert 2_000_000 <= kept < 5_000_000
    nothing_left(tmp_path)
    hub.faults.clear()
    done = fetch()
    assert done.returncode == 0, done.stderr
    assert f"bytes={kept}-" in [request[2] for request in hub.bodies(LARGE)]
    assert whole(hub, tmp_path)


def partial_size(tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "m").glob(".*.partial"))


def test_a_pickle_is_refused_with_the_reason(hub, list_files):
    (hub.root / "org/name" / LARGE).rename(hub.root / "org/name/pytorch_model.bin")
    one_line(list_files(), "no *.safetensors", "pickled weights can run code")


def test_offline_says_so(hub, fetch, list_files):
    assert list_files().returncode == 0
    one_line(fetch(HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE is set", "path:")


@pytest.mark.slow
def test_the_rules_fetch_each_file_once_and_build_from_them(hub, snakemake, tmp_path):
    import checkpoints

    checkpoints.llama31(hub.root / "org/tiny")
    (tmp_path / "mine.yaml").write_text(
        "models: {tiny: {hub: org/tiny, shards: 2, name: Tiny, architecture: LlamaForCausalLM,"
        " pre_tokenizer: llama-bpe}}"
    )
    words = ["--configfile", "mine.yaml", "--", "artifacts/tiny.gguf"]
    done = snakemake(tmp_path, *words, environment={"HF_ENDPOINT": hub.url, "HF_TOKEN": ""})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "artifacts/tiny.gguf").exists()
    assert len(hub.bodies("model-00001-of-00002.safetensors")) == 1
    lock = json.loads((tmp_path / "models.lock.json").read_bytes())
    assert lock["tiny"]["revision"] == COMMIT
    shard = tmp_path / "artifacts/tiny.hf/model-00001-of-00002.safetensors"
    listing = json.loads((tmp_path / "artifacts/tiny.hf/listing.json").read_bytes())
    found = hashlib.sha256(shard.read_bytes()).hexdigest()
    assert found == listing["files"][shard.name]["sha256"]


@pytest.mark.slow
def test_a_moved_revision_fetches_only_the_files_that_changed(hub, snakemake, tmp_path):
    import checkpoints

    place = checkpoints.llama31(hub.root / "org/tiny")
    second = hub.root / f"org/tiny@{'2' * 40}"
    shutil.copytree(place, second)
    shard = "model-00002-of-00002.safetensors"
    data = (second / shard).read_bytes()
    (second / shard).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    def build(revision):
        (tmp_path / "mine.yaml").write_text(
            f"models: {{tiny: {{hub: org/tiny, revision: '{revision}', shards: 2, name: Tiny,"
            " architecture: LlamaForCausalLM, pre_tokenizer: llama-bpe}}"
        )
        words = ["--configfile", "mine.yaml", "--", "artifacts/tiny.gguf"]
        done = snakemake(tmp_path, *words, environment={"HF_ENDPOINT": hub.url, "HF_TOKEN": ""})
        assert done.returncode == 0, done.stderr
        return (tmp_path / "artifacts/tiny.gguf").read_bytes()

    first = build(COMMIT)
    assert build("2" * 40) != first
    assert len(hub.bodies("model-00001-of-00002.safetensors")) == 1
    assert len(hub.bodies(shard)) == 2
    asked = len(hub.requests)
    assert build(COMMIT) == first
    assert len(hub.requests) == asked  # a pinned revision is on record: the hub is not asked


def changed(**fields):
    return lambda entries: [{**entry, **fields} for entry in entries]


def forged(**fields):
    """The weights' entry, its `lfs` changed."""
    return lambda entries: [
        {**entry, "lfs": {**entry["lfs"], **fields}} if "lfs" in entry else entry
        for entry in entries
    ]


NO_LISTING = {
    "a portal's page": (200, {"Content-Type": "text/html"}, b"<html>Log in</html>"),
    "a loop of redirects": (302, {"Location": "/loop"}, b""),
    "a redirect to no address": (302, {"Location": "http://[bad"}, b""),
    "bad gzip": (200, {"Content-Encoding": "gzip"}, b"not gzip"),
    "an object": (200, {}, b'{"a": 1}'),
    "entries that are no objects": (200, {}, b"[1, 2]"),
    "JSON without end": (200, {}, b"[" * 200_000),
    "an error without end": (404, {}, "endless"),
    "a list without end": (200, {}, "endless"),
    "no hash": lambda entries: [{k: v for k, v in e.items() if k != "oid"} for e in entries],
    "a path that is a number": changed(path=5),
    "a path with a cursor's moves": changed(path="\x1b[2Jmodel.safetensors"),
    "a hash that is a path": forged(oid="/home/me/thesis.tex"),
    "a hash that is a number": forged(oid=5),
    "a size that is a text": forged(size="1"),
    "a negative size": forged(size=-1),
}


@pytest.mark.parametrize("fault", NO_LISTING)
def test_what_is_no_listing_ends_in_one_line(fault, hub, list_files, tmp_path):
    hub.faults["tree"] = NO_LISTING[fault]
    victim = tmp_path / "victim"
    victim.write_text("mine")
    done = list_files()
    one_line(done, "org/name: ")
    assert "\x1b" not in done.stderr and len(done.stderr) < 5000
    assert victim.read_text() == "mine" and not (tmp_path / "m/listing.json").exists()


def test_a_listing_edited_by_hand_moves_no_file(hub, fetch, list_files, store, tmp_path):
    assert list_files().returncode == 0
    victim = tmp_path / "victim.tex"
    victim.write_text("mine")
    listing = tmp_path / "m/listing.json"
    content = json.loads(listing.read_bytes())
    content["files"][LARGE]["sha256"] = str(victim)
    listing.write_text(json.dumps(content))
    one_line(fetch(), "listing.json: model.safetensors has the hashes", "expected 64 hex digits")
    assert victim.read_text() == "mine"


def test_an_answer_has_a_limit(hub, list_files):
    hub.faults["tree"] = NO_LISTING["an error without end"]
    one_line(list_files(), f"an answer of more than {session.ERROR >> 10} kB, 6 times in a row")
    assert session.ERROR < session.ANSWER


def test_the_token_goes_to_no_host_that_a_link_names(hub, list_files):
    link = "<http://localhost:{port}/api/models/org/name/tree/x>; rel=next"
    hub.faults["tree"] = [(200, {"Link": link}, b"[]"), 1]
    list_files()
    asked = [(request[1], request[3]) for request in hub.requests]
    assert asked[0][1] == "Bearer secret" and asked[-1] == ("/api/models/org/name/tree/x", None)


def test_nothing_is_asked_of_the_hub_but_what_is_needed(hub, fetch):
    assert fetch().returncode == 0
    assert {request[1].partition("/resolve/")[0] for request in hub.requests} <= {
        f"/api/models/org/name/tree/{COMMIT}", "/org/name", f"/large/org/name/{LARGE}",
    }  # fmt: skip


def test_a_small_file_has_gits_own_hash():
    found = download.hasher({"git_sha1": "", "size": 6})
    found.update(b"hello\n")
    assert found.hexdigest() == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object


def test_a_signed_address_is_in_no_message():
    error = OSError("HTTP 410: Gone for url 'http://cdn/x?X-Amz-Signature=SECRET&a=b'\nmore")
    assert client.unsigned(error) == "HTTP 410: Gone for url 'http://cdn/x?...'"


def test_a_transfer_that_drips_is_broken_off(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(client.time, "monotonic", lambda: now[0])
    floor = client.Floor()
    with pytest.raises(client.BrokenTransferError, match="only 60 bytes in a minute"):
        for _ in range(100):
            now[0] += 1
            floor.add(1)
    floor = client.Floor()
    for _ in range(100):
        now[0] += 1
        floor.add(10_000)
