"""TensorRT-LLM: artifacts/M_tpN[.VARIANT].trtllm-ckpt, and artifacts/M_tpN[.QUANT][.GPU].trtllm.

A checkpoint needs no GPU; an engine is built on one, for it and no other.
"""

from ingot.formats.tensorrt import gpus


rule safetensors_to_trtllm:
    input:
        code=code("safetensors_to_trtllm.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=inputs.config_json,
        weights=inputs.weights,
    output:
        directory("artifacts/{model}_tp{tp}{float}.trtllm-ckpt"),
    log:
        "logs/safetensors_to_trtllm/{model}_tp{tp}{float}.log",
    benchmark:
        "logs/safetensors_to_trtllm/{model}_tp{tp}{float}.tsv"
    params:
        dtype=engines.dtype,
        architecture=setting("architecture"),
        pp=setting("pp", "trtllm"),
        embedding=setting("embedding", "trtllm"),
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
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
        calibration=engines.calibration,
    output:
        directory("artifacts/{model}_tp{tp}.{quantised}.trtllm-ckpt"),
    log:
        "logs/quantize_trtllm/{model}_tp{tp}.{quantised}.log",
    benchmark:
        "logs/quantize_trtllm/{model}_tp{tp}.{quantised}.tsv"
    wildcard_constraints:
        quantised="|".join(tensorrt.QUANTS),
    params:
        dtype=engines.dtype,
        architecture=setting("architecture"),
        pp=setting("pp", "trtllm"),
        embedding=setting("embedding", "trtllm"),
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
        gpu=inputs.gpus("build_engine"),
    params:
        flags=engines.flags,
        compute_capability=engines.compute_capability,
        versions=lambda wildcards: gpus.versions(),
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
        reading="artifacts/{model}.reading.json",
        digests=engines.digests,
        checkpoint="artifacts/{model}_tp{tp}{variant}.trtllm-ckpt",
    output:
        "artifacts/{model}_tp{tp}{variant}.trtllm-ckpt.verified.json",
    log:
        "logs/verify_trtllm/{model}_tp{tp}{variant}.log",
    benchmark:
        "logs/verify_trtllm/{model}_tp{tp}{variant}.tsv"
    wildcard_constraints:
        variant=targets.optional(tensorrt.FLOATS),
    params:
        dtype=engines.dtype,
        pp=setting("pp", "trtllm"),
        embedding=setting("embedding", "trtllm"),
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --digests {input.digests:q} \
            --reading {input.reading:q} \
            --dtype {params.dtype:q} \
            --tp {wildcards.tp} \
            --pp {params.pp} \
            --embedding {params.embedding:q} \
            --trtllm-checkpoint {input.checkpoint:q} \
            --record {output:q} \
            >{log:q}
        """


rule verify_quantised:
    input:
        code=code("verify_trtllm.py"),
        lock=lock("transformers"),
        env=env("transformers"),
        config=inputs.config_json,
        reading="artifacts/{model}.reading.json",
        digests="artifacts/{model}.digests.json",
        weights=inputs.weights,
        checkpoint="artifacts/{model}_tp{tp}.{variant}.trtllm-ckpt",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}_tp{tp}.{variant}.trtllm-ckpt.verified.json",
    log:
        "logs/verify_quantised/{model}_tp{tp}.{variant}.log",
    benchmark:
        "logs/verify_quantised/{model}_tp{tp}.{variant}.tsv"
    wildcard_constraints:
        variant="|".join(tensorrt.QUANTS),
    params:
        dtype=engines.dtype,
        pp=setting("pp", "trtllm"),
        embedding=setting("embedding", "trtllm"),
        limits=inputs.limits("variant"),
    shell:
        """
        {PYTHON[transformers]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --digests {input.digests:q} \
            --reading {input.reading:q} \
            --dtype {params.dtype:q} \
            --quant {wildcards.variant:q} \
            --tp {wildcards.tp} \
            --pp {params.pp} \
            --embedding {params.embedding:q} \
            --trtllm-checkpoint {input.checkpoint:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """
