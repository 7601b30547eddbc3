"""Publish a verified artifact to a registry: `ingot publish artifacts/M.gguf --to oci://host/repository:tag`.

One index, by digest: the files as a CNCF ModelPack and as an image's layers, the verification record,
and the action that gave them.  What the registry has is not sent.  Refused: what is not on record, or
whose verification did not pass or is about other bytes.
"""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ingot.driver.commands.explain import dry_run
from ingot.driver.commands.targets import add_catalogue
from ingot.refused import Refused
from ingot.registry import reference
from ingot.store.records import Record, Store
from ingot.terminal.progress import Progress

RECORD = ".verified.json"


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("target", help="such as artifacts/M.gguf")
    parser.add_argument("--to", required=True, help="oci://host/repository:tag")
    parser.add_argument(
        "--plain-http", action="store_true", help="without TLS, to a host that is not this machine"
    )
    add_catalogue(parser)


def run(root: Path, options: Namespace) -> None:
    from ingot.publishing.published import Artifact, publish
    from ingot.registry.connection import Connection  # no other command needs urllib3

    place = reference.parse(options.to)
    if not place.tag or place.digest:
        raise Refused(
            f"{place}: expected a tag, such as {reference.SCHEME}host/repository:1.0; add it"
        )
    target, store = options.target.rstrip("/"), Store()
    records = on_record(root, store, [target, target + RECORD], options.configfile)
    record, output = records[target]
    _, its = records[target + RECORD]
    with tempfile.TemporaryDirectory() as folder:
        # as it was written, whatever stands in the working folder
        written = Path(folder, its["title"])
        if not store.has(its["digest"]):
            raise Refused(f"{its['title']}: not in the store any more; verify it again")
        written.write_bytes(store.blob(its["digest"]).read_bytes())
        artifact = Artifact(store, record, output, written)
        connection = Connection(place, "pull,push", options.plain_http)
        progress = Progress(f"pushing {output['title']}", 2 * output["size"])
        started = time.monotonic()
        digest, sent = publish(connection, artifact, place.tag, progress.add)
    seconds = time.monotonic() - started
    print(
        f"{place}@{digest}: {sent / 1e6:.1f} MB sent in {seconds:.1f} s, {connection.requests} requests"
    )


def on_record(
    root: Path, store: Store, targets: list[str], catalogue: str | None
) -> dict[str, tuple[Record, dict]]:
    """Of each target the record that gave it, and which of its outputs it is."""
    found: dict[str, tuple[Record, dict]] = {}
    for job in dry_run(root, targets, catalogue):
        for target in set(targets) & set(job["outputs"]):
            record = store.lookup(job["rule"], job["key"]) if "key" in job else None
            if record:
                found[target] = (record, record.outputs[job["outputs"].index(target)])
    for target in targets:
        if target not in found:
            raise Refused(
                f"{target}: not on record, expected it built and verified; snakemake {' '.join(targets)}"
            )
    return found
