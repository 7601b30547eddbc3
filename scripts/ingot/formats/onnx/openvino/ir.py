"""OpenVINO's IR of a decoder: stateful, with beam_idx, as openvino_genai and optimum-intel load it.

Read from our own ONNX graph: no torch, no optimum, no NNCF.  int8 weights stay int8 constants.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ingot.base.refused import Refused
from ingot.formats.onnx.attention import PAST, PRESENT
from ingot.formats.onnx.decoder import GRAPH
from ingot.model.checkpoint.files import Checkpoint

STEM = "openvino_model"
TOKENIZERS = ("openvino_tokenizer", "openvino_detokenizer")
NAMES = tuple(f"{stem}.{end}" for stem in (STEM, *TOKENIZERS) for end in ("xml", "bin"))
NEEDED = ("tokenizer.json", "tokenizer_config.json")


def convert(onnx: Path, folder: Path) -> None:
    """The ONNX folder's graph as openvino_model.xml and .bin in `folder`."""
    import openvino
    from openvino import opset13
    from openvino._offline_transformations import apply_make_stateful_transformation

    model = openvino.Core().read_model(str(onnx / GRAPH))
    beam = opset13.parameter([-1], np.int32, name="beam_idx")
    beam.output(0).get_tensor().add_names({"beam_idx"})
    pasts = [port for port in model.inputs if port.get_any_name().startswith(PAST)]
    model.add_parameters([beam])
    for port in pasts:  # a beam search takes each row's past from the row that it came from
        readers = list(port.get_target_inputs())
        chosen = opset13.gather(port, beam, opset13.constant(np.int64(0)))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    model.validate_nodes_and_infer_types()
    names = (port.get_any_name() for port in pasts)
    states = {name: name.replace(PAST, PRESENT) for name in names}
    apply_make_stateful_transformation(model, states)
    _begin_empty(model)
    openvino.save_model(model, str(folder / f"{STEM}.xml"), compress_to_fp16=False)


def _begin_empty(model: Any) -> None:
    """Say that each state begins without tokens.

    Without it, the CPU's plugin does not compile a model of as many KV heads as heads ("ReadValue contains
    less parent edges").
    """
    from openvino import opset13

    shape = opset13.shape_of(model.input("input_ids"))
    batch = opset13.gather(shape, opset13.constant([0]), opset13.constant(0))
    for op in model.get_ops():
        if op.get_type_name() == "ReadValue":
            _, heads, _, size = op.get_output_partial_shape(0)
            rest = opset13.constant([heads.get_length(), 0, size.get_length()])
            empty = opset13.concat([batch, rest], 0)
            zero = opset13.constant(0, op.get_output_element_type(0))
            op.set_arguments([opset13.broadcast(zero, empty)])
    model.validate_nodes_and_infer_types()


def convert_tokenizer(tokenizer: list[Path], folder: Path) -> None:
    """The tokenizer and the detokenizer as IRs.  Refused without the files that they are made from."""
    files = Checkpoint(tokenizer)
    for name in NEEDED:
        if name not in files:
            raise Refused(f"{name}: not in the checkpoint, expected by openvino_tokenizers; add it")
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from transformers import AutoTokenizer

    with files.as_folder() as place:
        source = AutoTokenizer.from_pretrained(str(place), local_files_only=True)
    for stem, model in zip(
        TOKENIZERS, convert_tokenizer(source, with_detokenizer=True), strict=True
    ):
        openvino.save_model(model, str(folder / f"{stem}.xml"), compress_to_fp16=False)


MOVES = ("Add", "Subtract", "Less", "LessEqual", "Greater", "GreaterEqual")


def said(folder: Path) -> tuple[set[np.float32], set[int]]:
    """What no run of a few tokens shows of an IR: the epsilons of its norms, and where windows may end.

    An epsilon is what is added below a root; of a norm that is one operation, its attribute.  A window
    is a whole number that positions are moved by, or compared with.
    """
    import openvino

    epsilons, numbers = set(), set()
    for op in openvino.Core().read_model(str(folder / f"{STEM}.xml")).get_ops():
        kind = op.get_type_name()
        if kind == "MVN":
            epsilons.add(np.float32(op.get_attributes()["eps"]))
        elif kind in ("Sqrt", "Power"):
            below = op.input_value(0).get_node()
            if below.get_type_name() == "Add":
                epsilons |= {np.float32(one) for port in below.input_values() for one in _one(port)}
        elif kind in MOVES:
            found = (one for port in op.input_values() for one in _one(port))
            numbers |= {int(one) for one in found if one == int(one)}
    return epsilons, numbers


def _one(port: Any) -> list[float]:
    """The number that a port gives, if it is a constant of one."""
    node = port.get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    constant = node.get_type_name() == "Constant" and node.data.size == 1
    return [float(node.data.reshape(()))] if constant else []
