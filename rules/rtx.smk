"""TensorRT for RTX: artifacts/M.rtx, an engine by way of ONNX, built without a GPU.

An optional extra: the compiler is proprietary, and nothing of it is needed for any other artifact.
"""


rule build_rtx:
    input:
        code=code("build_rtx.py"),
        lock=lock("rtx"),
        env=env("rtx"),
        config=config_json,
        weights=weights,
    output:
        directory("artifacts/{model}.rtx"),
    log:
        "logs/build_rtx/{model}.log",
    benchmark:
        "logs/build_rtx/{model}.tsv"
    params:
        architecture=setting("architecture"),
    shell:
        """
        {PYTHON[rtx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --architecture {params.architecture:q} \
            --rtx {output:q} \
            >{log:q}
        """


rule verify_rtx:
    input:
        code=code("verify_rtx.py"),
        lock=lock("rtx"),
        env=env("rtx"),
        config=config_json,
        weights=weights,
        rtx="artifacts/{model}.rtx",
        reference="artifacts/{model}.reference.npz",
    output:
        "artifacts/{model}.rtx.verified.json",
    log:
        "logs/verify_rtx/{model}.log",
    benchmark:
        "logs/verify_rtx/{model}.tsv"
    shell:
        """
        {PYTHON[rtx]:q} {input.code[0]:q} \
            --checkpoint {input.config:q} {input.weights:q} \
            --rtx {input.rtx:q} \
            --reference {input.reference:q} \
            --record {output:q} \
            >{log:q}
        """
