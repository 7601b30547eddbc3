"""How a target came to be: the records of its actions, from the sources on, and what it was built by."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from ingot.base import digest
from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import WHOLE, build, dry_run
from ingot.driver.catalogue import schema, targets
from ingot.driver.catalogue.formats.rows import RECORD
from ingot.driver.show import status
from ingot.model.hub.listing import read_listing
from ingot.registry import provenance, sbom
from ingot.registry.provenance import Step
from ingot.registry.published import Artifact, Origin, digest_of
from ingot.store import way
from ingot.store.records import Record, Store

ELSEWHERE = "(on the builder's machine)"
OUTSIDE = re.compile(r"(^|[=: ]|file://)[/~$]|(^|/)\.\.(/|$)")
LISTING = "/listing.json"


class OnRecord:
    """What is on record of some targets and of all that they are made from."""

    def __init__(
        self,
        root: Path,
        store: Store,
        wanted: list[str],
        catalogue: str | None = None,
        built: bool = True,
        cwd: Path = Path(),
        planned: bool = False,
        **environment: str,
    ):
        """Of what stands in the working folder `cwd`; where it is `planned`, of what would be built there.

        Refused, where they are to be `built`: targets that do not stand there as they are on record.
        `environment` is for the runs of Snakemake.
        """
        self.cwd, self.own = cwd, catalogue
        self.root, self.store, self.catalogue = root, store, schema.load(root, catalogue)
        for target in wanted:
            targets.check(target, self.catalogue)
        own = {"INGOT_STORE": str(store.root), **environment}
        if planned:
            self._found(dry_run(root, wanted, catalogue, cwd=cwd, **own))
        else:
            self._found(way.jobs(store, wanted, cwd))
        missing = [p for p, job in self.makers.items() if "recipe" in job and not self.record(p)]
        inside = os.environ.get(
            "INGOT_PARENT"
        )  # a step of a run, which has asked for the way itself
        if built and missing and not inside and not environment and os.environ.get("INGOT_REMOTE"):
            # fetched from the shared cache, of which the way to it was not asked
            build(root, wanted, catalogue, cwd, **own, **{WHOLE: "yes"})
            self._found(way.jobs(store, wanted, cwd))
        for target in wanted if built else ():
            if target not in self.makers or not self.record(target):
                why = f" (it failed: {reason})" if (reason := self._failure(target)) else ""
                known = "its bytes are not on record" if (cwd / target).exists() else "not here"
                raise Refused(
                    f"{target}: {known}{why}, expected it built and verified; snakemake "
                    f"{' '.join(wanted)}"
                )
            for path in self.makers[target]["outputs"]:  # of a set, each rank
                here = (cwd / path).exists()
                if here and digest.of(cwd / path) != self.output(path)["digest"]:
                    raise Refused(
                        f"{path}: not the bytes on record; `snakemake {target}` restores them"
                    )

    def _found(self, jobs: list[dict[str, Any]]) -> None:
        self.makers: dict[str, dict[str, Any]] = {}
        for job in jobs:
            for number, path in enumerate(job["outputs"]):
                other = self.makers.setdefault(path, job)
                known, here = (self._gave(one, number) for one in (other, job))
                if known != here and known and here:
                    raise Refused(
                        f"{path}: was built in two ways for what stands here, expected one; ask Snakemake "
                        "for all targets at once"
                    )

    def _gave(self, job: dict[str, Any], number: int) -> str:
        """The digest of an output; empty where it is on no record."""
        record = self.store.lookup(job["rule"], job["key"]) if "key" in job else None
        return record.outputs[number]["digest"] if record and number < len(record.outputs) else ""

    def _failure(self, target: str) -> str:
        """Why it was not built the last time, by its log; empty where it was, or nobody knows."""
        found = status.read()
        log = Path(found.failed.get(target, "")) if found else Path()
        if not log.is_file():
            return ""
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:400] if lines else ""

    def record(self, path: str) -> Record | None:
        """Of the action that makes `path`; None of a source, and of what is not cached."""
        job = self.makers.get(path, {})
        return self.store.lookup(job["rule"], job["key"]) if "key" in job else None

    def output(self, path: str) -> dict[str, Any]:
        """What the record says of `path`."""
        return self.outputs(path)[self.makers[path]["outputs"].index(path)]

    def outputs(self, path: str) -> list[dict[str, Any]]:
        """Those of the action that makes `path`, by the names that they have here."""
        record, paths = self.record(path), self.makers[path]["outputs"]
        assert record
        names = [one.rpartition("/")[2] for one in paths]
        return [{**one, "title": name} for one, name in zip(record.outputs, names, strict=True)]

    def steps(self, target: str) -> list[Step]:
        """The actions on the way to `target`, in an order in which they can run."""
        found: dict[str, Step] = {}

        def visit(path: str) -> None:
            for one in self.makers.get(path, {}).get("inputs", ()):
                visit(one)
            record = self.record(path)
            if record is None and "recipe" in self.makers.get(path, {}):
                raise Refused(
                    f"{path}: on no record here, expected all that {target} was made from; build it here "
                    "without its records, or publish where it was built"
                )
            if record and record.key not in found:
                found[record.key] = provenance.step(self.store, record, self.outputs(path))

        visit(target)
        return list(found.values())

    def listing(self, path: str) -> dict[str, Any] | None:
        """A hub's list of files, as it is on record or stands in the working folder."""
        record, place = self.record(path), self.cwd / path
        if record and not place.is_file():
            place = self.store.blob(record.outputs[0]["digest"])
        return read_listing(place) if place.is_file() else None

    def hub(self) -> dict[str, str]:
        """A hub's repository at its commit, by the digest of the listing."""
        found = {}
        for path in (path for path in self.makers if path.endswith(LISTING)):
            if said := self.listing(path):
                record = self.record(path)
                name = record.outputs[0]["digest"] if record else digest.of(self.cwd / path)
                found[name] = provenance.of_hub(said["hub"], said["revision"])
        return found

    def origin(self, target: str, key: Any = None) -> Origin:
        model = targets.model_of(target)
        entry = portable(self.catalogue["models"][model])
        steps = self.steps(target)
        said = provenance.predicate(target, {model: entry}, steps, self.hub(), commit(self.root))
        names = {name for step in steps for name in step.fields.get("lock", {})}
        locks = [self.root / "envs" / name for name in names if name.endswith(".lock")]
        output = self.output(target)
        bill = sbom.sbom(output["title"], digest_of(output), entry.get("license", ""), locks)
        return Origin(said, bill, key)

    def artifact(self, target: str, folder: Path) -> Artifact:
        """The target with its verification record, which is written into `folder` as it was.

        Not what stands in the working folder, which may have been edited; but what the store lacks of it
        comes from there, where it is what the record says.
        """
        record, said = self.record(target), self.output(target + RECORD)
        assert record
        self.bring(target)
        written = folder / said["title"]
        if not self.store.has(said["digest"]):
            raise Refused(f"{said['title']}: not in the store any more; verify it again")
        written.write_bytes(self.store.blob(said["digest"]).read_bytes())
        return Artifact(self.store, record, self.output(target), written, self.outputs(target))

    def bring(self, target: str) -> None:
        """Put into the store what it lacks of a folder, as built on a disk that was short."""
        folder = self.cwd / target
        for entry in self.output(target).get("entries", ()):
            path, name = folder / entry["path"], entry.get("digest", "")
            lacks = name and not self.store.has(name) and path.is_file()
            if lacks and digest.of(path) == name:
                try:
                    with self.store.locked("content", shared=True):
                        self.store.put(path, name, linked=False)
                except OSError as error:
                    raise Refused(
                        f"{path}: not copied to {self.store.root}, from where it is published "
                        f"({error.strerror}); make room there, or let it be written"
                    ) from None


def portable(value: Any) -> Any:
    """A catalogue's entry, in which each path of this machine is ELSEWHERE."""
    if isinstance(value, dict):
        return {name: portable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [portable(one) for one in value]
    return ELSEWHERE if isinstance(value, str) and OUTSIDE.search(value) else value


def commit(root: Path) -> str:
    """The commit that is checked out at `root`; empty where there is none, or something is edited."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", root, *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else "?"

    try:
        edited, found = (
            git("status", "--porcelain", "--untracked-files=no"),
            git("rev-parse", "HEAD"),
        )
    except OSError:  # no git
        return ""
    return "" if edited or len(found) != 40 else found
