"""TensorRT-LLM: artifacts/M_tpN[.VARIANT].trtllm-ckpt, and artifacts/M_tpN[.QUANT][.GPU].trtllm.

A checkpoint needs no GPU; an engine is built on one, for it and no other.
"""

import functools

from ingot.tensorrt import build_flags as engine
from ingot.tensorrt import gpus as nvidia
from ingot.tensorrt import trtllm
from ingot.checkpoint.config import read_config
from ingot.driver.forecast import gpu_memory as serving


wildcard_constraints:
    float=targets.optional(targets.TRTLLM_FLOATS),
    quant=targets.optional(targets.QUANTS),
    gpu=targets.optional(config["gpus"]),


def trtllm_setting(key):
    return lambda wildcards: model(wildcards)["trtllm"].get(key, "")


def trtllm_dtype(wildcards):
    return wildcards.get("float", "").lstrip(".") or model(wildcards)["dtype"]


def calibration(wildcards):
    """Texts to calibrate on: the model's own, or its prompts for verification."""
    entry = model(wildcards)
    named = entry["trtllm"].get("calibration") or entry.get("prompts")
    if not named:
        sys.exit(
            f"error: models.{wildcards.model}.trtllm.calibration: absent, expected a file of texts "
            "to calibrate on, a line each; name one"
        )
    return source(named)


def compute_capability(wildcards):
    gpu = wildcards.gpu.lstrip(".") or model(wildcards)["trtllm"]["gpu"]
    return config["gpus"][gpu]["compute_capability"]


def engine_build(wildcards):
    """The catalogue's flags, as the pinned version takes them."""
    table, tp = model(wildcards)["trtllm"], int(wildcards.tp)
    dtype = trtllm.DTYPES[model(wildcards)["dtype"]]
    try:
        found = engine.complete(table["build"], dtype, tp, table["pp"])
    except engine.Refused as reason:
        sys.exit(f"error: models.{wildcards.model}.trtllm.build: {reason}")
    for note in found.said if workflow.is_main_process else ():
        say_once(f"models.{wildcards.model}.trtllm.build: {note}")
    return found


@functools.cache
def say_once(text):
    print(text, file=sys.stderr)


def engine_memory(wildcards):
    """MB of host memory: a rank's weights twice, and TensorRT's own."""
    path = Path(config_json(wildcards))
    weight = 2 * serving.parameters(read_config(path)) if path.is_file() else 140e9
    ranks = int(wildcards.tp) * model(wildcards)["trtllm"]["pp"]
    return int(16_000 + 2.5 * weight / ranks / 1e6)


rule safetensors_to_trtllm:
    input:
        code=code("safetensors_to_trtllm.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=config_json,
        weights=weights,
    output:
        directory("artifacts/{model}_tp{tp}{float}.trtllm-ckpt"),
    log:
        "logs/safetensors_to_trtllm/{model}_tp{tp}{float}.log",
    benchmark:
        "logs/safetensors_to_trtllm/{model}_tp{tp}{float}.tsv"
    params:
        dtype=trtllm_dtype,
        architecture=setting("architecture"),
        pp=trtllm_setting("pp"),
        embedding=trtllm_setting("embedding"),
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --dtype {params.dtype:q} \
            --architecture {params.architecture:q} \
            --tp {wildcards.tp} \
            --pp {params.pp} \
            --embedding {params.embedding:q} \
            --trtllm-checkpoint {output:q} \
            >{log:q}
        """


rule quantize_trtllm:
    input:
        code=code("quantize_trtllm.py"),
        lock=lock("modelopt"),
        env=env("modelopt"),
        config=config_json,
        tokenizer=tokenizer,
        weights=weights,
        calibration=calibration,
    output:
        directory("artifacts/{model}_tp{tp}.{quantised}.trtllm-ckpt"),
    log:
        "logs/quantize_trtllm/{model}_tp{tp}.{quantised}.log",
    benchmark:
        "logs/quantize_trtllm/{model}_tp{tp}.{quantised}.tsv"
    wildcard_constraints:
        quantised="|".join(targets.QUANTS),
    params:
        dtype=trtllm_dtype,
        architecture=setting("architecture"),
        pp=trtllm_setting("pp"),
        embedding=trtllm_setting("embedding"),
    shell:
        """
        {PYTHON[modelopt]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --calibration {input.calibration:q} \
            --quant {wildcards.quantised:q} \
            --dtype {params.dtype:q} \
            --architecture {params.architecture:q} \
            --tp {wildcards.tp} \
            --pp {params.pp} \
            --embedding {params.embedding:q} \
            --trtllm-checkpoint {output:q} \
            >{log:q}
        """


rule build_engine:
    input:
        code=code("build_engine.py"),
        lock=lock("trtllm"),
        checkpoint="artifacts/{model}_tp{tp}{quant}.trtllm-ckpt",
    output:
        directory("artifacts/{model}_tp{tp}{quant}{gpu}.trtllm"),
    log:
        "logs/build_engine/{model}_tp{tp}{quant}{gpu}.log",
    benchmark:
        "logs/build_engine/{model}_tp{tp}{quant}{gpu}.tsv"
    resources:
        gpu=1,
        mem_mb=engine_memory,
        runtime=240,  # minutes
    params:
        flags=lambda wildcards: engine_build(wildcards).arguments(),
        compute_capability=compute_capability,
        versions=lambda wildcards: nvidia.versions(),
    shell:
        """
        {sys.executable:q} {input.code[0]:q} \
            --trtllm-checkpoint {input.checkpoint:q} \
            --engine {output:q} \
            --compute-capability {params.compute_capability:q} \
            --versions {params.versions:q} \
            --workers {resources.gpu} \
            -- {params.flags:q} \
            >{log:q}
        """


rule verify_trtllm:
    input:
        code=code("verify_trtllm.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=config_json,
        weights=weights,
        checkpoint="artifacts/{model}_tp{tp}{variant}.trtllm-ckpt",
    output:
        "artifacts/{model}_tp{tp}{variant}.trtllm-ckpt.verified.json",
    log:
        "logs/verify_trtllm/{model}_tp{tp}{variant}.log",
    benchmark:
        "logs/verify_trtllm/{model}_tp{tp}{variant}.tsv"
    wildcard_constraints:
        variant=targets.optional((*targets.TRTLLM_FLOATS, *targets.QUANTS)),
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --trtllm-checkpoint {input.checkpoint:q} \
            --record {output:q} \
            >{log:q}
        """
