"""models.local.yaml as its user sees it: an entry is put in or taken out, and other lines stay."""

import json
import re
from pathlib import Path
from typing import Any

from ingot.base.atomic import replacing
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema

HEADER = (
    "# Models of your own, by `ingot add`; edit it as you like.  It is read over models.yaml.\n"
)
SHARED = (
    "{}: {}: shares its lines, expected lines of its own, since they are replaced; edit the file"
)


def write(root: Path, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Append the entry, or replace the one of its name; the catalogue with it.

    Refused before: a file of another form.
    """
    import yaml

    path, text = Path(schema.LOCAL), yaml_of(name, entry)
    before = path.read_text() if path.is_file() else HEADER
    if not before.endswith("\n"):
        before += "\n"
    wanted = yaml.safe_load(before) or {}
    before += "" if "models" in wanted else "models:\n"
    there = name in (wanted.get("models") or {})
    after = replaced(before, name, text) if there else before + text
    try:
        found = yaml.safe_load(after)
        right = {
            **wanted,
            "models": {
                **(wanted.get("models") or {}),
                **yaml.safe_load(f"models:\n{text}")["models"],
            },
        }
    except yaml.YAMLError:
        found, right = None, {}
    if found != right and there:
        raise Refused(SHARED.format(path, name))
    if found != right:
        raise Refused(
            f"{path}: its last part is not `models:`, expected that, since entries are appended; move it"
        )
    catalogue = schema.load(root, None, found)
    with replacing(path) as partial:
        partial.write_text(after)
    return catalogue


def remove(name: str) -> None:
    """Take an entry out; the file goes with its last one, where nothing else is in it."""
    import yaml

    path = Path(schema.LOCAL)
    before = path.read_text()
    wanted = yaml.safe_load(before)
    del wanted["models"][name]
    after = replaced(before, name, "")
    if not wanted["models"]:
        del wanted["models"]
        after = re.sub(r"^models:[ \t]*(#.*)?\n", "", after, count=1, flags=re.M)
    try:
        found = yaml.safe_load(after) or {}
    except yaml.YAMLError:
        found = None
    if found != wanted:
        raise Refused(SHARED.format(path, name))
    if not wanted and after.replace(HEADER, "").strip() in ("", "models:"):
        path.unlink()
        return
    with replacing(path) as partial:
        partial.write_text(after)


def yaml_of(name: str, entry: dict[str, Any]) -> str:
    """The entry's lines below `models:`; dimensions and sizes each on one."""
    lines = [f"  {name}:"]
    for key, value in entry.items():
        lines.append(f"    {key}: {_word(value)}")
    return "\n".join(lines) + "\n"


def _word(value: Any) -> str:
    """As it stands on a line, read by YAML as it is."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_word(one)}' for key, one in value.items())}}}"
    if isinstance(value, float) and "." not in repr(value):
        return repr(value).replace("e", ".0e")  # else a text to YAML
    return json.dumps(value, ensure_ascii=False)


def replaced(before: str, name: str, text: str) -> str:
    """A catalogue with `text` in place of an entry's lines; comments behind these stay."""
    import yaml

    lines = before.splitlines(keepends=True)
    entries = next(node.value for key, node in yaml.compose(before).value if key.value == "models")
    found = [(key, node) for key, node in entries if key.value == name]
    if not found:  # it came by a merge
        raise Refused(SHARED.format(schema.LOCAL, name))
    key, node = found[0]
    # a mapping in lines ends where the next thing begins
    scalar = isinstance(node, yaml.ScalarNode)  # of an entry that is none
    inline = node.style not in ("|", ">") if scalar else node.flow_style
    start, end = key.start_mark.line, node.end_mark.line + bool(inline)
    while not lines[end - 1].partition("#")[0].strip():
        end -= 1
    return "".join([*lines[:start], text, *lines[end:]])
