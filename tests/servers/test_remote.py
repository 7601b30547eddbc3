"""The shared cache on a real registry: what it saves, and that nothing it does gives a wrong file."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from test_registry import needs_servers, server
from test_signatures import key_pair

import registry as registries
from builds import Run, chain, job
from conftest import ROOT, planned
from ingot.base.refused import Refused
from ingot.driver.cache.contents import Contents
from ingot.driver.cache.remote import cache, entry, remote, settings
from ingot.driver.cache.remote.remote import Remote
from ingot.driver.cache.restore import restore
from ingot.driver.catalogue.job import Graph
from ingot.registry import connection as connections
from ingot.registry import reference, transfer
from ingot.registry.connection import Connection
from ingot.registry.trusted import KEYS, SIGNS
from ingot.store.records import Store

__all__ = ["server"]  # a fixture
pytestmark = needs_servers
LARGE = "0123456789abcdef" * 20_000  # what a tool of ours writes: 320 kB
RIGHT = f"c.two of b.one of source{LARGE}{LARGE}"


def write(path, text):
    return f"{path} of {text}{LARGE}"


class Shared(Run):
    """A build with a shared cache, as the environment says."""

    def __init__(self, graph, store=None):
        if store:
            os.environ["INGOT_STORE"] = str(store)
        super().__init__(graph)
        found = settings.read()
        self.remote = Remote(found, self.contents.store) if found else None
        self.contents.shared.remote = self.remote

    def decide(self):
        decision = super().decide()
        while bad := restore(self.contents, decision):
            self.decider.bad |= bad
            decision = super().decide()
        return decision

    def build(self, write=write):
        super().build(write)
        self.contents.shared.share(
            self.graph.targets
        ) if self.remote and self.remote.writes else None
        if self.remote:
            self.remote.close()
        return self


@pytest.fixture
def proxy(server, folder, monkeypatch):
    """A proxy before the registry, to which a shared cache of this test alone is set; read-only."""
    monkeypatch.setattr(connections, "WAIT", 0.01)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder / "docker"))
    for name in ("CI", settings.POLICY, settings.TRUST, "XDG_RUNTIME_DIR", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    _, public = key_pair(folder)
    with registries.Proxy(server) as found:
        monkeypatch.setenv(
            settings.NAME, f"oci://{found.host}/{folder.name.replace('_', '-').lower()}"
        )
        monkeypatch.setenv(KEYS, str(public))
        monkeypatch.setenv(SIGNS, str(folder / "key.pem"))
        yield found


@pytest.fixture
def warm(proxy, folder, monkeypatch):
    """The chain was built by another store, with a shared cache; and all of it is gone here."""
    monkeypatch.setenv(settings.POLICY, settings.WRITE)
    assert Shared(chain(), folder / "first").build().ran == ["b.one", "c.two"]
    monkeypatch.setenv(settings.POLICY, settings.READ)
    clear()
    proxy.seen.clear()
    return proxy


def clear():
    for name in ("b.one", "c.two"):
        Path(name).unlink(missing_ok=True)


def asked(proxy):
    """What was asked of the registry: m manifests, b blobs; with the method unless it is GET."""
    return [
        f"{'' if method == 'GET' else method + ' '}{'manifest' if 'manifests/' in path else 'blob'}"
        for method, path, _ in proxy.seen if path != "/v2/"
    ]  # fmt: skip


def test_an_empty_store_gets_a_target_by_one_record_and_one_blob(warm, folder):
    assert Shared(chain(), folder / "second").build().ran == []
    assert Path("c.two").read_text() == RIGHT and not Path("b.one").exists()
    assert asked(warm) == ["manifest", "blob"]
    warm.seen.clear()
    assert Shared(chain(), folder / "second").build().ran == []
    assert asked(warm) == []  # it is here


def test_a_dry_run_looks_and_leaves_nothing(warm, folder):
    os.environ["INGOT_STORE"] = str(folder / "second")
    contents = Contents(chain(), Store(), dry=True)
    contents.shared.remote = Remote(settings.read(), contents.store, looks=True)
    from ingot.driver.cache.decide import Decider

    decision = Decider(contents).decide()
    assert [list(files) for files in decision.restore.values()] == [["c.two"]] and not decision.run
    assert asked(warm) == ["manifest"] and not (folder / "second/actions").exists()


def blobs(server, folder):
    """The registry's files of the two outputs, by the path that was built."""
    found = {}
    for pointer in (folder / "first/actions").glob("*/*"):
        (output,) = Store(folder / "first").read(pointer).outputs
        found[output["title"]] = server.blob(output["digest"])
    return found


