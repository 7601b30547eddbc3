"""Quantised checkpoints, as vLLM serves them: artifacts/M.fp8.safetensors, .fp8_block, .w8a8, .w4a16, .mxfp4, .nvfp4.

llm-compressor makes those that read a text (.w4a16_gptq ...), and all of families without a table.

M.fp8.reference.npz is what a server of one must answer, by transformers.
"""


rule quantize_safetensors:
    input:
        code=code("quantize_safetensors.py"),
        lock=lock("convert"),
        env=env("convert"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
    output:
        directory("artifacts/{model}.{scheme}.safetensors"),
    log:
        "logs/quantize_safetensors/{model}.{scheme}.log",
    benchmark:
        "logs/quantize_safetensors/{model}.{scheme}.tsv"
    wildcard_constraints:
        model=TABLED,
        scheme="|".join(SCHEMES),
    params:
        architecture=setting("architecture"),
    shell:
        """
        {PYTHON[convert]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            --scheme {wildcards.scheme} \
            --safetensors {output:q} \
            >{log:q}
        """


rule compress_safetensors:
    input:
        code=code("compress_safetensors.py"),
        lock=lock("llmcompressor"),
        env=env("llmcompressor"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
        text=inputs.calibration,
    output:
        directory("artifacts/{model}.{scheme}.safetensors"),
    log:
        "logs/compress_safetensors/{model}.{scheme}.log",
    benchmark:
        "logs/compress_safetensors/{model}.{scheme}.tsv"
    wildcard_constraints:
        model=BY_LLMCOMPRESSOR,
    shell:
        """
        {PYTHON[llmcompressor]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --tokenizer {input.tokenizer:q} \
            --scheme {wildcards.scheme} \
            --text {input.text:q} \
            --safetensors {output:q} \
            >{log:q}
        """


rule generate_quantised_reference:
    input:
        code=code("generate_reference.py"),
        lock=lock("transformers"),
        env=env("transformers"),
        safetensors="artifacts/{model}.{scheme}.safetensors",
        prompts=inputs.prompts,
        reading="artifacts/{model}.reading.json",
    output:
        "artifacts/{model}.{scheme}.reference.npz",
    log:
        "logs/generate_quantised_reference/{model}.{scheme}.log",
    benchmark:
        "logs/generate_quantised_reference/{model}.{scheme}.tsv"
    shell:
        """
        {PYTHON[transformers]:q} {input.code[0]:q} \
            --checkpoint {input.safetensors:q} \
            --reading {input.reading:q} \
            --prompts {input.prompts:q} \
            --reference {output:q} \
            >{log:q}
        """


rule verify_safetensors:
    input:
        code=code("verify_safetensors.py"),
        lock=lock("transformers"),
        env=env("transformers"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
        safetensors="artifacts/{model}.{scheme}.safetensors",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}.{scheme}.safetensors.verified.json",
    log:
        "logs/verify_safetensors/{model}.{scheme}.log",
    benchmark:
        "logs/verify_safetensors/{model}.{scheme}.tsv"
    params:
        limits=inputs.limits("scheme"),
        compressed=inputs.compressed,
    shell:
        """
        {PYTHON[transformers]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --tokenizer {input.tokenizer:q} \
            --scheme {wildcards.scheme} \
            --safetensors {input.safetensors:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            {params.compressed} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """
