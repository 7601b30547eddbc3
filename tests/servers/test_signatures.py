"""What is signed, and what that is worth: our bundles by another's verifier, and changed in every place."""

import base64
import hashlib
import json
import shutil
import subprocess
from argparse import Namespace

import pytest
from test_registry import artifact, get, needs_servers, push, quick, server, to

from conftest import ROOT
from ingot.base.refused import Refused
from ingot.driver.commands import pull, verify
from ingot.driver.release import on_record, shown
from ingot.registry import (
    envelope,
    listed,
    model_signing,
    modelpack,
    provenance,
    published,
    sbom,
    transfer,
    trusted,
)
from ingot.registry.connection import Connection
from ingot.registry.modelpack import MODEL, PROVENANCE, ROLE

__all__ = ["artifact", "quick", "server"]  # fixtures
pytestmark = needs_servers
PACKAGES = ("@sigstore/verify@3.1.1", "@sigstore/bundle@4.0.0", "@sigstore/protobuf-specs@0.5.2")


def key_pair(folder, name="key"):
    """A private key, and the file of its public one, both by openssl as the documents say."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    for words in (
        ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private],
        ["ec", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    return envelope.private_key(private), public


@pytest.fixture
def key(tmp_path):
    return key_pair(tmp_path)


@pytest.fixture(scope="session")
def sigstore(tmp_path_factory):
    """sigstore(bundle, public key) is the subject that Sigstore's verifier finds signed; or fails."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("needs node and npm, for Sigstore's own verifier")
    folder = tmp_path_factory.mktemp("sigstore")
    words = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", *PACKAGES]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install Sigstore's verifier: {done.stderr.splitlines()[-1:]}")

    def run(bundle, public):
        place = folder / "bundle.json"
        place.write_bytes(bundle)
        program = ROOT / "tests/doubles/sigstore_verify.mjs"
        words = ["node", program, folder, place, public]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout.strip() if done.returncode == 0 else done.stderr

    return run


def bundle_of(found):
    return found.only_layer(found.one(PROVENANCE))[1]