def test_an_evicted_blob_is_built_again_in_the_same_run(warm, server, folder, capsys):
    blobs(server, folder)["c.two"].unlink()
    assert Shared(chain(), folder / "second").build().ran == ["c.two"]
    assert Path("c.two").read_text() == RIGHT
    assert "c.two: not restored (" in capsys.readouterr().err
    blobs(server, folder)["b.one"].unlink()
    clear()
    assert Shared(chain(), folder / "third").build().ran == ["b.one", "c.two"]
    assert Path("c.two").read_text() == RIGHT


def test_the_same_bytes_by_another_way_end_the_matter(warm, folder):
    Path("a.txt").write_text("changed, to no effect")
    same = {"b.one": f"b.one of source{LARGE}"}
    found = Shared(chain(), folder / "second").build(lambda path, text: same.get(path, "wrong"))
    assert found.ran == ["b.one"] and Path("c.two").read_text() == RIGHT


def test_another_parameter_source_or_code_is_no_hit(warm, folder):
    assert Shared(chain(mode="slow"), folder / "second").build().ran == ["b.one"]  # of equal bytes
    Path("a.txt").write_text("other")
    clear()
    assert Shared(chain(), folder / "third").build().ran == ["b.one", "c.two"]
    assert Path("c.two").read_text() == RIGHT.replace("source", "other")


def test_a_source_that_changes_meanwhile_is_in_no_recipe(proxy, folder, monkeypatch):
    monkeypatch.setenv(settings.POLICY, settings.WRITE)

    def meddle(path, text):
        if path == "b.one":
            Path("a.txt").write_text("EDITED")
            return write(path, "EDITED")
        return write(path, text)

    Shared(chain(), folder / "first").build(meddle)
    Path("a.txt").write_text("source")
    clear()
    monkeypatch.setenv(settings.POLICY, settings.READ)
    assert Shared(chain(), folder / "second").build().ran == ["b.one", "c.two"]
    assert Path("c.two").read_text() == RIGHT


def both():
    """The chain, of which both files are asked for."""
    graph = chain()
    graph.targets, graph.target_files = list(graph.jobs), {"b.one", "c.two"}
    return graph


def test_what_rests_on_a_file_that_is_built_again_is_decided_again(warm, server, folder):
    blobs(server, folder)["b.one"].unlink()
    other = {"b.one": "b.one, by a tool that never writes the same twice"}
    found = Shared(both(), folder / "second").build(
        lambda path, text: other.get(path, f"{path} of {text}")
    )
    assert found.ran == ["b.one", "c.two"]
    assert Path("c.two").read_text() == f"c.two of {other['b.one']}"


def test_targets_of_one_run_agree_though_one_was_known_by_recipe_alone(warm, server, folder):
    """b.one does not come and is built as other bytes: c.two, which came, is of what it had been."""
    clear()
    Shared(chain(), folder / "second").build()  # c.two, by its recipe
    blobs(server, folder)["b.one"].unlink()
    found = Shared(both(), folder / "second").build(lambda path, text: f"{path}, other, {text}")
    assert found.ran == ["b.one", "c.two"]
    assert Path("c.two").read_text().startswith("c.two, other, b.one, other")


