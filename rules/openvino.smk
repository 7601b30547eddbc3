"""OpenVINO: artifacts/M[.int8].openvino, the IR of a decoder with its tokenizer, for Intel's CPUs."""


rule export_openvino:
    input:
        code=code("export_openvino.py"),
        lock=lock("openvino"),
        env=env("openvino"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
    output:
        directory("artifacts/{model}{int8}.openvino"),
    log:
        "logs/export_openvino/{model}{int8}.log",
    benchmark:
        "logs/export_openvino/{model}{int8}.tsv"
    params:
        architecture=setting("architecture"),
        export=inputs.openvino_options,
    shell:
        """
        {PYTHON[openvino]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            {params.export:q} \
            --openvino {output:q} \
            >{log:q}
        """


rule verify_openvino:
    input:
        code=code("verify_openvino.py"),
        lock=lock("openvino"),
        env=env("openvino"),
        config=inputs.config_json,
        weights=inputs.weights,
        tokenizer=inputs.tokenizer,
        openvino="artifacts/{model}{int8}.openvino",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}{int8}.openvino.verified.json",
    log:
        "logs/verify_openvino/{model}{int8}.log",
    benchmark:
        "logs/verify_openvino/{model}{int8}.tsv"
    params:
        architecture=setting("architecture"),
        export=inputs.openvino_options,
        limits=inputs.openvino_limits,
    shell:
        """
        {PYTHON[openvino]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --tokenizer {input.tokenizer:q} \
            {params.export:q} \
            --openvino {input.openvino:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --limit {params.limits:q} \
            --record {output:q} \
            >{log:q}
        """