def test_sigstores_own_verifier_accepts_our_bundle_and_no_other(
    server, artifact, key, sigstore, tmp_path
):
    push(server.host, artifact(), key[0], name="signed")
    found = listed.read(Connection(to(server.host, "signed")))
    bundle = bundle_of(found)
    assert sigstore(bundle, key[1]) == found.one(MODEL).removeprefix("sha256:")
    other = key_pair(tmp_path, "other")[1]
    assert "SIGNATURE_ERROR" in sigstore(bundle, other)
    said = json.loads(bundle)
    payload = bytearray(base64.b64decode(said["dsseEnvelope"]["payload"]))
    payload[payload.index(b"sha256") + 10] ^= 1
    said["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    assert "SIGNATURE_ERROR" in sigstore(json.dumps(said).encode(), key[1])


def test_what_was_signed_is_pulled_and_says_who_and_how(server, artifact, key, tmp_path):
    push(server.host, artifact(), key[0], name="signed")
    found = listed.read(Connection(to(server.host, "signed")))
    good = trusted.check(found, trusted.keys([key[1]]))
    assert good.signers == [envelope.name(key[0].public_key())]
    assert (good.title, good.record["result"]) == ("m.shortfin", "passed")
    get(Connection(to(server.host, "signed")), tmp_path / "back", [])


def test_what_was_verified_is_said_with_its_numbers(server, artifact, key, capsys):
    checks = {"tensors": 36, "numbers": {"mean_kl": 0.0019, "same_top": 0.93}}
    push(server.host, artifact(checks=checks), key[0], name="numbers")
    place = str(to(server.host, "numbers"))
    verify.run(ROOT, Namespace(reference=place, key=[key[1]], plain_http=False, json=False))
    said = "numbers        mean KL 0.0019, same best token 93.00%, tensors 36"
    assert said in capsys.readouterr().out.splitlines()


def test_a_pull_says_whether_a_signature_was_checked(server, artifact, key, tmp_path, capsys):
    push(server.host, artifact(), key[0], name="said")
    push(server.host, artifact(), name="bare")
    for name, keys, said in (
        ("said", [key[1]], "right; signed by a trusted key"),
        ("said", [], f"right; signed, not checked: name the public key by --key or {trusted.KEYS}"),
        ("bare", [], "right; not signed"),
    ):
        asked = Namespace(reference=str(to(server.host, name)), key=keys, plain_http=False, only=[])
        pull.run(tmp_path, Namespace(**vars(asked), target=tmp_path / f"{name}{len(keys)}"))
        assert capsys.readouterr().out.strip().endswith(said)


def changed(server, name, edit):
    """The index of a published artifact as somebody with write access may make it."""
    found = listed.read(Connection(to(server.host, name), "pull,push"))
    index = json.loads(json.dumps(found.index))
    edit(found, index)
    transfer.put_manifest(found.connection, index, "evil")
    return listed.read(Connection(to(server.host, name, "evil")))


def replaced(role, edit):
    """Put another manifest in the place of a role's."""

    def run(found, index):
        manifest = found.manifest(found.one(role))
        edit(manifest, found)
        digest, size = transfer.put_manifest(found.connection, manifest)
        (entry,) = [one for one in index["manifests"] if one["annotations"][ROLE] == role]
        entry.update(digest=digest, size=size)

    return run


def other_layer(manifest, found):
    content = transfer.of_bytes(
        b'{"result": "passed", "sha256": "0", "reference": "", "checks": {}}'
    )
    transfer.push(found.connection, [content])
    manifest["layers"][0].update(digest=content.digest, size=content.size)


def dropped(role):
    return lambda found, index: index.update(
        manifests=[one for one in index["manifests"] if one["annotations"][ROLE] != role]
    )


def added(found, index):
    entry = dict(index["manifests"][0], annotations={ROLE: "readme"})
    index["manifests"].append(entry)


def twice(found, index):
    index["manifests"].append(index["manifests"][0])


def said_too(role, **words):
    """An entry that says more than it did."""

    def run(found, index):
        (entry,) = [one for one in index["manifests"] if one["annotations"][ROLE] == role]
        entry.update(words)

    return run


def called_provenance(kind="image", first=True):
    """An image of somebody else's that calls itself a provenance: what any tool would pick by platform."""

    def run(found, index):
        config = transfer.of_bytes(modelpack.image_config([], "amd64"))
        manifest = modelpack.manifest(modelpack.described(
            modelpack.IMAGE_CONFIG, config.digest, config.size), [])  # fmt: skip
        if kind == "a bundle's layer":  # the signed statement, and a config that runs
            bundle = transfer.of_bytes(bundle_of(found))
            layer = modelpack.described(envelope.BUNDLE, bundle.digest, bundle.size)
            manifest["layers"] = [layer]
        transfer.push(found.connection, [config])
        digest, size = transfer.put_manifest(found.connection, manifest)
        entry = modelpack.described(modelpack.MANIFEST, digest, size, **{ROLE: PROVENANCE})
        if kind == "image":
            entry["platform"] = {"architecture": "amd64", "os": "linux"}
        index["manifests"].insert(0 if first else len(index["manifests"]), entry)

    return run


def other_text(manifest, found):
    """A provenance that is a text of somebody else's."""
    content = transfer.of_bytes(b"#!/bin/sh")
    transfer.push(found.connection, [content])
    manifest["layers"][0].update(digest=content.digest, size=content.size)


def one_more(role, edit):
    """A changed copy of a role's manifest, beside it."""

    def run(found, index):
        before = json.loads(json.dumps(index["manifests"]))
        replaced(role, edit)(found, index)
        index["manifests"] = [*before, *(one for one in index["manifests"] if one not in before)]

    return run


ARM = {"architecture": "arm64", "os": "linux"}
ATTACKS = {
    "an image as provenance": (called_provenance(), "platform of provenance, which no signature"),
    "the same, last": (
        called_provenance(first=False),
        "platform of provenance, which no signature",
    ),
    "an image as provenance without platform": (
        called_provenance("plain"),
        "has 0 layers, expected one",
    ),
    "a config that runs, around our bundle": (
        called_provenance("a bundle's layer"),
        "expected one statement and an empty config",
    ),
    "a text as one more provenance": (one_more("provenance", other_text), "no Sigstore bundle"),
    "the image on another platform": (said_too("image", platform=ARM), "platform of image"),
    "a platform for the model": (said_too("model", platform=ARM), "platform of model"),
    "an address to load from": (said_too("model", urls=["https://h/x"]), "its index says urls"),
    "data in the entry": (said_too("model", data="eA=="), "its index says data"),
    "another media type": (
        said_too("model", mediaType="application/vnd.docker.distribution.manifest.v2+json"),
        "its index says application/vnd.docker",
    ),
    "another title": (
        said_too("model", annotations={ROLE: "model", modelpack.TITLE: "x"}),
        "its index says org.opencontainers",
    ),
    "an index with a word more": (
        lambda found, index: index.update(artifactType="x"),
        "its index says artifactType",
    ),
    "another file": (replaced("model", other_layer), "its model is sha256:.* was signed"),
    "another tar": (replaced("image", other_layer), "its image is sha256:.* was signed"),
    "another record": (replaced("verification", other_layer), "its verification is sha256"),
    "another action": (replaced("action", other_layer), "its action is sha256"),
    "another bill": (replaced("sbom", other_layer), "its sbom is sha256"),
    "no record": (dropped("verification"), "its verification is None, but sha256:.* was signed"),
    "no signature": (dropped("provenance"), "not signed, expected a signature"),
    "one more": (added, "its readme is sha256:.*, but None was signed"),
    "one twice": (twice, "lists 2 of the role model, expected one"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
def test_an_index_that_was_changed_is_not_trusted(attack, server, artifact, key):
    edit, said = attack
    push(server.host, artifact(), key[0], name="attacked")
    keys = trusted.keys([key[1]])
    trusted.check(listed.read(Connection(to(server.host, "attacked"))), keys)
    with pytest.raises(Refused, match=said):
        trusted.check(changed(server, "attacked", edit), keys)


def test_another_key_or_a_bundle_of_something_else_is_not_trusted(server, artifact, key, tmp_path):
    push(server.host, artifact(), key[0], name="one")
    other = trusted.keys([key_pair(tmp_path, "other")[1]])
    with pytest.raises(Refused, match="no signature of a trusted key"):
        trusted.check(listed.read(Connection(to(server.host, "one"))), other)
    push(server.host, artifact(single=True), key[0], name="two")
    bundle = bundle_of(listed.read(Connection(to(server.host, "two"))))

    def swapped(manifest, found):
        content = transfer.of_bytes(bundle)
        transfer.push(found.connection, [content])
        manifest["layers"][0].update(digest=content.digest, size=content.size)

    with pytest.raises(Refused, match=r"its action is sha256:.*, but sha256:.* was signed"):
        trusted.check(
            changed(server, "one", replaced("provenance", swapped)), trusted.keys([key[1]])
        )
    push(server.host, artifact(), None, name="unsigned")
    with pytest.raises(Refused, match="not signed, expected a signature of a trusted key"):
        trusted.check(listed.read(Connection(to(server.host, "unsigned"))), trusted.keys([key[1]]))


def test_a_second_party_may_sign_beside_the_first(server, artifact, key, tmp_path):
    push(server.host, artifact(), key[0], name="both")
    other, public = key_pair(tmp_path, "other")
    found = listed.read(Connection(to(server.host, "both"), "pull,push"))
    said = trusted.check(found, trusted.keys([key[1]])).statement
    published.sign_too(found, said, other, "1.0")
    with pytest.raises(Refused, match=r"1\.0 names another index meanwhile; not signed"):
        published.sign_too(found, said, key_pair(tmp_path, "third")[0], "1.0")
    found = listed.read(Connection(to(server.host, "both")))
    assert len(trusted.check(found, trusted.keys([key[1], public])).signers) == 2
    assert len(trusted.check(found, trusted.keys([public])).signers) == 1


BROKEN = {
    "nothing": b"",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "no envelope": b"{}",
    "two signatures": json.dumps(
        {"mediaType": envelope.BUNDLE, "dsseEnvelope": {
            "payload": "", "payloadType": envelope.PAYLOAD, "signatures": [{"sig": ""}] * 2}}
    ).encode(),
    "no base64": json.dumps(
        {"mediaType": envelope.BUNDLE, "dsseEnvelope": {
            "payload": "%", "payloadType": envelope.PAYLOAD, "signatures": [{"sig": "ü"}]}}
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("bundle", BROKEN.values(), ids=list(BROKEN))
def test_what_is_no_bundle_is_one_line(bundle, key):
    with pytest.raises(Refused, match="m: "):
        envelope.opened("m", bundle, [key[0].public_key()])


@pytest.mark.parametrize("said", [{}, {"_type": "x"}, [], {"_type": envelope.STATEMENT}])
def test_a_signed_text_that_is_no_statement_is_refused(said, key):
    with pytest.raises(Refused):
        envelope.opened("m", envelope.sign(said, key[0]), [key[0].public_key()])


def test_a_folder_without_keys_trusts_nobody(tmp_path):
    (tmp_path / "keys").mkdir()
    with pytest.raises(Refused, match=r"has no \*\.pem and no \*\.pub, expected public keys"):
        trusted.keys([tmp_path / "keys"])


def test_what_has_no_provenance_or_another_is_one_line(server, artifact, key):
    push(server.host, artifact(), key[0], name="bare")
    with pytest.raises(Refused, match="has no provenance"):
        trusted.unchecked(changed(server, "bare", dropped("provenance")))
    with pytest.raises(Refused, match="its image is sha256"):
        trusted.unchecked(changed(server, "bare", replaced("image", other_layer)))
    with pytest.raises(Refused, match="expected urn:other"):
        trusted.unchecked(listed.read(Connection(to(server.host, "bare"))), "urn:other")


def test_a_key_of_another_kind_is_refused(tmp_path):
    rsa = tmp_path / "rsa.pem"
    subprocess.run(["openssl", "genrsa", "-out", rsa, "2048"], check=True, capture_output=True)
    for path in (rsa, tmp_path / "missing"):
        with pytest.raises(Refused, match="expected PEM of P-256"):
            envelope.private_key(path)
        with pytest.raises(Refused, match="expected PEM of P-256"):
            envelope.public_key(path)


def test_why_a_key_is_not_taken_is_said_by_its_cause(tmp_path):
    public, rsa = key_pair(tmp_path)[1], tmp_path / "rsa.pem"
    for words in (
        ["genrsa", "-out", rsa, "2048"],
        [
            "ec",
            "-in",
            tmp_path / "key.pem",
            "-aes128",
            "-passout",
            "pass:x",
            "-out",
            tmp_path / "closed",
        ],
        ["ecparam", "-name", "secp384r1", "-genkey", "-noout", "-out", tmp_path / "wide"],
    ):
        subprocess.run(["openssl", *words], check=True, capture_output=True)
    (tmp_path / "text").write_text("text")
    for read, name, said in (
        (envelope.private_key, "missing", "no such file"),
        (envelope.private_key, "", "Is a directory"),
        (envelope.private_key, public.name, "a public key, which signs nothing"),
        (envelope.private_key, "rsa.pem", "an RSA key"),
        (envelope.private_key, "wide", "a key of secp384r1"),
        (envelope.private_key, "closed", "a key with a password"),
        (envelope.private_key, "text", "no private key that we can read"),
        (envelope.public_key, "missing", "no such file"),
        (envelope.public_key, "rsa.pem", "an RSA key"),
        (envelope.public_key, "text", "no public key that we can read"),
    ):
        with pytest.raises(Refused, match=f"^{tmp_path / name}: {said}, expected PEM of P-256"):
            read(tmp_path / name)


def test_a_bill_names_each_package_once_and_is_the_same_each_time(tmp_path):
    locks = [ROOT / "envs/convert/requirements.lock", ROOT / "envs/hub/requirements.lock"]
    text = sbom.sbom("m.gguf", "ab" * 32, "apache-2.0", locks)
    assert text == sbom.sbom("m.gguf", "ab" * 32, "apache-2.0", reversed(locks))
    said = json.loads(text)
    refs = [one["bom-ref"] for one in said["components"]]
    assert len(refs) == len(set(refs)) and {"toolchain:convert", "toolchain:hub"} <= set(refs)
    (numpy,) = [one for one in said["components"] if one["name"] == "numpy"]
    assert numpy["purl"] == f"pkg:pypi/numpy@{numpy['version']}" and numpy["hashes"]
    assert {one["ref"] for one in said["dependencies"]} <= {"artifact", *refs}


def test_the_files_are_signed_in_the_order_of_their_names(key):
    files = {"b": f"sha256:{'22' * 32}", "a/c": f"sha256:{'11' * 32}"}
    said = model_signing.statement("m", files)
    assert [one["name"] for one in said["predicate"]["resources"]] == ["a/c", "b"]
    root = hashlib.sha256(bytes.fromhex("11" * 32 + "22" * 32)).hexdigest()
    assert said["subject"] == [{"name": "m", "digest": {"sha256": root}}]
    found = envelope.opened("m", envelope.sign(said, key[0]), [key[0].public_key()])[0]
    assert found == said and envelope.sign(said, key[0]) == envelope.sign(said, key[0])
    assert envelope.name(key[0].public_key()) == hashlib.sha256(key[1].read_bytes()).hexdigest()


def test_provenance_names_the_hubs_files_by_address_and_the_rest_by_name():
    listing, config = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    fetch = provenance.Step(
        "fetch_file", "k1", {"config.json": config}, {"inputs": {"listing": listing}}
    )
    build = provenance.Step(
        "build", "k2", {"m.gguf": f"sha256:{'3' * 64}"},
        {"inputs": {"config": config, "text": f"sha256:{'4' * 64}"}, "code": {"a.py": "sha256:5"},
         "lock": {"hub/requirements.lock": "sha256:6"}},
    )  # fmt: skip
    said = provenance.predicate(
        "artifacts/m.gguf", {}, [fetch, build], {listing: "https://h/m/resolve/c/"}
    )
    found = {one["uri"]: one["digest"] for one in said["buildDefinition"]["resolvedDependencies"]}
    assert found == {
        "scripts/a.py": {"sha256": "5"}, "envs/hub/requirements.lock": {"sha256": "6"},
        "listing": {"sha256": "1" * 64}, "text": {"sha256": "4" * 64},
        "https://h/m/resolve/c/config.json": {"sha256": "2" * 64},
    }  # fmt: skip


def test_the_same_sources_are_shown_of_a_registry_and_of_a_file(server, artifact, key, tmp_path):
    shard, config = f"tensors:{'1' * 64}", f"sha256:{'2' * 64}"
    fields = {"inputs": {"config": config, "files": [["config.json", config], ["m.safetensors", shard]],
                         "corpus": f"tree:{'3' * 64}"}}  # fmt: skip
    one = provenance.Step("build", "k", {"m.irpa": f"sha256:{'4' * 64}"}, fields)
    said = {"predicate": provenance.predicate("artifacts/m.irpa", {}, [one], {})}
    origin = published.Origin(said["predicate"], b"{}", key[0])
    place = Connection(to(server.host, "sources"), "pull,push")
    published.publish(place, artifact(single=True), "1.0", None, origin)
    found = shown.of_reference(listed.read(place))
    assert [line for line in shown.lines(found) if line.startswith("from ")] == [
        "from          config.json  sha256:222222222222",
        "from          m.safetensors  tensors:111111111111 (of its tensors)",
        "from          corpus  tree:333333333333 (of a folder)",
    ]
    assert found["made_from"] == shown._named_once(provenance.leaves([one]))


def test_nothing_of_this_machine_is_in_what_is_published(tmp_path):
    entry = {
        "path": "/home/me/m", "name": "M", "deep": [{"x": "~/y", "z": 1}], "tp": [1],
        "flags": ["--dir=/home/me/x", "--fine=1"], "up": "../../me", "variable": "$HOME/x",
    }  # fmt: skip
    gone = on_record.ELSEWHERE
    assert on_record.portable(entry) == {
        "path": gone, "name": "M", "deep": [{"x": gone, "z": 1}], "tp": [1],
        "flags": [gone, "--fine=1"], "up": gone, "variable": gone,
    }  # fmt: skip
