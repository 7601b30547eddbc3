"""Publishing to a hub, a stand-in: what is uploaded, with which card, and what is refused."""

import json
import os
import subprocess
from types import SimpleNamespace

import pytest
import yaml
from test_registry import needs_servers
from test_release import Site

from conftest import ROOT
from fake_hub import Hub
from ingot.base.refused import Refused
from ingot.driver.catalogue.formats.rows import ROWS
from ingot.driver.catalogue.found import license_of
from ingot.driver.release import card, on_record, to_hub  # noqa: F401 - run by the command
from ingot.driver.toolchains import toolchains
from ingot.model.hub import upload

pytestmark = needs_servers
TOKEN = "hf_secretsecretsecret"
TARGET = "artifacts/demo.bf16.irpa"


@pytest.fixture(scope="module")
def site(tmp_path_factory, shared):
    folder = tmp_path_factory.mktemp("hub")
    done = shared(folder, "--", TARGET, f"{TARGET}.verified.json")
    assert done.returncode == 0, done.stderr
    return Site(folder, SimpleNamespace(host="none"), shared.store)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "hub/me/models").mkdir(parents=True)
    with Hub(tmp_path / "hub") as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield found


def publish(site, status=0):
    words = ("publish", TARGET, "--to", "hf://me/models", "--key", site.key)
    return site.ingot(*words, status=status)


def test_an_artifact_is_uploaded_with_what_is_known_of_it(site, hub):
    text = publish(site)
    assert "hf://me/models@0123456789abcdef" in text and TOKEN not in text
    names = {"demo.bf16.irpa", "README.md", "demo.bf16.irpa.verified.json", "demo.bf16.irpa.cdx.json",
             "demo.bf16.irpa.sigstore.json", "demo.bf16.irpa.model.sig"}  # fmt: skip
    assert set(hub.committed) == names
    artifact = (site.folder / "artifacts/demo.bf16.irpa").read_bytes()
    assert hub.committed["demo.bf16.irpa"] == artifact
    said = hub.committed["README.md"].decode()
    front = yaml.safe_load(said.split("---")[1])
    assert front == {"license": "apache-2.0", "tags": ["ingot", "irpa"]}
    assert "| tensors_equal | 40 |" in said and "`gguf_to_irpa`" in said
    assert not [name for name, data in hub.committed.items() if TOKEN.encode() in data]
    assert str(site.folder).encode() not in b"".join(hub.committed.values())


def test_the_card_lists_all_forms_that_the_repository_has_by_then(site, hub):
    """Somebody's words in a record there are no part of the card."""
    there = hub.root / "me/models"
    (there / "demo.q4_0.gguf").write_bytes(bytes(3_000_000))
    for name, kl in (("demo.q4_0.gguf", 0.0123), ("demo.q6_k.gguf", "<script>")):
        checks = {"numbers": {"mean_kl": kl, "same_top": 0.984}, "greedy_equal": 25, "prompts": 26}
        (there / f"{name}.verified.json").write_text(json.dumps({"checks": checks}))
    for name, text in (("a|b", "{}"), ("demo.q5_0.gguf", "[" * 100_000), ("demo.q5_1.gguf", "[]")):
        (there / f"{name}.verified.json").write_text(text)
    huge = json.dumps({"checks": {"numbers": {"mean_kl": 10**400}, "prompts": 10**400}})
    (there / "demo.q8_0.gguf.verified.json").write_text(huge)
    publish(site)
    card = hub.committed["README.md"].decode().splitlines()
    at = card.index("| file | size | mean KL | same best token | answers |")
    q5_0, q5_1, q6_k, q8_0, q4_0, own = card[at + 2 : card.index("", at)]
    assert q4_0 == "| `demo.q4_0.gguf` | 3 MB | 0.012 | 98.40% | 25 of 26 |"
    assert q6_k == "| `demo.q6_k.gguf` | 0 kB |  | 98.40% | 25 of 26 |"
    for name, row in (("q5_0", q5_0), ("q5_1", q5_1), ("q8_0", q8_0)):
        assert row == f"| `demo.{name}.gguf` | 0 kB |  |  |  |"
    assert own.startswith("| **`demo.bf16.irpa`** | 11.6 MB |")


