"""Checkpoint to GGUF: artifacts/M[.f32|.f16|.bf16|.q8_0].gguf, and k-quants by libllama."""


rule safetensors_to_gguf:
    input:
        code=code("safetensors_to_gguf.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
    output:
        "artifacts/{model}{dtype}.gguf",
    log:
        "logs/safetensors_to_gguf/{model}{dtype}.log",
    benchmark:
        "logs/safetensors_to_gguf/{model}{dtype}.tsv"
    params:
        dtype=inputs.dtype,
        name=setting("name"),
        pre_tokenizer=setting("pre_tokenizer"),
        license=setting("license"),
        architecture=setting("architecture"),
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --gguf {output:q} \
            --dtype {params.dtype:q} \
            --name {params.name:q} \
            --pre-tokenizer {params.pre_tokenizer:q} \
            --license={params.license:q} \
            --architecture {params.architecture:q} \
            >{log:q}
        """


rule quantize_gguf:
    input:
        code=code("quantize_gguf.py"),
        lock=lock("llamacpp"),
        env=env("llamacpp"),
        gguf="artifacts/{model}.f32.gguf",
    output:
        "artifacts/{model}.{quant}.gguf",
    log:
        "logs/quantize_gguf/{model}.{quant}.log",
    benchmark:
        "logs/quantize_gguf/{model}.{quant}.tsv"
    wildcard_constraints:
        quant="|".join(gguf.K_QUANTS),
    shell:
        """
        {PYTHON[llamacpp]:q} {input.code[0]:q} \
            --source {input.gguf:q} \
            --gguf {output:q} \
            --quant {wildcards.quant:q} \
            >{log:q}
        """


rule verify_gguf:
    input:
        code=code("verify_gguf.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
        gguf="artifacts/{model}{dtype}.gguf",
    output:
        "artifacts/{model}{dtype}.gguf.verified.json",
    log:
        "logs/verify_gguf/{model}{dtype}.log",
    benchmark:
        "logs/verify_gguf/{model}{dtype}.tsv"
    params:
        dtype=inputs.dtype,
        name=setting("name"),
        pre_tokenizer=setting("pre_tokenizer"),
        license=setting("license"),
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --dtype {params.dtype:q} \
            --name {params.name:q} \
            --pre-tokenizer {params.pre_tokenizer:q} \
            --license={params.license:q} \
            --gguf {input.gguf:q} \
            --record {output:q} \
            >{log:q}
        """
