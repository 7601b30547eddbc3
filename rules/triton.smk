"""Triton model repositories, complete in themselves: artifacts/M_tpN[.QUANT][.GPU].triton.

Backend `engine`: an ensemble around an engine, as the guide builds it.  Backend `onnx`: the same around
ONNX Runtime on the CPU.  Backend `llmapi`: the checkpoint itself, or M.QUANT.safetensors, for versions that
have no engines.
"""

from ingot.driver.catalogue import machine


rule assemble_triton:
    input:
        code=code("assemble_triton.py"),
        lock=lock("triton"),
        env=env("triton"),
        models=engines.models,
        tokenizer=inputs.tokenizer,
        engine=engines.engine,
        onnx=engines.onnx,
        checkpoint=engines.checkpoint,
    output:
        directory("artifacts/{model}_tp{tp}{quant}{gpu}.triton"),
    log:
        "logs/assemble_triton/{model}_tp{tp}{quant}{gpu}.log",
    benchmark:
        "logs/assemble_triton/{model}_tp{tp}{quant}{gpu}.tsv"
    wildcard_constraints:
        quant=targets.optional((*tensorrt.QUANTS, *tensorrt.SERVED)),
    params:
        backend=engines.backend,
        pp=setting("pp", "trtllm"),
        runtime=engines.runtime,
    shell:
        """
        {PYTHON[triton]:q} {input.code[0]:q} \
            --backend {params.backend:q} \
            --engine {input.engine:q} \
            --onnx {input.onnx:q} \
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
        models=engines.models,
        tokenizer=inputs.tokenizer,
        engine=engines.engine,
        onnx=engines.onnx,
        checkpoint=engines.checkpoint,
        repository="artifacts/{model}_tp{tp}{quant}{gpu}.triton",
        reference=engines.reference,
        texts="artifacts/{model}.texts.json",
    output:
        "artifacts/{model}_tp{tp}{quant}{gpu}.triton.verified.json",
    log:
        "logs/verify_triton/{model}_tp{tp}{quant}{gpu}.log",
    benchmark:
        "logs/verify_triton/{model}_tp{tp}{quant}{gpu}.tsv"
    wildcard_constraints:
        quant=targets.optional((*tensorrt.QUANTS, *tensorrt.SERVED)),
    resources:
        gpu=inputs.gpus("verify_triton"),
    params:
        backend=engines.backend,
        pp=setting("pp", "trtllm"),
        runtime=engines.runtime,
        server=lambda wildcards: machine.triton_server(),
    shell:
        """
        {PYTHON[triton]:q} {input.code[0]:q} \
            --backend {params.backend:q} \
            --engine {input.engine:q} \
            --onnx {input.onnx:q} \
            --checkpoint {input.checkpoint:q} \
            --tokenizer {input.tokenizer:q} \
            --models {input.models:q} \
            --tp {wildcards.tp} \
            --pp {params.pp} \
            --runtime {params.runtime:q} \
            --repository {input.repository:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --server {params.server:q} \
            --record {output:q} \
            >{log:q}
        """
