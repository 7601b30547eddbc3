"""Take a model of your own out of the catalogue: what `ingot add` wrote to models.local.yaml.

Its artifacts stay: the files of this folder, and what the store has of them.
"""

import difflib
import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any, NoReturn

from ingot.base.refused import Refused
from ingot.driver.catalogue import own_file, schema, targets


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("model", help=f"its name in {schema.LOCAL}")


def run(root: Path, options: Namespace) -> None:
    name, own = options.model, schema.of_folder().get("models")
    if not isinstance(own, dict) or name not in own:
        stop_on_none(root, name, own if isinstance(own, dict) else {})
    shipped = name in schema.read(root / schema.FILE)["models"]
    based = [one for one, entry in own.items() if _base(entry) == name]
    if based and not shipped:
        raise Refused(
            f"{name}: {', '.join(based)} rests on it, expected no adapter; remove {based[0]} first"
        )
    if serving := [one for one, entry in own.items() if name in _served(entry)]:
        raise Refused(
            f"{name}: models.{serving[0]}.vllm.adapters names it, expected an adapter that nothing serves; "
            "take it out there first"
        )
    own_file.remove(name)
    left = f"; {name} is that of {schema.FILE} again" if shipped else ""
    print(f"{Path(schema.LOCAL).resolve()}: {name} removed{left}")
    here = [path for path in Path(targets.FOLDER).glob(f"{name}[._]*") if _is_of(path, name)]
    if here and not shipped:
        print(f"its files stay; without them: rm -r {shlex.join(map(str, sorted(here)))}")


def stop_on_none(root: Path, name: str, own: dict) -> NoReturn:
    """Refuse a name that the user's own file does not have."""
    if name in schema.read(root / schema.FILE)["models"]:
        raise Refused(
            f"{name}: shipped with Ingot, expected a model of your own, of {schema.LOCAL}"
        )
    near = difflib.get_close_matches(targets.model_of(name.lower()), own, 1)
    hint = f"nearest: {near[0]}" if near else f"it has {', '.join(own) or 'none'}"
    raise Refused(f"{name}: no model of {schema.LOCAL}; {hint}")


def _base(entry: Any) -> str | None:
    """Of an adapter; of what is no entry at all, none."""
    adapter = entry.get("adapter") if isinstance(entry, dict) else None
    return adapter.get("base") if isinstance(adapter, dict) else None


def _served(entry: Any) -> list[str]:
    """The adapters that vLLM serves beside an entry's model."""
    served = entry.get("vllm") if isinstance(entry, dict) else None
    names = served.get("adapters") if isinstance(served, dict) else None
    return names if isinstance(names, list) else []


def _is_of(path: Path, name: str) -> bool:
    return targets.model_of(path.name) == name
