"""TensorRT for RTX: the one compiler of the TensorRT family that needs no GPU."""

from pathlib import Path

from ingot.refused import Refused

TARGETS = (
    "SM75",
    "SM80",
    "SM86",
    "SM89",
    "SM120",
    "SM121",
)  # that it can build for: no H100, no B200


def build_engine(path: Path, targets: list[str], longest: int) -> bytes:
    """The engine's bytes: the same whenever the graph, the targets and the version are."""
    import tensorrt_rtx as trt

    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    flags = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(flags)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(path)):
        raise Refused(f"{path.name}: {parser.get_error(0).desc()}; the graph is ours: report it")
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(targets)
    for number, target in enumerate(targets):
        config.set_compute_capability(getattr(trt.ComputeCapability, target), number)
    profile = builder.create_optimization_profile()
    profile.set_shape("input_ids", (1, 1), (1, min(64, longest)), (1, longest))
    config.add_optimization_profile(profile)
    built = builder.build_serialized_network(network, config)
    if built is None:
        raise Refused(
            f"{path.name}: no engine for {', '.join(targets)}; the log has the builder's words"
        )
    return bytes(built)
