"""Triton model repositories, complete in themselves: artifacts/M_tpN[.QUANT][.GPU].triton.

Layout `engine`: an ensemble around an engine, as the guide builds it.  Layout `llmapi`: the checkpoint
itself, for versions that have no engines.
"""

from ingot.triton import schema as tritonmodels
from ingot.driver.catalogue import machine as needs


def layout(wildcards):
    return model(wildcards)["trtllm"]["layout"]


def triton_engine(wildcards):
    """The engine's directory, with layout `engine`."""
    if layout(wildcards) == "llmapi":
        return []
    return "artifacts/{model}_tp{tp}{quant}{gpu}.trtllm"


def triton_checkpoint(wildcards):
    """The checkpoint's files, with layout `llmapi`."""
    if layout(wildcards) == "engine":
        return []
    return [config_json(wildcards), *weights(wildcards)]


def triton_runtime(wildcards):
    """Parameters as JSON: what older flags of trtllm-build have become, then the catalogue's."""
    table = model(wildcards)["trtllm"]
    older = engine_build(wildcards).runtime if layout(wildcards) == "engine" else {}
    found = {**older, **table["runtime"]}
    if reason := tritonmodels.refused(layout(wildcards), found):
        sys.exit(f"error: models.{wildcards.model}.trtllm.runtime: {reason}; correct it")
    return json.dumps(found, sort_keys=True)


def triton_models(wildcards):
    """Our model.py files that the layout has."""
    names = ["preprocessing", "postprocessing", "tensorrt_llm_bls"]
    if layout(wildcards) == "llmapi":
        names = ["llmapi"]
    return [os.path.relpath(ROOT / "runtime/triton" / name / "model.py") for name in names]


rule assemble_triton:
    input:
        code=code("assemble_triton.py"),
        lock=lock("triton"),
        env=env("triton"),
        models=triton_models,
        tokenizer=tokenizer,
        engine=triton_engine,
        checkpoint=triton_checkpoint,
    output:
        directory("artifacts/{model}_tp{tp}{quant}{gpu}.triton"),
    log:
        "logs/assemble_triton/{model}_tp{tp}{quant}{gpu}.log",
    benchmark:
        "logs/assemble_triton/{model}_tp{tp}{quant}{gpu}.tsv"
    params:
        layout=layout,
        pp=trtllm_setting("pp"),
        runtime=triton_runtime,
    shell:
        """
        {PYTHON[triton]:q} {input.code[0]:q} \
            --layout {params.layout:q} \
            --engine {input.engine:q} \
            --checkpoint {input.checkpoint:q} \
            --tokenizer {input.tokenizer:q} \
            --models {input.models:q} \
            --tp {wildcards.tp} \
            --pp {params.pp} \
            --runtime {params.runtime:q} \
            --repository {output:q} \
            >{log:q}
        """


rule verify_triton:
    input:
        code=code("verify_triton.py"),
        lock=lock("triton"),
        env=env("triton"),
        repository="artifacts/{model}_tp{tp}{quant}{gpu}.triton",
        reference="artifacts/{model}.reference.npz",
    output:
        "artifacts/{model}_tp{tp}{quant}{gpu}.triton.verified.json",
    log:
        "logs/verify_triton/{model}_tp{tp}{quant}{gpu}.log",
    benchmark:
        "logs/verify_triton/{model}_tp{tp}{quant}{gpu}.tsv"
    resources:
        gpu=lambda wildcards: int(wildcards.tp) * model(wildcards)["trtllm"]["pp"],
    params:
        layout=layout,
        server=lambda wildcards: needs.triton_server(),
    shell:
        """
        {PYTHON[triton]:q} {input.code[0]:q} \
            --repository {input.repository:q} \
            --reference {input.reference:q} \
            --server {params.server:q} \
            --record {output:q} \
            >{log:q}
        """