def test_several_are_uploaded_by_one_command_once_each_of_them_is_verified(site, hub, shared):
    other = TARGET.replace("bf16", "f16")
    place = ("--to", "hf://me/models")
    done = shared(site.folder, "--", other)
    assert done.returncode == 0, done.stderr
    text = site.ingot("publish", TARGET, other, *place, status=1)
    assert other in text and not hub.committed, "nothing is sent before all are known"
    done = shared(site.folder, "--", f"{other}.verified.json")
    assert done.returncode == 0, done.stderr
    text = site.ingot("publish", TARGET, other, *place)
    assert len([line for line in text.splitlines() if line.startswith("hf://")]) == 2
    assert {"demo.bf16.irpa", "demo.f16.irpa"} < {*hub.committed}
    text = site.ingot("publish", TARGET, other, "--to", "oci://none/models:1.0", status=1)
    assert "one tag, expected one target; `ingot release` publishes several" in text


def test_model_signing_accepts_what_is_on_the_hub_and_nothing_else(site, hub, tmp_path):
    publish(site)
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for name, data in hub.committed.items():
        (folder / name).write_bytes(data)
    program = toolchains.build(ROOT, "ci") / "bin/model_signing"

    def accepted(key):
        words = ["verify", "key", "--public_key", key, "--ignore_unsigned_files", "--signature"]
        words += [folder / "demo.bf16.irpa.model.sig", folder]
        return subprocess.run([program, *words], capture_output=True, check=False).returncode == 0

    assert accepted(site.public) and not accepted(site.others)
    with (folder / "demo.bf16.irpa").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    assert not accepted(site.public)


def test_a_card_of_somebody_elses_stays(site, hub):
    (hub.root / "me/models/README.md").write_text("mine")
    assert "me/models/README.md: somebody's own, stays; ours is MODEL_CARD.md" in publish(site)
    assert "README.md" not in hub.committed and "MODEL_CARD.md" in hub.committed
    (hub.root / "me/models/MODEL_CARD.md").write_text("mine, too")
    assert "README.md and MODEL_CARD.md are somebody's own" in publish(site, status=1)


def test_a_new_repository_is_private(site, hub):
    (hub.root / "me/models").rmdir()
    assert "me/models: new, private; make it public on the hub" in publish(site)
    assert [one["visibility"] for one in hub.created] == ["private"]


