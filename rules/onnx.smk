"""ONNX: artifacts/M.onnx, a decoder without KV cache in float16."""


rule export_onnx:
    input:
        code=code("export_onnx.py"),
        lock=lock("rtx"),
        env=env("rtx"),
        config=inputs.config_json,
        weights=inputs.weights,
    output:
        directory("artifacts/{model}.onnx"),
    log:
        "logs/export_onnx/{model}.log",
    benchmark:
        "logs/export_onnx/{model}.tsv"
    params:
        architecture=setting("architecture"),
    shell:
        """
        {PYTHON[rtx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --onnx {output:q} \
            >{log:q}
        """


rule verify_onnx:
    input:
        code=code("verify_onnx.py"),
        lock=lock("rtx"),
        env=env("rtx"),
        config=inputs.config_json,
        weights=inputs.weights,
        onnx="artifacts/{model}.onnx",
        reference="artifacts/{model}.reference.npz",
        texts="artifacts/{model}.texts.json",
        scores="artifacts/{model}.scores.npy",
    output:
        "artifacts/{model}.onnx.verified.json",
    log:
        "logs/verify_onnx/{model}.log",
    benchmark:
        "logs/verify_onnx/{model}.tsv"
    params:
        architecture=setting("architecture"),
    shell:
        """
        {PYTHON[rtx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --onnx {input.onnx:q} \
            --reference {input.reference:q} \
            --texts {input.texts:q} \
            --scores {input.scores:q} \
            --record {output:q} \
            >{log:q}
        """
