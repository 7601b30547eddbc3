"""A checkpoint as a step is given it: exactly these files, so that no other affects what is built."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ingot.base import pieces
from ingot.base.fields import read_json
from ingot.base.refused import Refused

TEMPLATES = "additional_chat_templates"  # the one folder that a checkpoint has
ADAPTER = "adapter_config.json"  # of LoRA, beside its base's files


class Checkpoint:
    """Files of one Hugging Face checkpoint, by name; `files` is one folder, for all that it holds."""

    OPTION = "a folder, or files of one"  # of a step: options.py

    def __init__(self, files: list[Path]):
        if len(files) == 1 and not files[0].exists():
            raise Refused(f"{files[0]}: missing, expected a checkpoint's folder, or its files")
        whole = len(files) == 1 and files[0].is_dir()
        self.folder = files[0] if whole else files[0].parent  # as messages name it
        if whole:
            files = [*files[0].iterdir(), *(files[0] / TEMPLATES).glob("*.jinja")]
        self.files = {name_of(path): pieces.place(path) for path in files}
        if not whole and len(self.files) < len({*files}):
            raise Refused(f"{self.folder}: two files of one name, expected those of one checkpoint")

    def __str__(self) -> str:
        return str(self.folder)

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def __getitem__(self, name: str) -> Path:
        """Where file `name` is.  Refused when the step was not given it."""
        if name not in self.files:
            raise Refused(
                f"{self.folder / name}: missing, expected a file of the checkpoint; add it"
            )
        return self.files[name]

    def optional_json(self, name: str, expected: Any = None) -> dict:
        """The JSON object that file `name` holds, checked by `expected`; empty where it was not given."""
        return read_json(self.files[name], expected) if name in self.files else {}

    def apart(self) -> tuple["Checkpoint", "Checkpoint | None"]:
        """A base's files, and those of the adapter among them."""
        its = [path for name, path in self.files.items() if name.startswith("adapter_")]
        others = [path for path in self.files.values() if path not in its]
        return Checkpoint(others), Checkpoint(its) if its else None

    @contextmanager
    def as_folder(self) -> Iterator[Path]:
        """A folder of links to the files, for libraries that read a folder, and would miss an adapter."""
        if {ADAPTER, "config.json"} <= {*self.files}:
            raise Refused(f"{self.files[ADAPTER]}: an adapter, which this step cannot merge")
        with tempfile.TemporaryDirectory() as folder:
            for name, path in self.files.items():
                if path.is_file():
                    Path(folder, name).parent.mkdir(exist_ok=True)
                    Path(folder, name).symlink_to(path.absolute())
            yield Path(folder)


def name_of(path: Path) -> str:
    """As the checkpoint's own repository names it."""
    return f"{TEMPLATES}/{path.name}" if path.parent.name == TEMPLATES else path.name
