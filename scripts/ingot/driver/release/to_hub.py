"""An artifact on the Hugging Face hub: its files with a card, its record and where it came from."""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ingot.base.digest import canonical
from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import build
from ingot.driver.catalogue import targets
from ingot.driver.catalogue.formats.rows import row_of
from ingot.driver.catalogue.model import base_of
from ingot.driver.release import card
from ingot.driver.release.on_record import OnRecord
from ingot.driver.toolchains import toolchains
from ingot.registry import envelope, provenance
from ingot.registry.published import SIGNATURE, Artifact, Origin, files_statement

SCHEME = "hf://"
REPOSITORY = re.compile(r"hf://([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]{1,100}))?")
TOOLCHAIN, MODULE = "hub", "ingot.model.hub.upload"


def parse(text: str) -> tuple[str, str]:
    """Repository and branch of hf://org/name[@branch]."""
    match = REPOSITORY.fullmatch(text)
    if not match:
        raise Refused(f"{text}: no repository, expected hf://organisation/name[@branch]")
    return match[1], match[2] or "main"


def stop_on_mixed(artifacts: list[Artifact]) -> None:
    """Refused before the first is sent: what is not verified or not whole, and a second at the root."""
    for one in artifacts:
        one.checked()
        one.whole()
    roots = [one.title for one in artifacts if of_hub(one)]
    if len(artifacts) > 1 and roots:
        raise Refused(
            f"{roots[0]}: its files lie at the root of a repository, expected it alone in one; publish it "
            "by itself"
        )


def publish(found: OnRecord, target: str, key: Any, place: str) -> str:
    """Upload the artifact, in one commit; its address."""
    repository, branch = parse(place)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "files")
        folder.mkdir()
        artifact, origin = found.artifact(target, Path(name)), found.origin(target, key)
        record = artifact.checked()
        artifact.whole()
        fill(folder, artifact, origin)
        model = targets.model_of(target)
        entry = found.catalogue["models"][model]
        stated = card.licence(source(found, model), entry.get("license", ""))
        words = ["--repository", repository, "--branch", branch]
        size = sum(one["size"] for one in artifact.files)
        forms = {artifact.title: {"bytes": size, "record": record}}
        if not of_hub(artifact):
            forms = {**there(found.root, words), **forms}
        text = card.card(artifact, origin, entry, stated, record, forms)
        (folder / "README.md").write_text(text)
        words += ["--folder", str(folder), "--message", f"{artifact.title}, verified"]
        if of_hub(artifact):
            words += ["--alone", artifact.title]
        done = at_hub(found.root, words)
        if done.returncode:
            raise Refused(f"{place}: not uploaded, see above; publish it again")
    return done.stdout.strip()


def there(root: Path, words: list[str]) -> dict[str, Any]:
    """The forms that the repository has by now, by title; empty where it cannot be asked."""
    done = at_hub(root, words)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def at_hub(root: Path, words: list[str]) -> subprocess.CompletedProcess:
    python = toolchains.build(root, TOOLCHAIN) / "bin/python"
    return subprocess.run(
        [str(python), "-P", "-m", MODULE, *words],
        env={**os.environ, "PYTHONPATH": str(root / "scripts")},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )


def fill(folder: Path, artifact: Artifact, origin: Origin) -> None:
    """The artifact's files, those of a folder below its name; its record, bill and provenance beside it.

    What is a repository of a hub by itself, such as a quantised checkpoint, is not below its name.
    """
    below = artifact.output["kind"] == "folder" and not of_hub(artifact)
    inside = folder / artifact.title if below else folder
    for one in artifact.files:
        path = inside / one["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(artifact.store.blob(one["digest"]))
    (folder / artifact.verified.name).write_bytes(artifact.verified.read_bytes())
    (folder / f"{artifact.title}.cdx.json").write_bytes(origin.bill)
    subjects = {one["path"]: one["digest"].removeprefix("sha256:") for one in artifact.files}
    said = envelope.statement(subjects, provenance.KIND, origin.predicate)
    text = envelope.sign(said, origin.key) if origin.key else canonical(said)
    (folder / f"{artifact.title}.sigstore.json").write_bytes(text)
    if origin.key:
        signed = envelope.sign(files_statement(artifact), origin.key)
        (inside / f"{artifact.title}{SIGNATURE}").write_bytes(signed)


def of_hub(artifact: Artifact) -> bool:
    """Is its folder a repository of a hub, as it is?"""
    row = row_of(f"artifacts/{artifact.title}")
    return bool(row and row.repository)


def source(found: OnRecord, model: str) -> Path:
    """The checkpoint's folder, with the card that states its licence; of a hub's it is fetched."""
    entry = found.catalogue["models"][model]
    if "path" in entry:
        path = found.cwd / entry["path"]
        return path if path.exists() else found.root / entry["path"]
    model = base_of(model, entry)
    folder = found.cwd / f"artifacts/{model}.hf"
    listing = found.listing(f"artifacts/{model}.hf/listing.json")
    named = [name for name in card.FILES if listing and name in listing["files"]]
    wanted = [f"artifacts/{model}.hf/{name}" for name in named if not (folder / name).exists()]
    if wanted:
        build(found.root, wanted, found.own, found.cwd)
    return folder if listing else folder / "not here"
