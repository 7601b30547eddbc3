"""The files of a quantised checkpoint's folder: those of its source, those that were made, and no other."""

from pathlib import Path

from ingot.base import sealed
from ingot.base.fields import read_json
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import name_of

INDEX = "model.safetensors.index.json"


def hold_files(
    folder: Path, tokenizer: list[Path], shards: dict[str, str], index: bool = False
) -> None:
    """Refuse other files than a quantised checkpoint has; `shards` are by tensor, as the files hold them.

    `index`: has it one though all is in one file?
    """
    made = {"config.json", *shards.values()}
    if index or {*shards.values()} != {"model.safetensors"}:
        made.add(INDEX)
    source = {name_of(path): path for path in tokenizer if name_of(path) != "config.json"}
    found = {path.relative_to(folder).as_posix(): path for path in sealed.files(folder)}
    if odd := sorted({*found} ^ (made | {*source})):
        raise Refused(
            f"{folder / odd[0]}: there or missing, expected the checkpoint's files and no other"
        )
    for name, path in source.items():
        if found[name].read_bytes() != path.read_bytes():
            raise Refused(f"{folder / name}: its bytes differ, expected those of {path}")
    if INDEX in made and read_json(folder / INDEX).get("weight_map") != shards:
        raise Refused(f"{folder / INDEX}: weight_map is not where the tensors are, expected that")
