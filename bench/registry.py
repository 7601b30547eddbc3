"""Push, pull, push again and mount of one blob, beside skopeo and oras-py, at a registry of this machine.

    python bench/registry.py [--megabytes 2048]

Each client in a process of its own: wall time, CPU time, largest resident memory.  Ours and skopeo hash
what they send and what comes; oras-py hashes nothing that comes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]

import registry as registries  # noqa: E402
from ingot.base.digest import of  # noqa: E402

ORAS = "oras==0.2.43"
POLICY = '{"default":[{"type":"insecureAcceptAnything"}]}'
OURS = """
import sys
from pathlib import Path
from ingot.registry import modelpack
from ingot.registry import reference, transfer
from ingot.registry.connection import Connection
what, place, path, digest, *more = sys.argv[1:]
found = Connection(reference.parse(place), "pull,push")
path = Path(path)
if what == "pull":
    manifest, _ = transfer.get_manifest(found, "1")
    (layer,) = manifest["layers"]
    transfer.pull(found, layer["digest"], layer["size"], path)
else:
    content, config = transfer.Content(digest, path.stat().st_size, path), transfer.of_bytes(b"{}")
    transfer.push(found, [content, config], None, more)
    layer = modelpack.layer("blob", digest, content.size)
    empty = modelpack.described(modelpack.MODEL_CONFIG, config.digest, 2)
    transfer.put_manifest(found, modelpack.manifest(empty, [layer]), "1")
"""
THEIRS = """
import sys, oras.client
what, host, path = sys.argv[1:]
found = oras.client.OrasClient(hostname=host, insecure=True)
if what == "push":
    found.push(target=f"{host}/oras:1", files=[path], disable_path_validation=True)
else:
    found.pull(target=f"{host}/oras:1", outdir=path)
"""


def measured(command: list, **environment: str) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and MB resident of a command that ends well."""
    started = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in command], env={**os.environ, **environment},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[:3]}: {process.stderr.read().decode()[-500:]}")
    wall = time.monotonic() - started
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def layout(folder: Path, blob: Path, digest: str) -> None:
    """The blob as an OCI layout, for skopeo."""
    from ingot.base.digest import canonical
    from ingot.registry import modelpack, transfer

    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    os.link(blob, blobs / digest.removeprefix("sha256:"))
    config = transfer.of_bytes(b"{}")
    empty = modelpack.described(modelpack.MODEL_CONFIG, config.digest, 2)
    layer = modelpack.layer("blob", digest, blob.stat().st_size)
    manifest = transfer.of_bytes(canonical(modelpack.manifest(empty, [layer])))
    for one in (config, manifest):
        (blobs / one.digest.removeprefix("sha256:")).write_bytes(one.source)
    entry = modelpack.described(modelpack.MANIFEST, manifest.digest, manifest.size)
    entry["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')


def commands(client: str, folder: Path, host: str, blob: Path, digest: str) -> dict[str, list]:
    """A client's commands, in the order in which they run."""
    if client == "ours":
        ours = [sys.executable, "-c", OURS]
        first, second = f"oci://{host}/ours:1", f"oci://{host}/mounted:1"
        return {
            "push": [*ours, "push", first, blob, digest],
            "push again": [*ours, "push", first, blob, digest],
            "mount": [*ours, "push", second, blob, digest, "ours"],
            "pull": [*ours, "pull", first, folder / "back", digest],
        }
    if client == "skopeo":
        layout(folder / "layout", blob, digest)
        (folder / "policy.json").write_text(POLICY)
        copy = ["skopeo", "--policy", folder / "policy.json", "copy", "-q"]
        there, local = f"docker://{host}/skopeo:1", f"oci:{folder}/layout:1"
        push = [*copy, "--dest-tls-verify=false", local, there]
        pull = [*copy, "--src-tls-verify=false", there, f"oci:{folder}/skopeo-back:1"]
        return {"push": push, "push again": push, "pull": pull}
    subprocess.run([sys.executable, "-m", "venv", folder / "oras"], check=True)
    subprocess.run([folder / "oras/bin/pip", "install", "-q", ORAS], check=True)
    theirs = [folder / "oras/bin/python", "-c", THEIRS]
    return {
        "push": [*theirs, "push", host, blob],
        "pull": [*theirs, "pull", host, folder / "oras-back"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=2048, help="of the blob (default: 2048)")
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        blob = folder / "blob"
        with blob.open("wb") as file:
            for _ in range(asked.megabytes):
                file.write(os.urandom(1 << 20))
        digest = of(blob)
        for client in ("ours", "skopeo", "oras-py"):
            # a registry of its own each: none profits from what another pushed
            with registries.Registry(folder / f"at-{client}") as server:
                asked_of = commands(client, folder, server.host, blob, digest)
                for what, command in asked_of.items():
                    path = {"PYTHONPATH": str(ROOT / "scripts")} if client == "ours" else {}
                    wall, cpu, resident = measured(command, **path)
                    rows.append({"client": client, "what": what, "wall": round(wall, 2),
                                 "cpu": round(cpu, 2), "mb": round(resident)})  # fmt: skip
            shutil.rmtree(folder / f"at-{client}")
        assert of(folder / "back") == digest
    if not asked.json:
        print(f"{'client':10}{'what':12}{'wall s':>8}{'CPU s':>8}{'MB':>7}")
        for row in rows:
            print(
                f"{row['client']:10}{row['what']:12}{row['wall']:8.2f}{row['cpu']:8.2f}{row['mb']:7}"
            )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
