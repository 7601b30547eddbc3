"""ONNX: artifacts/M[.fp16|.int8].onnx, a decoder with KV cache, and M.torchpipe, the same cut at attention.

Of a family that Ingot has no table of, onnxruntime-genai's builder writes M.onnx.
"""


rule export_onnx:
    input:
        code=code("export_onnx.py"),
        lock=lock("onnx"),
        env=env("onnx"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
    output:
        directory("artifacts/{model}{onnx}.onnx"),
    log:
        "logs/export_onnx/{model}{onnx}.log",
    benchmark:
        "logs/export_onnx/{model}{onnx}.tsv"
    wildcard_constraints:
        model=TABLED,
    params:
        architecture=setting("architecture"),
        export=inputs.onnx_options,
    shell:
        """
        {PYTHON[onnx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            {params.export:q} \
            --onnx {output:q} \
            >{log:q}
        """


rule verify_onnx:
    input:
        code=code("verify_onnx.py"),
        lock=lock("onnx"),
        env=env("onnx"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
        onnx="artifacts/{model}{onnx}.onnx",
        reading="artifacts/{model}.reading.json",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}{onnx}.onnx.verified.json",
    log:
        "logs/verify_onnx/{model}{onnx}.log",
    benchmark:
        "logs/verify_onnx/{model}{onnx}.tsv"
    wildcard_constraints:
        model=TABLED,
    params:
        architecture=setting("architecture"),
        export=inputs.onnx_options,
        limits=inputs.limits("onnx", "f32"),
    shell:
        """
        {PYTHON[onnx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            {params.export:q} \
            --onnx {input.onnx:q} \
            --reading {input.reading:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """


ruleorder: build_onnx > export_onnx
ruleorder: verify_built_onnx > verify_onnx


rule build_onnx:
    input:
        code=code("build_onnx.py"),
        lock=lock("genai"),
        env=env("genai"),
        config=inputs.config_json,
        tokenizer=inputs.tokenizer,
        weights=inputs.weights,
    output:
        directory("artifacts/{model}.onnx"),
    log:
        "logs/build_onnx/{model}.log",
    benchmark:
        "logs/build_onnx/{model}.tsv"
    wildcard_constraints:
        model=UPSTREAM["onnx"],
    shell:
        """
        {PYTHON[genai]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.tokenizer:q} {input.weights:q} \
            --onnx {output:q} \
            >{log:q}
        """


rule verify_built_onnx:
    input:
        code=code("verify_built_onnx.py"),
        lock=lock("onnx"),
        env=env("onnx"),
        onnx="artifacts/{model}.onnx",
        reading="artifacts/{model}.reading.json",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}.onnx.verified.json",
    log:
        "logs/verify_built_onnx/{model}.log",
    benchmark:
        "logs/verify_built_onnx/{model}.tsv"
    wildcard_constraints:
        model=UPSTREAM["onnx"],
    params:
        limits=inputs.limits(empty="f32"),
    shell:
        """
        {PYTHON[onnx]:q} {input.code[0]:q} \
            --onnx {input.onnx:q} \
            --reading {input.reading:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """


rule split_onnx:
    input:
        code=code("split_onnx.py"),
        lock=lock("onnx"),
        env=env("onnx"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
    output:
        directory("artifacts/{model}.torchpipe"),
    log:
        "logs/split_onnx/{model}.log",
    benchmark:
        "logs/split_onnx/{model}.tsv"
    params:
        architecture=setting("architecture"),
        split=inputs.torchpipe_options,
    shell:
        """
        {PYTHON[onnx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            {params.split:q} \
            --torchpipe {output:q} \
            >{log:q}
        """


rule verify_torchpipe:
    input:
        code=code("verify_torchpipe.py"),
        lock=lock("onnx"),
        env=env("onnx"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
        torchpipe="artifacts/{model}.torchpipe",
        reference="artifacts/{model}.reference.npz",
    output:
        "artifacts/{model}.torchpipe.verified.json",
    log:
        "logs/verify_torchpipe/{model}.log",
    benchmark:
        "logs/verify_torchpipe/{model}.tsv"
    params:
        architecture=setting("architecture"),
        split=inputs.torchpipe_options,
    shell:
        """
        {PYTHON[onnx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            {params.split:q} \
            --torchpipe {input.torchpipe:q} \
            --reference {input.reference:q} \
            --record {output:q} \
            >{log:q}
        """
