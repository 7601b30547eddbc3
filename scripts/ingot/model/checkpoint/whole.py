"""Is a checkpoint what its config.json says: just these tensors, each of its shape and kind?"""

from collections.abc import Collection

from ingot.base.refused import Refused
from ingot.model.checkpoint import scales
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.checkpoint.safetensors import BESIDE, INSIDE, Tensor, same_bytes
from ingot.model.config import ModelConfig
from ingot.model.specs import DROPPED, EMBEDDING, HEAD, shapes_of, specs_of

Tensors = dict[str, Tensor]


def hold(
    checkpoint: Checkpoint, config: ModelConfig, tensors: Tensors, in_pieces: bool = False
) -> None:
    """Refused: a checkpoint of other tensors than GGUF has a place for."""
    specs, expected = specs_of(config, "f16"), shapes_of(config)
    _hold_packing(checkpoint, tensors, next((one.source for one in specs if one.packed), ""))
    check(checkpoint, config, tensors, expected | _scales(config, tensors, expected), in_pieces)
    _hold_codes(tensors, {name for spec in specs if spec.packed for name in spec.sources})


def check(
    checkpoint: Checkpoint,
    config: ModelConfig,
    tensors: Tensors,
    expected: dict[str, tuple[int, ...]],
    in_pieces: bool = False,
) -> None:
    """Refused: other tensors than `expected`, or another shape."""
    dropped = DROPPED
    if config.tied and HEAD in tensors:
        if in_pieces:
            raise Refused(
                f"{tensors[HEAD].path}: {HEAD} is to be compared with the embedding, expected "
                "both at once; build it by snakemake"
            )
        hold_tied(tensors)
        dropped = (*dropped, HEAD)
    # of a model that also sees: its other parts, and names of its part for text
    beside, inside = BESIDE if config.family.inner else (), tuple(INSIDE)
    first = config.layers  # behind them, layers that guess further tokens
    beside += tuple(f"model.layers.{first + n}." for n in range(config.guessing))
    extra = [
        name
        for name, tensor in tensors.items()
        if (name not in expected and not name.endswith(dropped) and not name.startswith(beside))
        or (not config.family.inner and tensor.name.startswith(inside))
    ]
    if extra:
        raise Refused(
            f"{tensors[extra[0]].path}: {len(extra)} tensors have no place by config.json, first "
            f"{extra[0]}; no such tensor is a {config.architecture}'s of these sizes"
        )
    for name, shape in expected.items():
        if name not in tensors:
            raise Refused(
                f"{checkpoint}: tensor {name} is in no shard, expected by config.json; the two do not "
                "belong together"
            )
        if tensors[name].shape != shape:
            tensor = tensors[name]
            raise Refused(
                f"{tensor.path}: tensor {name} has shape {list(tensor.shape)}, expected "
                f"{list(shape)} by config.json; the two do not belong together"
            )


def hold_tied(tensors: Tensors) -> None:
    """Refused: a head beside tied embeddings that is not they: transformers 5 takes it as it is."""
    head = tensors[HEAD]
    if not same_bytes(tensors[EMBEDDING], head):
        raise Refused(
            f"{head.path}: {HEAD} is not the embedding, but tie_word_embeddings is true; set it to "
            "false in config.json where the head was trained, or take the head out"
        )


def _scales(
    config: ModelConfig, tensors: Tensors, names: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """The scales that weights of FP8 must have, by name."""
    found = {}
    for name in names:
        tensor = tensors.get(name)
        factors = tensors.get(scales.name_of(name))
        if tensor and tensor.dtype == scales.CODES:
            if factors and factors.dtype == scales.CODES:
                raise Refused(
                    f"{factors.path}: tensor {factors.name} has dtype {factors.dtype}, expected a float"
                )
            if len(tensor.shape) != 2:
                raise Refused(
                    f"{tensor.path}: tensor {name} is FP8 of shape {list(tensor.shape)}, expected "
                    "rows and columns"
                )
            found[scales.name_of(name)] = scales.shape_of(tensor, config.scaled)
    return found


def _hold_packing(checkpoint: Checkpoint, tensors: Tensors, first: str) -> None:
    """Refused: experts that config.json says to be codes and are values, as merged ones may be."""
    if first in tensors:
        raise Refused(
            f"{checkpoint['config.json']}: quantization_config says mxfp4, but {first} is "
            f"{tensors[first].dtype}; take quantization_config out"
        )


def _hold_codes(tensors: Tensors, names: set[str]) -> None:
    """Refused: bytes where values belong, and the other way round."""
    for name, tensor in tensors.items():
        if (tensor.dtype == "U8") is not (name in names):
            expected = "U8" if name in names else "a float"
            raise Refused(
                f"{tensor.path}: tensor {name} has dtype {tensor.dtype}, expected {expected}; the "
                "checkpoint and its config.json do not belong together"
            )
