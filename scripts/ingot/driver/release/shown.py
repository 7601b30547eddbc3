"""What one would ask of an artifact: built from what, with what, when, how verified, at what cost."""

import json
import re
import time
from pathlib import Path
from typing import Any

from ingot.base import digest, sealed
from ingot.base.fields import Number, Whole, held, json_of
from ingot.base.refused import Refused
from ingot.driver.show.quality import few
from ingot.registry import envelope, modelpack, provenance, transfer, trusted
from ingot.registry.listed import Listed
from ingot.registry.modelpack import ACTION, MODEL, PROVENANCE, SBOM
from ingot.store import way
from ingot.store.records import Record, Store

NUMBER = (Number(), Whole(0, 2**63 - 1))
COST = {"cost?": {"seconds?": NUMBER, "peak_rss_mb?": NUMBER}}
CONFIG = {"ingot?": COST}
BILL = {"components?": [{"name": str, "type": str}]}
PREDICATE = {
    "buildDefinition": {
        "externalParameters": {"target": str},
        "internalParameters": {"source": str, "steps": [{"rule": str}]},
        "resolvedDependencies": [{"uri": str, "digest": {str: str}}],
    }
}
OURS = ("scripts/", "envs/")  # of the resolved dependencies, those that are no source


def of_reference(found: Listed) -> dict[str, Any]:
    """Of a published artifact.  Nothing is checked against a key: that is `ingot verify`."""
    said = trusted.unchecked(found)
    held(found.reference, said["predicate"], PREDICATE)
    build = said["predicate"].get("buildDefinition", {})
    inside, outside = build.get("internalParameters", {}), build.get("externalParameters", {})
    config = {}
    for action in found.digests(ACTION):  # none where the artifact is in parts
        text = transfer.get(found.connection, found.manifest(action)["config"])
        config = json_of(found.reference, text, CONFIG)
    layers = found.manifest(found.one(MODEL))["layers"]
    _, bill = found.only_layer(found.one(SBOM))
    sources = {
        one["uri"]: provenance.digest_of(one)
        for one in build.get("resolvedDependencies", ())
        if not one["uri"].startswith(OURS)
    }
    parts = json_of(found.reference, bill, BILL).get("components", [])
    documents = [found.only_layer(one) for one in found.digests(PROVENANCE)]
    return {
        "artifact": found.title(),
        "reference": found.reference,
        "bytes": sum(one["size"] for one in layers),
        "files": len(modelpack.named(layers)),
        "target": outside.get("target", ""),
        "source": inside.get("source", ""),
        "steps": [step.get("rule", "") for step in inside.get("steps", ())],
        "made_from": _named_once(sources),
        "toolchains": sorted(one["name"] for one in parts if one.get("type") == "platform"),
        "cost": config.get("ingot", {}).get("cost", {}),
        "verification": trusted.verification(found),
        "signed_by": [signer(text) for kind, text in documents if kind == envelope.BUNDLE],
    }


def signer(bundle: bytes) -> str:
    """What a bundle calls its key: a hint, which proves nothing."""
    said = json_of("a bundle", bundle, {"verificationMaterial": {"publicKey": {"hint": str}}})
    return said["verificationMaterial"]["publicKey"]["hint"]


def of_file(store: Store, path: Path) -> dict[str, Any]:
    """Of a file or a folder here, by its digest, whatever its name.  Refused: one that is not on record."""
    name = digest.of(path)
    made = {one["digest"]: record for record in store.records() for one in record.outputs}
    inside = {one: record for record in store.records() for one in record.files}
    if name not in made and path.is_dir() and (path / sealed.SUMS).is_file():
        name = f"sha256:{sealed.sealed(path)}"  # of a copy, which may lack what git or cp dropped
    record = made.get(name) or inside.get(name)
    blob = path.resolve()
    if blob.parent == store.blobs.resolve() and name != f"sha256:{blob.name}":
        raise Refused(
            f"{path}: damaged in {store.root}: {name[:19]}, expected sha256:{blob.name[:12]}; `ingot "
            "store fsck` sets it aside, then snakemake builds it again"
        )
    if record is None:
        raise Refused(
            f"{path}: {name[:19]} is on no record of {store.root}, expected something built here; ask the "
            "registry: ingot show oci://..."
        )
    steps = _way(store, record)
    sha256 = digest.of(path / sealed.SUMS if path.is_dir() else path).partition(":")[2]
    return {
        "artifact": record.title,
        "digest": name,
        "bytes": sum(one["size"] for one in record.outputs),
        "built": time.strftime("%Y-%m-%d", time.gmtime(store.blob(record.digest).stat().st_mtime)),
        "steps": [step.rule for step in steps],
        "made_from": _named_once(provenance.leaves(steps)),
        "toolchains": sorted(
            {re.split("/", n)[0] for s in steps for n in s.fields.get("lock", {})}
        ),
        "cost": store.config(record).get("cost", {}),
        "verification": _verification(store, sha256),
    }


def _way(store: Store, record: Record) -> list[provenance.Step]:
    """The steps to a record; the last is its own."""
    jobs = {job["key"]: job["rule"] for job in way.of(store, record)}
    found = [store.lookup(rule, key) for key, rule in jobs.items()]
    return [provenance.step(store, one) for one in found if one]


def _verification(store: Store, sha256: str) -> dict[str, Any]:
    for record in store.records("verify_*"):
        for output in record.outputs:
            if store.has(output["digest"]):
                said = json.loads(store.blob(output["digest"]).read_bytes())
                if said.get("sha256") == sha256:
                    return said
    return {}


def _named_once(sources: dict[str, str]) -> dict[str, str]:
    """Without the role of a file, such as `config`, where it is there by its own name, config.json."""
    files = {text for name, text in sources.items() if "." in name}
    return {name: text for name, text in sources.items() if "." in name or text not in files}


def _short(text: str) -> str:
    """A digest to compare by eye; what it is of, where it is not of a file's bytes."""
    kind, _, value = text.partition(":")
    what = {"tensors": " (of its tensors)", "tree": " (of a folder)"}.get(kind, "")
    return f"{kind}:{value[:12]}{what}"


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    cost, record = found["cost"], found["verification"]
    where = found.get("reference") or found.get("digest", "")
    parts = f", {found['files']} files" if found.get("files", 1) > 1 else ""
    said = [
        f"{found['artifact']}  {found['bytes'] / 1e6:,.1f} MB{parts}",
        f"digest        {where}",
        f"made by       {' → '.join(found['steps'])}",
        f"with          {', '.join(found['toolchains'])}",
    ]
    said += [f"from          {name}  {_short(text)}" for name, text in found["made_from"].items()]
    if "seconds" in cost:
        memory = f", {cost['peak_rss_mb']:,.0f} MB" if "peak_rss_mb" in cost else ""
        said.append(f"cost          {cost['seconds']:.1f} s{memory} of its last step")
    if record:
        said.append(f"verified      against {record['reference']}: {record['result']}")
        if numbers := few(record["checks"]):
            said.append(f"numbers       {', '.join(numbers)}")
    else:
        said.append("verified      no record of it here")
    if "signed_by" in found:
        named = ", ".join(name[:16] for name in found["signed_by"]) or "nobody"
        said.append(f"signed by     {named}; ingot verify --key holds it against a key")
    return said