def test_a_hub_that_is_not_there_is_one_line(site, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    text = publish(site, status=1)
    assert "me/models: " in text and "refused" in text and "Traceback" not in text


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_hub_that_refuses_is_one_line_and_no_token(status, site, hub):
    hub.faults["upload"] = status
    text = publish(site, status=1)
    assert f"me/models: the hub answers {status}" in text and TOKEN not in text
    assert "Traceback" not in text and not hub.committed


def test_no_token_is_said_first(site, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert "HF_TOKEN is unset, expected a token that may write" in publish(site, status=1)


@pytest.mark.parametrize("text", ["hf://me", "hf://a/b/c", "hf://../x", "hf://a/b@"])
def test_what_is_no_repository_is_refused(text):
    with pytest.raises(Refused, match="expected hf://organisation/name"):
        to_hub.parse(text)


@pytest.mark.parametrize(
    "files, catalogues, name, where",
    [
        ({"README.md": "---\nlicense: mit\n---\ntext"}, "mit", "mit", "README.md"),
        ({"LICENSE": "  Apache License\n Version 2.0"}, "", "apache-2.0", "LICENSE"),
        ({"README.md": "no front matter"}, "mit", "mit", ""),
        ({"README.md": "---\n: [\n---\n"}, "mit", "mit", ""),
        ({}, "", "", ""),
    ],
)
def test_the_licence_is_what_the_checkpoint_states(files, catalogues, name, where, tmp_path):
    for path, text in files.items():
        (tmp_path / path).write_text(text)
    assert card.licence(tmp_path, catalogues) == card.Licence(name, where)


def test_a_licence_that_the_hub_does_not_know_keeps_its_name_and_its_place(tmp_path):
    """As `ingot add` writes it, publishing was refused: "its licence is other"."""
    said = {"license": "other", "license_name": "mine-1", "license_link": "https://x.example/l"}
    text = "".join(f"{key}: {value}\n" for key, value in said.items())
    (tmp_path / "README.md").write_text(f"---\n{text}---\n")
    found = card.licence(tmp_path, license_of(tmp_path))
    assert (found.name, found.front) == ("mine-1", said)
    assert card.licence(tmp_path, "other").name == "mine-1", "as somebody wrote it by hand"
    record = {"checks": {}, "reference": "it", "result": "passed"}
    artifact = SimpleNamespace(title="m.gguf", files=[])
    made = SimpleNamespace(
        predicate={"buildDefinition": {"internalParameters": {"steps": []}}}, bill={}
    )
    for link, written in (("https://x.example/l", "https://x.example/l"),
                          ("LICENSE", "https://huggingface.co/o/m/blob/ab/LICENSE")):  # fmt: skip
        licence = card.Licence("mine-1", "README.md", True, said | {"license_link": link})
        text = card.card(artifact, made, {"hub": "o/m", "revision": "ab"}, licence, record, {})
        written = said | {"license_link": written}
        assert written.items() <= yaml.safe_load(text.split("---")[1]).items()


def test_another_licence_than_the_catalogues_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: llama3.1\n---\n")
    with pytest.raises(Refused, match=r"its licence is llama3.1, but the catalogue says mit"):
        card.licence(tmp_path, "mit")


def test_a_quantised_file_names_its_base(site):
    assert card.QUANTISED.search(".m.q4_k_m.gguf.") and card.QUANTISED.search(".m.iq4_xs.gguf.")
    assert not card.QUANTISED.search(".m.gguf.") and not card.QUANTISED.search(".m_tp2.irpa.")
    assert upload.MARK == card.MARK


@pytest.mark.parametrize(
    "title, place",
    [("demo.fp8.safetensors", ""), ("demo.4bit.mlx", ""), ("demo.onnx", "demo.onnx/")],
)
def test_what_is_a_repository_by_itself_lies_at_its_root(title, place, tmp_path):
    """So `vllm serve me/models` finds it; of other formats several share a repository."""
    blob, record, folder = tmp_path / "blob", tmp_path / f"{title}.verified.json", tmp_path / "out"
    blob.write_text("{}")
    record.write_text("{}")
    folder.mkdir()
    artifact = SimpleNamespace(
        title=title, output={"kind": "folder"}, verified=record, store=SimpleNamespace(blob=lambda _: blob),
        files=[{"path": "config.json", "digest": "sha256:00", "size": 2}],
    )  # fmt: skip
    origin = SimpleNamespace(bill=b"{}", predicate={}, key=None)
    to_hub.fill(folder, artifact, origin)
    assert (folder / f"{place}config.json").exists() and (folder / record.name).exists()


def test_the_uploader_knows_what_takes_a_root():
    names = {f".{row.name}{upload.RECORD}" for row in ROWS if row.repository}
    assert {*upload.OF_ROOT} == names


@pytest.mark.parametrize(
    "there, said",
    [
        ("demo.w8a8.safetensors", "demo.w8a8.safetensors is at its root"),
        ("demo.fp8.safetensors", ""),
    ],
)
def test_a_second_artifact_at_the_root_of_a_repository_is_refused(there, said, hub, tmp_path):
    (hub.root / f"me/models/{there}.verified.json").write_text("{}")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.json").write_text("{}")
    words = ["--folder", tmp_path / "out", "--repository", "me/models", "--message", "m"]
    python = toolchains.build(ROOT, "hub") / "bin/python"
    done = subprocess.run(
        [python, "-m", to_hub.MODULE, *map(str, words), "--alone", "demo.fp8.safetensors"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")}, capture_output=True, text=True,
    )  # fmt: skip
    assert said in done.stderr and bool(done.returncode) == bool(said), done.stderr
