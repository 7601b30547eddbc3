"""TensorRT for RTX: artifacts/M.rtx, an engine by way of ONNX, built without a GPU.

An optional extra: the compiler is proprietary, and nothing of it is needed for any other artifact.
"""


rule build_rtx:
    input:
        code=code("build_rtx.py"),
        lock=lock("rtx"),
        env=env("rtx"),
        onnx="artifacts/{model}.prefill.onnx",
    output:
        directory("artifacts/{model}.rtx"),
    log:
        "logs/build_rtx/{model}.log",
    benchmark:
        "logs/build_rtx/{model}.tsv"
    shell:
        """
        {PYTHON[rtx]:q} {input.code[0]:q} \
            --onnx {input.onnx:q} \
            --rtx {output:q} \
            >{log:q}
        """


rule verify_rtx:
    input:
        code=code("verify_rtx.py"),
        lock=lock("rtx"),
        env=env("rtx"),
        rtx="artifacts/{model}.rtx",
        onnx="artifacts/{model}.prefill.onnx",
        onnx_record="artifacts/{model}.prefill.onnx.verified.json",
    output:
        "artifacts/{model}.rtx.verified.json",
    log:
        "logs/verify_rtx/{model}.log",
    benchmark:
        "logs/verify_rtx/{model}.tsv"
    shell:
        """
        {PYTHON[rtx]:q} {input.code[0]:q} \
            --rtx {input.rtx:q} \
            --onnx {input.onnx:q} \
            --onnx-record {input.onnx_record:q} \
            --record {output:q} \
            >{log:q}
        """
