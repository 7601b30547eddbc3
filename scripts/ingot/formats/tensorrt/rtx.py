"""TensorRT for RTX: the one compiler of the TensorRT family that needs no GPU."""

import json
from pathlib import Path

from ingot.base.fields import Whole, read_json
from ingot.base.refused import Refused

TARGETS = ("SM86", "SM89", "SM120")  # it could build for SM75, SM80, SM121 too: no H100, no B200
LICENSE = """\
model.engine was built by NVIDIA TensorRT for RTX, which is proprietary software.  Whether and how this
file may be used or passed on is for its license to say, which comes with the package tensorrt_rtx.
"""


def longest(onnx: Path) -> int:
    """How many tokens the engine takes: as many as the graph's folder says that a server reserves.

    Refused when the graph has a KV cache: it would be built, but its inputs lie in the engine in an
    arbitrary order, and no second build could be checked against it.
    """
    about = read_json(onnx / "graph.json", {"max_length": Whole(), "graph": str})
    if about["graph"] != "prefill":
        raise Refused(
            f"{onnx}: its graph is {about['graph']}, expected prefill; ask for M.prefill.onnx"
        )
    return about["max_length"]


def texts(longest: int) -> dict[str, str]:
    """What lies beside the engine."""
    from importlib.metadata import version

    versions = {name: version(name) for name in ("tensorrt_rtx", "onnx")}
    config = {"targets": TARGETS, "max_seq_len": longest, "versions": versions}
    return {"config.json": json.dumps(config, indent=2) + "\n", "LICENSE": LICENSE}


def build_engine(path: Path, longest: int) -> bytes:
    """The engine's bytes: the same whenever the graph and the version are."""
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise Refused(f"{path.name}: {parser.get_error(0).desc()}; the graph is ours: report it")
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(TARGETS)
    for number, target in enumerate(TARGETS):
        config.set_compute_capability(getattr(trt.ComputeCapability, target), number)
    profile = builder.create_optimization_profile()
    profile.set_shape("input_ids", (1, 1), (1, min(64, longest)), (1, longest))
    config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    if built is None:
        raise Refused(
            f"{path.name}: no engine for {', '.join(TARGETS)}; the log has the builder's words"
        )
    return bytes(built)
