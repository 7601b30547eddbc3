"""What a record must look like to be believed: another writer, or a newer Ingot, may have made it."""

from pathlib import PurePosixPath
from typing import Any

from ingot.base import digest
from ingot.base.fields import Whole, held
from ingot.base.refused import Refused

SIZE = Whole(0, 2**63 - 1)
ENTRY = {
    "path": str,
    "digest?": str,
    "size?": SIZE,
    "executable?": bool,
    "link?": str,
    "folder?": bool,
}
OUTPUTS = [{"title": str, "kind": str, "digest": str, "size": SIZE, "entries?": [ENTRY]}]
MANIFEST = {
    "config": {"digest": str, "size": SIZE},
    "layers": [{"digest": str, "size": SIZE, "annotations": {str: str}}],
    "annotations": {"ingot.rule": str, "ingot.key": str, "ingot.outputs": str},
}


def check(manifest: Any, outputs: Any, layers: list[dict]) -> None:
    """Refused unless the outputs stay in their folders and are what their digests say.

    `layers` are those that the outputs would give.
    """
    held("record", manifest, MANIFEST)
    held("record", outputs, OUTPUTS)
    _name(manifest["config"]["digest"])
    if not outputs or manifest["layers"] != layers:
        raise Refused("record: its layers are not those of its outputs")
    for output in outputs:
        if output["title"] != PurePosixPath(output["title"]).name or not output["title"]:
            raise Refused(f"record: {output['title']!r} is a path, expected a name")
        if output["kind"] == "file":
            _name(output["digest"])
        elif output["kind"] == "folder" and "entries" in output:
            _folder(output)
        else:
            raise Refused(f"record: an output of kind {output['kind']!r}, expected file or folder")


def _name(name: str) -> None:
    if not digest.NAME.fullmatch(name):
        raise Refused(f"record: {name!r} is not a digest")


def _folder(output: dict) -> None:
    closed: set[PurePosixPath] = set()  # files and links: nothing lies below them
    for entry in output["entries"]:
        path = PurePosixPath(entry["path"])
        plain = str(path) == entry["path"] and "\0" not in entry["path"] and path.parts
        if not plain or path.is_absolute() or ".." in path.parts:
            raise Refused(f"record: {entry['path']!r} leaves its folder")
        if path in closed or closed & set(path.parents):
            raise Refused(f"record: {entry['path']!r} lies on or below another entry")
        kinds = {"digest", "link", "folder"} & set(entry)
        if len(kinds) != 1 or (kinds == {"digest"} and not {"size", "executable"} <= set(entry)):
            raise Refused(f"record: {entry['path']!r} is neither a file, a link nor a folder")
        if kinds == {"digest"}:
            _name(entry["digest"])
        closed.add(path)
    bare = [{k: v for k, v in entry.items() if k != "size"} for entry in output["entries"]]
    if output["digest"] != f"tree:{digest.of_json(bare)}":
        raise Refused("record: its entries are not those of its digest")