def test_a_read_only_rest_of_a_killed_run_is_no_obstacle(warm, folder):
    found = Shared(chain(), folder / "second")
    output = next(iter(found.decider.decide().restore.values()))["c.two"]
    blob = found.contents.store.blob(output["digest"])
    rest = blob.with_name(f".{blob.name}.coming")
    rest.write_text(RIGHT[:1000])
    rest.chmod(0o444)
    found.remote.fetch(output, "c.two")
    assert found.contents.store.has(output["digest"]) and not rest.exists()


def test_a_forced_job_is_followed_by_what_rests_on_it_though_that_was_fetched(warm, folder):
    Shared(chain(), folder / "second").build()
    os.environ[settings.POLICY] = settings.OFF
    found = Shared(chain(forced=["b.one"]), folder / "second").build(
        lambda path, text: f"{path}, {text}"
    )
    assert found.ran == ["b.one", "c.two"]


def test_a_record_of_our_own_is_not_replaced(warm, folder):
    os.environ[settings.POLICY] = settings.OFF
    Shared(chain(), folder / "second").build(
        lambda path, text: write(path, text) + "ours" * (path == "c.two")
    )
    os.environ[settings.POLICY] = settings.READ
    ours = Path("c.two").read_text()
    for pointer in (folder / "second/actions/make_one").iterdir():
        pointer.unlink()
    clear()
    assert Shared(chain(), folder / "second").build().ran == []
    assert Path("c.two").read_text() == ours


def test_a_registry_that_takes_no_writes_is_still_read(warm, folder, monkeypatch, capsys):
    monkeypatch.setenv(settings.POLICY, settings.WRITE)
    warm.fault("POST", "blobs/uploads/", times=99, status=405)
    Path("a.txt").write_text("other")
    found = Shared(chain(), folder / "second").build()
    assert found.ran == ["b.one", "c.two"] and not found.remote.why_not
    assert len([method for method, *_ in warm.seen if method == "POST"]) <= transfer.WORKERS
    said = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("shared cache")
    ]
    assert said == [
        f"shared cache: {warm.host} takes no writes (405), so nothing is sent in this run; set "
        f"{settings.POLICY}={settings.READ}"
    ]


def test_a_recipe_ends_with_its_record(warm, folder):
    store = Shared(chain(), folder / "second").build().contents.store
    (recipe,) = (folder / "second/recipes").glob("*/*")
    store.drop_recipes()
    assert recipe.exists()
    next((folder / "second/actions").glob("make_two/*")).unlink()
    store.drop_recipes()
    assert not recipe.exists()


def test_a_record_comes_with_what_explains_it(warm, folder):
    found = Shared(chain(), folder / "second").build()
    (record,) = [one for one in found.contents.store.records() if one.rule == "make_two"]
    assert found.contents.store.config(record)["fields"]["rule"] == "make_two"
    assert asked(warm) == ["manifest", "blob"]


