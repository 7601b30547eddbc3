"""config.pbtxt of each model, from the protobuf definition; never a filled-in text.

Source: model_config.proto of Triton (tritonclient's model_config_pb2).
"""

from ingot.formats.tensorrt.triton.schema import (  # fmt: skip
    ANSWER,
    BLS,
    ENGINE,
    ENGINE_BACKEND,
    ENSEMBLE,
    INPUTS,
    NUMBERS,
    OUTPUTS,
    POSTPROCESSING,
    POSTPROCESSING_INPUTS,
    PREPROCESSING,
    PREPROCESSING_INPUTS,
    PREPROCESSING_OUTPUTS,
    QUEUE,
    SAMPLING,
    Tensor,
    optional,
)

TOKENIZER = "tokenizer"  # below the version's folder of the two models that need it
PYTHON = {  # parameters of the models that are Python
    PREPROCESSING: {"tokenizer_dir": TOKENIZER, "add_special_tokens": "true"},
    POSTPROCESSING: {"tokenizer_dir": TOKENIZER, "skip_special_tokens": "true"},
    BLS: {"tensorrt_llm_model_name": ENGINE},
}
LLMAPI_IN = (
    Tensor("text_input", "STRING", (-1,)),
    optional("streaming", "BOOL"),
    optional("sampling_param_best_of", "INT32"),
    optional("sampling_param_temperature", "FP32"),
    optional("sampling_param_top_k", "INT32"),
    optional("sampling_param_top_p", "FP32"),
    optional("sampling_param_frequency_penalty", "FP32"),
    optional("sampling_param_presence_penalty", "FP32"),
    optional("sampling_param_max_tokens", "INT32"),
    optional("sampling_param_stop", "STRING", -1),
    optional("sampling_param_seed", "UINT64"),
    optional("return_finish_reason", "BOOL"),
    optional("return_stop_reason", "BOOL"),
    optional("return_cumulative_logprob", "BOOL"),
)
LLMAPI_OUT = (
    Tensor("text_output", "STRING", (-1,)),
    Tensor("finish_reason", "STRING", (-1,)),
    Tensor("stop_reason", "STRING", (-1,)),
    Tensor("cumulative_logprob", "FP32", (-1,)),
)


def definition():
    """Triton's protobuf messages, compiled."""
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2


def text(config) -> str:
    from google.protobuf import text_format

    return text_format.MessageToString(config)


def engine_models(engine_config: dict, parameters: dict[str, str], onnx: bool = False) -> list:
    """The five models; the batch size of each is the engine's, whose config.json `engine_config` is.

    `parameters` are the engine's; with `onnx` it is a model in Python.
    """
    batch, logits = engine_config["build_config"]["max_batch_size"], logits_type(engine_config)
    engine = {name: value for name, value in parameters.items() if name not in QUEUE}
    if not onnx:
        engine["gpt_model_path"] = f"{ENGINE}/1"  # from where `serve` starts the server
    found = [
        model(name, batch, PYTHON.get(name, engine))
        for name in (PREPROCESSING, POSTPROCESSING, ENGINE, BLS)
    ]
    for config in found:
        if config.name in (PREPROCESSING, ENGINE):
            queue = config.dynamic_batching
            queue.preferred_batch_size.append(batch)
            queue.max_queue_delay_microseconds = int(parameters.get(QUEUE[0], 0))
            queue.default_queue_policy.max_queue_size = int(parameters.get(QUEUE[1], 0))
        if config.name == POSTPROCESSING:
            config.dynamic_batching.SetInParent()
        if config.name in (ENGINE, BLS):
            config.model_transaction_policy.decoupled = True
        if config.name == ENGINE and onnx:
            config.backend = "python"
    found = [ensemble(batch), *found]
    for tensor in (tensor for config in found for tensor in config.output):
        if tensor.name.endswith("_logits"):
            tensor.data_type = definition().DataType.Value(f"TYPE_{logits}")
    return found


def logits_type(engine_config: dict) -> str:
    """What the engine gives logits in."""
    asked = engine_config["build_config"].get("logits_dtype") or engine_config[
        "pretrained_config"
    ].get("logits_dtype")
    return {"float16": "FP16", "bfloat16": "BF16"}.get(asked, "FP32")


def model(name: str, batch: int, parameters: dict[str, str]):
    config = definition().ModelConfig(name=name, max_batch_size=batch)
    config.backend = ENGINE_BACKEND if name == ENGINE else "python"
    tensors(config, INPUTS[name], OUTPUTS[name])
    config.instance_group.add(count=1, kind=definition().ModelInstanceGroup.KIND_CPU)  # on GPUs too
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def tensors(config, inputs, outputs) -> None:
    types = definition().DataType
    for listed, found in ((config.input, inputs), (config.output, outputs)):
        for tensor in found:
            one = listed.add(name=tensor.name, data_type=types.Value(f"TYPE_{tensor.type}"))
            one.dims.extend(tensor.dims)
            if tensor.scalar:
                one.reshape.SetInParent()  # to no dimension at all
            if tensor.optional:
                one.optional = True
            if tensor.ragged:
                one.allow_ragged_batch = True


def ensemble(batch: int):
    """Three steps; tensors that stay inside begin with an underscore."""
    config = definition().ModelConfig(name=ENSEMBLE, platform="ensemble", max_batch_size=batch)
    tensors(config, INPUTS[ENSEMBLE], OUTPUTS[ENSEMBLE])
    steps = config.ensemble_scheduling.step
    front = steps.add(model_name=PREPROCESSING, model_version=-1)
    front.input_map.update(PREPROCESSING_INPUTS)
    front.output_map.update({name: f"_{name}" for name in PREPROCESSING_OUTPUTS})
    engine = steps.add(model_name=ENGINE, model_version=-1)
    engine.input_map.update(
        {theirs: f"_{name}" for name, (theirs, *_) in PREPROCESSING_OUTPUTS.items()}
    )
    engine.input_map.update({theirs: ours for ours, (theirs, _) in SAMPLING.items()})
    engine.output_map.update({name: f"_{name}" for name in POSTPROCESSING_INPUTS.values()})
    engine.output_map.update({tensor.name: tensor.name for tensor in NUMBERS})
    back = steps.add(model_name=POSTPROCESSING, model_version=-1)
    back.input_map.update({theirs: f"_{ours}" for theirs, ours in POSTPROCESSING_INPUTS.items()})
    back.output_map["OUTPUT"] = ANSWER[0].name
    return config


def wiring() -> dict:
    """What the BLS model needs to know of the same."""
    return {
        "front_in": PREPROCESSING_INPUTS,
        "front_out": {name: theirs for name, (theirs, *_) in PREPROCESSING_OUTPUTS.items()},
        "sampling": {ours: theirs for ours, (theirs, _) in SAMPLING.items()},
        "numbers": [tensor.name for tensor in NUMBERS],
    }


def llmapi_model(batch: int, decoupled: bool):
    """One model; both settings stand here, since a server started as `serve` does never asks for
    the model's own."""
    config = definition().ModelConfig(name=ENGINE, backend="python", max_batch_size=batch)
    tensors(config, LLMAPI_IN, LLMAPI_OUT)
    config.instance_group.add(count=1, kind=definition().ModelInstanceGroup.KIND_CPU)
    config.model_transaction_policy.decoupled = decoupled
    return config
