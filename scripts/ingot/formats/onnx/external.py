"""An ONNX folder from outside: its graph, its data files and its lengths, checked against each other."""

from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from ingot.base.fields import Whole, read_json
from ingot.base.refused import Refused
from ingot.formats.onnx.attention import PAST
from ingot.formats.onnx.decoder import GRAPH
from ingot.formats.onnx.folder import ABOUT, GENAI

MOST = (2 << 30) - 1  # bytes of a graph: protobuf's own limit
BITS = {"FLOAT": 32, "FLOAT16": 16, "BFLOAT16": 16, "INT8": 8, "UINT8": 8, "INT32": 32, "INT64": 64}
LENGTHS = {
    "model": {
        "context_length": Whole(), "vocab_size": Whole(),
        "decoder": {
            "head_size": Whole(), "num_hidden_layers": Whole(), "num_key_value_heads": Whole(),
        },
    },
    "search": {"max_length": Whole()},
}  # fmt: skip


def read_graph(folder: Path, name: str = GRAPH) -> Any:
    """The graph's onnx.ModelProto without its data, which all lie whole in files of the folder.

    Refused: no graph, one above protobuf's limit, data outside of the folder, cut short or overlong.
    """
    path = folder / name
    if not path.is_file():
        raise Refused(f"{path}: missing, expected an ONNX graph")
    if path.stat().st_size > MOST:
        raise Refused(
            f"{path}: {path.stat().st_size / 1e9:.1f} GB, expected at most 2.1, protobuf's limit, and "
            "the weights in files beside it; export it with external data"
        )
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, ValueError):
        raise Refused(f"{path}: not an ONNX graph, expected one") from None
    ends: dict[str, int] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            file, end = _held(path, tensor)
            ends[file] = max(ends.get(file, 0), end)
    for file, end in ends.items():
        size = (folder / file).stat().st_size
        if size != end:
            raise Refused(
                f"{folder / file}: {size} bytes, expected {end} by {name}; it was cut short, or is "
                "another model's"
            )
    return model


def _held(path: Path, tensor: Any) -> tuple[str, int]:
    """The data file of a tensor, and where in it the tensor ends."""
    import onnx

    place = {entry.key: entry.value for entry in tensor.external_data}
    file = place.get("location", "")
    if not all(
        isinstance(value, str) for value in place.values()
    ):  # what is no UTF-8 comes as bytes
        raise Refused(f"{path}: not an ONNX graph, expected one")
    parts = PurePosixPath(file).parts
    inside = file and not PurePosixPath(file).is_absolute() and ".." not in parts
    found = path.parent / file
    steps = (path.parent / Path(*parts[:n]) for n in range(1, len(parts) + 1))
    if not inside or any(step.is_symlink() for step in steps):
        raise Refused(
            f"{path}: data of {tensor.name} lie in {file!r}, expected a file inside the folder"
        )
    if not found.is_file():
        raise Refused(f"{found}: missing, expected the data of {tensor.name}")
    try:
        start, size = int(place.get("offset", 0)), int(place["length"])
    except (KeyError, ValueError):
        raise Refused(f"{path}: {tensor.name} says no offset and length, expected both") from None
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    kind = names.get(tensor.data_type, "an unknown type")
    if start < 0 or size != prod(tensor.dims) * BITS.get(kind, 0) // 8:
        raise Refused(
            f"{path}: {tensor.name} has {size} bytes at {start}, expected those of {kind} "
            f"{list(tensor.dims)}"
        )
    return file, start + size


def hold_lengths(folder: Path, model: Any) -> None:
    """Refused when genai_config.json speaks of another model than the graph, or of a longer one."""
    path = folder / GENAI
    config = read_json(path, LENGTHS)
    about = read_json(folder / ABOUT, {"context": Whole(), "max_length": Whole()})
    pasts = [i for i in model.graph.input if i.name.startswith(PAST) and i.name.endswith(".key")]
    logits = next((o for o in model.graph.output if o.name == "logits"), None)
    shape, last = (
        [one.dim_value for one in value.type.tensor_type.shape.dim] if value else []
        for value in (pasts[0] if pasts else None, logits)
    )
    if len(shape) != 4 or len(last) != 3:
        raise Refused(
            f"{folder / GRAPH}: has no {PAST} of four dimensions and logits of three, expected a decoder "
            "with a KV cache"
        )
    decoder = config["model"]["decoder"]
    for key, found, wanted in (
        ("model.decoder.num_hidden_layers", decoder["num_hidden_layers"], len(pasts)),
        ("model.decoder.num_key_value_heads", decoder["num_key_value_heads"], shape[1]),
        ("model.decoder.head_size", decoder["head_size"], shape[3]),
        ("model.vocab_size", config["model"]["vocab_size"], last[2]),
        ("model.context_length", config["model"]["context_length"], about["context"]),
    ):  # fmt: skip
        if found != wanted:
            raise Refused(f"{path}: {key} is {found}, expected the graph's {wanted}")
    if config["search"]["max_length"] > about["context"]:
        raise Refused(
            f"{path}: search.max_length is {config['search']['max_length']}, expected at most the "
            f"model's context, {about['context']}; lower it"
        )