FAULTS = {
    "a flipped record": ("GET", "manifests/re-", {"flip": 200}),
    "half a record": ("GET", "manifests/re-", {"cut": 100}),
    "an endless record": ("GET", "manifests/", {"endless": True}),
    "no record's form": ("GET", "manifests/", {"body": b'{"schemaVersion": 2}'}),
    "no json": ("GET", "manifests/", {"body": b"<html>"}),
    "an odd challenge": (
        "GET",
        "manifests/",
        {"status": 401, "headers": {"WWW-Authenticate": 'Bearer realm="https://[",service="x"'}},
    ),
    "no answers": ("GET", "manifests/", {"status": 503}),
    "not allowed": ("GET", "manifests/", {"status": 403}),
    "a flipped blob": ("GET", "blobs/", {"flip": 5}),
    "half a blob": ("GET", "blobs/", {"cut": 1000}),
    "a longer blob": ("GET", "blobs/", {"extra": 7}),
    "an endless blob": ("GET", "blobs/", {"endless": True}),
    "no blob": ("GET", "blobs/", {"status": 404}),
    "too many requests": ("GET", "blobs/", {"status": 429, "headers": {"Retry-After": "0"}}),
    "a slow blob": ("GET", "blobs/", {"slow": 20_000}),
    "a slow record": ("GET", "manifests/", {"delay": 0.6}),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_whatever_the_registry_does_the_right_file_is_built(
    fault, warm, folder, monkeypatch, capsys
):
    monkeypatch.setattr(remote, "SILENCE", 0.5)
    monkeypatch.setattr(transfer, "SETTLED", 0.5)
    method, pattern, what = fault
    warm.fault(method, pattern, times=99, **what)
    Shared(chain(), folder / "second").build()
    assert Path("c.two").read_text() == RIGHT
    said = capsys.readouterr().err
    assert "shared cache: " in said or "it is built again" in said
    assert not list((folder / "second").rglob("*.coming")) or "cut" in what or "slow" in what


def test_a_registry_whose_answer_drips_holds_nobody_up(warm, folder, monkeypatch, capsys):
    """A byte now and then breaks no silence: in the body, and in the head of the answer."""
    monkeypatch.setattr(remote, "PATIENCE", 1.0)
    for where in ("body", "head"):
        warm.fault("GET", "manifests/", times=9, drip=where)
        Shared(chain(), folder / where).build()
        assert Path("c.two").read_text() == RIGHT
        assert "takes more than 1 s to answer" in capsys.readouterr().err
        warm.faults.clear()


def test_a_registry_that_asks_for_a_long_wait_is_waited_for_a_short_one(warm, folder, monkeypatch):
    monkeypatch.setattr(remote, "SILENCE", 0.2)
    asked_for, slept, pause = {"Retry-After": "60"}, [], connections.pause
    warm.fault("GET", "blobs/", times=99, status=429, headers=asked_for)
    monkeypatch.setattr(connections, "pause", lambda *words: slept.append(pause(*words)) or 0)
    Shared(chain(), folder / "second").build()
    assert Path("c.two").read_text() == RIGHT and slept and max(slept) <= 0.2


def records(proxy):
    """(tag, index) of all that was looked up under a recipe or a key."""
    place = reference.parse(os.environ[settings.NAME])
    found = Connection(place, "pull,push")
    tags = json.loads(found.ask("GET", f"{place.repository}/tags/list", (200,)).content)["tags"]
    return found, {tag: transfer.get_manifest(found, tag)[0] for tag in tags}


def moved(proxy):
    """Each tag names another tag's record."""
    found, known = records(proxy)
    names = sorted(known)
    for tag, other in zip(names, names[1:] + names[:1], strict=True):
        transfer.put_manifest(found, known[other], tag)


def forged(proxy):
    """A record that names other bytes, well formed in all, and not signed again."""
    found, known = records(proxy)
    evil = transfer.of_bytes(b"evil")
    transfer.push(found, [evil])
    for tag, index in known.items():
        manifest = transfer.get_manifest(found, index["manifests"][0]["digest"])[0]
        outputs = json.loads(manifest["annotations"]["ingot.outputs"])
        for one in (manifest["layers"][0], outputs[0]):
            one.update(digest=evil.digest, size=4)
        manifest["annotations"]["ingot.outputs"] = json.dumps(outputs, sort_keys=True)
        digest, size = transfer.put_manifest(found, manifest)
        text = entry.canonical(manifest)
        index["manifests"][0].update(
            digest=digest, size=size, data=entry.base64.b64encode(text).decode()
        )
        transfer.put_manifest(found, index, tag)


@pytest.mark.parametrize("poison", [moved, forged])
def test_a_poisoned_cache_is_not_believed(poison, warm, folder, capsys):
    poison(warm)
    assert Shared(chain(), folder / "second").build().ran == ["b.one", "c.two"]
    assert Path("c.two").read_text() == RIGHT
    assert "not taken" in capsys.readouterr().err


def test_records_of_another_signer_count_for_nothing(warm, folder, monkeypatch, capsys):
    _, public = key_pair(folder, "other")
    monkeypatch.setenv(KEYS, str(public))
    assert Shared(chain(), folder / "second").build().ran == ["b.one", "c.two"]
    assert "no signature of a trusted key" in capsys.readouterr().err


def test_a_site_may_trust_its_registry_instead(proxy, folder, monkeypatch):
    monkeypatch.delenv(KEYS)
    monkeypatch.delenv(SIGNS)
    with pytest.raises(Refused, match="nobody's records are trusted"):
        settings.read()
    monkeypatch.setenv(settings.TRUST, settings.REGISTRY)
    monkeypatch.setenv("CI", "true")  # which writes
    Shared(chain(), folder / "first").build()
    clear()
    assert Shared(chain(), folder / "second").build().ran == []
    assert Path("c.two").read_text() == RIGHT


@pytest.mark.parametrize(
    "change, said",
    [
        ({settings.POLICY: "writes"}, "expected read-only, read-write or off"),
        ({settings.TRUST: "yes"}, "expected registry or nothing"),
        ({settings.NAME: "oci://h/a:1"}, "expected no tag"),
        ({settings.NAME: "h/a"}, "no reference, expected oci://"),
        ({settings.POLICY: settings.WRITE, SIGNS: ""}, "INGOT_SIGNING_KEY: missing"),
        ({KEYS: "/nowhere"}, "no such file, expected PEM of P-256"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(change, said, proxy, monkeypatch):
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Refused, match=said):
        settings.read()


def test_a_dry_run_in_ci_needs_no_private_key(warm, folder, monkeypatch):
    monkeypatch.setenv("CI", "true")
    for name in (SIGNS, settings.POLICY):
        monkeypatch.delenv(name)
    remote = cache.shared(Store(folder / "second"), looks=True)
    assert remote and not remote.writes
    with pytest.raises(Refused, match="INGOT_SIGNING_KEY: missing"):
        cache.shared(Store(folder / "second"), looks=False)


def test_read_only_writes_nothing_and_off_asks_nothing(proxy, folder, monkeypatch):
    Shared(chain(), folder / "first").build()
    assert proxy.seen and not [one for one in proxy.seen if one[0] != "GET"]
    proxy.seen.clear()
    monkeypatch.setenv(settings.POLICY, settings.OFF)
    Shared(chain(mode="slow"), folder / "first").build()
    assert not proxy.seen


def test_what_was_built_before_is_sent_when_it_is_asked_for(proxy, folder, monkeypatch):
    monkeypatch.setenv(settings.POLICY, settings.OFF)
    Shared(chain(), folder / "first").build()
    monkeypatch.setenv(settings.POLICY, settings.WRITE)
    assert Shared(chain(), folder / "first").build().ran == []
    clear()
    assert Shared(chain(), folder / "second").build().ran == []
    proxy.seen.clear()
    Shared(chain(), folder / "first").build()
    assert asked(proxy) == ["manifest"]  # it is there: one question for the target, and no more


@pytest.mark.parametrize(
    "fault",
    [("PUT", "uploads", {"status": 507}), ("POST", "uploads", {"status": 500}),
     ("PUT", "manifests", {"status": 403}), ("PUT", "uploads", {"cut_upload": 10})],
)  # fmt: skip
def test_a_registry_that_takes_nothing_stops_no_build(fault, proxy, folder, monkeypatch, capsys):
    monkeypatch.setenv(settings.POLICY, settings.WRITE)
    method, pattern, what = fault
    proxy.fault(method, pattern, times=99, **what)
    assert Shared(chain(), folder / "first").build().ran == ["b.one", "c.two"]
    assert capsys.readouterr().err.count("shared cache: left alone in this run") == 1


def test_a_registry_that_is_not_there_is_said_once(proxy, folder, monkeypatch, capsys):
    monkeypatch.setenv(settings.NAME, f"oci://127.0.0.1:{registries.free_port()}/a")
    assert Shared(chain(), folder / "first").build().ran == ["b.one", "c.two"]
    assert capsys.readouterr().err.count("shared cache: left alone in this run") == 1


def many(count):
    jobs = [job("a.txt", f"b{number}.one", mode=f"m{number}") for number in range(count)]
    files = {one.writes[0] for one in jobs}
    return Graph(jobs=jobs, needs={one: {} for one in jobs}, targets=jobs, target_files=files)


def test_targets_are_looked_up_at_once_and_each_only_once(proxy, folder):
    proxy.fault("GET", "manifests/", times=99, together=threading.Barrier(4))
    Shared(many(8), folder / "first").decide()
    assert len(asked(proxy)) == 8


def test_what_a_cut_left_is_gone_on_with_by_the_next_run(warm, folder):
    warm.fault("GET", "blobs/", cut=200_000)
    warm.fault("GET", "blobs/", times=2, cut=0)
    found = Shared(chain(), folder / "second")
    output = next(iter(found.decider.decide().restore.values()))["c.two"]
    with pytest.raises(Refused, match="was cut 3 times"):
        found.remote.fetch(output, "c.two")
    warm.seen.clear()
    assert Shared(chain(), folder / "second").build().ran == []
    (asked_for,) = [headers.get("Range") for _, path, headers in warm.seen if "blobs/" in path]
    assert asked_for == "bytes=200000-"
    assert Path("c.two").read_text() == RIGHT
    assert not list((folder / "second").rglob("*.coming"))


def test_two_runs_that_want_one_blob_fetch_it_once(warm, folder):
    warm.fault("GET", "blobs/", times=9, delay=0.3)
    runs = [Shared(chain(), folder / "second") for _ in range(2)]
    output = next(iter(runs[0].decider.decide().restore.values()))["c.two"]
    warm.seen.clear()
    threads = [threading.Thread(target=one.remote.fetch, args=(output, "c.two")) for one in runs]
    for one in threads:
        one.start()
    for one in threads:
        one.join(20)
    assert len([1 for _, path, _ in warm.seen if "blobs/" in path]) == 1
    assert runs[0].contents.store.has(output["digest"])


def test_no_secret_and_no_path_of_this_machine_is_sent(warm, server, folder):
    secret = (folder / "key.pem").read_bytes().splitlines()[1]
    for place in (server.folder / "data").rglob("*"):
        if place.is_file():
            text = place.read_bytes()
            assert secret not in text and str(folder).encode() not in text, place


def test_a_run_that_fails_shares_what_it_built(server, snakemake, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(ROOT / "models/demo", broken)
    shard = broken / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    entry = {"path": str(broken), "name": "B", "architecture": "LlamaForCausalLM"}
    entry |= {"pre_tokenizer": "llama-bpe"}
    (tmp_path / "own.yaml").write_text(json.dumps({"models": {"broken": entry}}))
    cache = {
        settings.NAME: f"oci://{server.host}/failing", settings.TRUST: settings.REGISTRY,
        settings.POLICY: settings.WRITE,
    }  # fmt: skip
    words = ("--configfile", "own.yaml", "--keep-going", "--")
    names = ("artifacts/demo.gguf", "artifacts/broken.gguf", "artifacts/demo.bf16.gguf")
    done = snakemake(tmp_path, *words, *names, environment=cache)
    assert done.returncode and "shared cache: 23." in done.stderr, done.stderr
    (tmp_path / "fresh").mkdir()
    done = snakemake(tmp_path / "fresh", "-n", "--", names[0], names[2], environment=cache)
    assert planned(done.stderr) == dict.fromkeys((names[0], names[2]), ("", "")), done.stderr
